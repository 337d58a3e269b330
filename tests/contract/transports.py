"""Every way to call a tool, behind one interface; the behaviour suite runs over all of them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from contextfold.fold.policy import FoldPolicy
from contextfold.fold.service.fold_service import FoldService
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.serve.mcp.fold_tools import FOLD_TOOLS, META_OPERATION, META_SESSION, caller_from, run_fold_tool
from contextfold.serve.request_error import RequestError
from tests.support.daemon import Daemon, HttpAgent, Refused, decode_answer
from tests.support.machine import COMMAND
from tests.support.temporary_store import TemporaryStore

STATE, COUNTER = "contextfold/state", "contextfold/counter"


class Transport(Protocol):
    # This is the result of the last call that was answered, with its content and `_meta`.
    result: Any

    def call(self, tool: str, _meta: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
        """The object in the answer's text, or the text itself; raises Refused for an error."""

    def close(self) -> None: ...


class InProcess:
    """The tools without a transport, on the store in memory."""

    def __init__(self, policy: FoldPolicy | None = None) -> None:
        self._runner = asyncio.Runner()
        self._service = FoldService(TemporaryStore(), standard_scrubber(), policy)
        self._tools = {tool.name: tool for tool in FOLD_TOOLS}

    def call(self, tool: str, _meta: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
        caller = caller_from("local", _meta or {})
        try:
            answer = self._runner.run(run_fold_tool(self._tools[tool], self._service, caller, arguments))
        except RequestError as error:
            raise Refused(error.rpc_error()) from error
        self.result = {"content": [{"type": "text", "text": answer.text}], "_meta": answer.meta()}
        return decode_answer(answer.text)

    def close(self) -> None:
        self._runner.close()


class Stdio:
    """`context serve --stdio --tools resolve,fold`, in the handshake era."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        argv: list[str | Path] = [
            COMMAND,
            "serve",
            "--stdio",
            "--tools",
            "resolve,fold",
            "--store",
            folder / "state.db",
        ]
        env = os.environ | {"CONTEXT_CACHE_ROOT": str(folder)}
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.rpc("initialize", {"protocolVersion": "2025-11-25"})

    def rpc(self, method: str, params: Mapping[str, Any]) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n"
        )
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]

    def call(self, tool: str, _meta: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
        self.result = self.rpc(
            "tools/call", {"name": tool, "arguments": arguments, **({"_meta": _meta} if _meta else {})}
        )
        return decode_answer(self.result["content"][0]["text"])

    def close(self) -> None:
        self._process.communicate(timeout=60)


class OverHttp(HttpAgent):
    """The daemon, in one of the protocol's eras; the header must agree with `_meta`."""

    def call(
        self,
        tool: str,
        _meta: Mapping[str, Any] | None = None,
        _headers: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Any:
        answer = super().call(tool, _meta, _headers, **arguments)
        assert self.state == self.result["_meta"][STATE]
        return answer


def session_meta(session: str) -> dict[str, str]:
    return {META_SESSION: session}


def operation_meta(operation_id: str) -> dict[str, str]:
    return {META_OPERATION: operation_id}


__all__ = [
    "COUNTER",
    "STATE",
    "Daemon",
    "InProcess",
    "OverHttp",
    "Refused",
    "Stdio",
    "Transport",
    "operation_meta",
    "session_meta",
]
