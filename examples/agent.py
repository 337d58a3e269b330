"""An agent's day in miniature: branch into a subtask, work, fold it back, and see what that saved.

Talks to a daemon on localhost:9090 (`make serve`), with nothing but the standard library:

    .venv/bin/python examples/agent.py
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:9090/mcp"
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
PROJECT = str(Path.cwd())
LOG = "12:00:01 auth: token expired for user 17\n" * 800


def call(tool: str, **arguments: Any) -> Any:
    """Call a tool over MCP; its result is one JSON object."""
    params = {"name": tool, "arguments": {"project_path": PROJECT, **arguments}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(URL, body, HEADERS), timeout=30) as response:  # noqa: S310
            answer = json.load(response)
    except OSError as problem:
        sys.exit(f"no daemon answers at {URL} ({problem}): start one with `make serve`, or give its address with /mcp")
    return json.loads(answer["result"]["content"][0]["text"])


begun = call("context_branch", description="Search the log", prompt="Find out why logins fail.")
print("branched into", begun["branch_id"])

# What the subtask reads fills the branch and not the main thread. Hosts with hooks report it by themselves.
read = call("context_record", type="file_read", content=LOG)
print("read", read["tokens"], "tokens of log")

done = call("context_return", message="Logins fail because tokens expire after one minute.")
folded, saved = done["summary"]["tokens_folded"], done["summary"]["tokens_saved"]
print(f"folded {folded} tokens: behind the proxy, later requests would have {saved} fewer")
print("the main thread holds", done["context_state"]["main_thread_tokens"], "tokens")
