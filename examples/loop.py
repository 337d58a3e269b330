"""An agent loop of your own: python3 examples/loop.py, with a daemon on localhost:9090 (`make serve`)."""

import http.client
import json
import os
import sys
from typing import Any

DAEMON = http.client.HTTPConnection("localhost", int(sys.argv[1]) if len(sys.argv) > 1 else 9090, timeout=30)
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
HEADERS["Authorization"] = f"Bearer {os.environ.get('CONTEXT_TOKEN', 'none')}"  # looked at where the daemon has tokens


def post(path: str, **body: object) -> Any:
    DAEMON.request("POST", path, json.dumps(body), HEADERS)
    answer = json.load(DAEMON.getresponse())
    return sys.exit(answer["error"]["message"]) if "error" in answer else answer


def tool(name: str, **arguments: object) -> Any:
    params = {"name": name, "arguments": {"project_path": os.getcwd(), **arguments}}
    answer = post("/mcp", jsonrpc="2.0", id=1, method="tools/call", params=params)
    return json.loads(answer["result"]["content"][0]["text"])


def did(kind: str, content: str, *, failed: bool = False) -> None:
    told = post("/v1/operations", project_path=os.getcwd(), type=kind, content=content, failed=failed)
    print(kind, told["tokens"], "tokens")


did("prompt", "Why do logins fail?")
tool("context_branch", description="Search the log", prompt="Find out why logins fail.")
did("shell", "grep expired auth.log\ngrep: auth.log: No such file", failed=True)
did("file_read", "12:00:01 auth: token expired for user 17\n" * 800)
done = tool("context_return", message="Logins fail because tokens expire after one minute.")
folded, saved = done["summary"]["tokens_folded"], done["summary"]["tokens_saved"]
print(f"folded {folded} tokens: behind the proxy, later requests would have {saved} fewer")
print("in context", done["context_state"]["total_tokens"], "tokens")
