"""MCP as a server speaks it, in both eras, over any stream of messages. Pure: it reads no stream and runs no tool.

    handshake era   2024-11-05 … 2025-11-25: `initialize` opens the session, everything else waits for it
    modern era      2026-07-28: every request carries its version in `params._meta`; no handshake, no ping

A line goes in; out comes an answer, nothing (a notification), or a call that somebody must run and bring back.
"""

from __future__ import annotations

import json

from contextfold import __version__
from contextfold.common.record import Record
from contextfold.error_codes import INVALID_PARAMS, JSON_RPC_CODES
from contextfold.errors import InternalError
from contextfold.serve.mcp.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Request,
    RpcError,
    error_line,
    parse,
    result_line,
)
from contextfold.serve.mcp.tools import Refusal, instructions, listing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from contextfold.serve.mcp.tools import Answer, Tool

    Members = dict[str, object]

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS = ("2026-07-28",)

META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_SERVER = "io.modelcontextprotocol/serverInfo"
UNSUPPORTED_VERSION = -32022  # as the modern era defines it

SERVER_INFO = {"name": "contextfold", "version": __version__}
CAPABILITIES: Mapping[str, object] = {"tools": {}}
NOT_CACHEABLE = {"ttlMs": 0, "cacheScope": "private"}


class Call(Record):
    """A tool to be run for a request."""

    tool: Tool
    arguments: Mapping[str, object]
    meta: Mapping[str, object]
    request_id: str | int | None
    modern: bool


class Session:
    """One client's conversation with a set of tools."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._listing = [listing(tool) for tool in tools]
        self._instructions = instructions(tools)
        self._initialized = False

    def receive(self, line: bytes) -> bytes | Call | None:
        """The answer to a line, the call it asks for, or None where none is due."""
        request_id = None
        try:
            request = parse(line)
            request_id = request.id
            return None if request.is_notification else self._answer(request)
        except RpcError as error:
            return error_line(error)
        except Exception:  # a bug of ours must cost one answer, not the session
            return error_line(RpcError(JSON_RPC_CODES[InternalError.code], InternalError.message, request_id))

    def finish(self, call: Call, answer: Answer | Refusal) -> bytes:
        """The line that carries a tool's answer back."""
        if isinstance(answer, Refusal):
            return error_line(RpcError(answer.code, answer.message, call.request_id, data=json.loads(answer.data)))
        content = [{"type": "text", "text": text} for text in answer.texts]
        result: Members = {"content": content, "isError": answer.is_error}
        if call.modern:
            result = _modern(result)
        if answer.meta:
            result["_meta"] = {**_members(result.get("_meta")), **answer.meta}
        return result_line(call.request_id, result)

    def _answer(self, request: Request) -> bytes | Call:
        try:
            params = {} if request.params is None else request.params
            if request.method != "initialize" and _is_modern(params):
                _check_envelope(params["_meta"])
                return self._dispatch(request, params, modern=True)
            if request.method == "initialize":
                return self._initialize(request, params)
            self._check_initialized()
            return self._dispatch(request, params, modern=False)
        except RpcError as error:
            error.id = request.id
            raise

    def _check_initialized(self) -> None:
        if not self._initialized:
            raise RpcError(INVALID_REQUEST, "Server not initialized")

    def _initialize(self, request: Request, params: object) -> bytes:
        wanted = _object(params).get("protocolVersion")
        self._initialized = True
        return result_line(
            request.id,
            {
                "protocolVersion": wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
                "capabilities": CAPABILITIES,
                "serverInfo": SERVER_INFO,
                "instructions": self._instructions,
            },
        )

    def _dispatch(self, request: Request, params: object, *, modern: bool) -> bytes | Call:
        match request.method:
            case "tools/call":
                return self._call(request, _object(params), modern=modern)
            case "tools/list":
                _object(params)
                result: Members = {"tools": self._listing}
                return result_line(request.id, _modern(result | NOT_CACHEABLE) if modern else result)
            case "ping" if not modern:
                _object(params)
                return result_line(request.id, {})
            case "server/discover" if modern:
                about: Members = {"supportedVersions": MODERN_VERSIONS, "capabilities": CAPABILITIES}
                about |= {"instructions": self._instructions, **NOT_CACHEABLE}
                return result_line(request.id, _modern(about))
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method}")

    def _call(self, request: Request, params: Mapping[str, object], *, modern: bool) -> Call:
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "Invalid params")
        tool = self._tools.get(name)
        if tool is None:
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {name}")
        if tool.schema.get("additionalProperties") is False and arguments.keys() - _members(tool.schema["properties"]):
            raise RpcError(INVALID_PARAMS, "Invalid params")
        return Call(tool, arguments, _members(params.get("_meta")), request.id, modern)


def _object(params: object) -> Mapping[str, object]:
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "Invalid params")
    return params


def _members(value: object) -> Members:
    return value if isinstance(value, dict) else {}


def _is_modern(params: object) -> bool:
    """Only the version key tells: a bare `_meta` is older than the modern era."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and META_VERSION in meta


def _check_envelope(meta: Mapping[str, object]) -> None:
    version = meta[META_VERSION]
    if META_CAPABILITIES not in meta:
        raise RpcError(INVALID_PARAMS, f"params._meta lacks {META_CAPABILITIES}")
    if not isinstance(version, str):
        raise RpcError(INVALID_PARAMS, f"{META_VERSION} is not a string")
    if version not in MODERN_VERSIONS:
        data = {"supported": MODERN_VERSIONS, "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data=data)


def _modern(result: Members) -> Members:
    return result | {"resultType": "complete", "_meta": {META_SERVER: SERVER_INFO}}
