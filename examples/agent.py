"""An agent's day in miniature: branch into a subtask, work, fold it back, and see what that saved.

Talks to a daemon on localhost:9090 (`make serve`) with the official MCP client:

    .venv/bin/python examples/agent.py
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from mcp import Client
from mcp_types import TextContent

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:9090/mcp"
PROJECT = str(Path.cwd())
LOG = "12:00:01 auth: token expired for user 17\n" * 800


async def main() -> None:
    async with Client(URL) as client:

        async def call(tool: str, **arguments: Any) -> Any:
            result = await client.call_tool(tool, {"project_path": PROJECT, **arguments})
            block = result.content[0]  # beside it, while a branch is open, is a line for the model
            assert isinstance(block, TextContent)
            return json.loads(block.text)

        begun = await call("context_branch", description="Search the log", prompt="Find out why logins fail.")
        print("branched into", begun["branch_id"])

        # Whatever the subtask reads fills the branch, not the main thread. Hosts with hooks report this by themselves.
        read = await call("context_record", type="file_read", content=LOG)
        print("read", read["tokens"], "tokens of log")

        done = await call("context_return", message="Logins fail because tokens expire after one minute.")
        print("folded", done["summary"]["tokens_folded"], "tokens, saved", done["summary"]["tokens_saved"])
        print("the main thread holds", done["context_state"]["main_thread_tokens"], "tokens")


asyncio.run(main())
