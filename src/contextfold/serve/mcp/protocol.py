"""The server side of MCP over JSON-RPC 2.0, in both eras, and the tools that it offers. It reads no stream, and runs
no tool.

    handshake era   2024-11-05 … 2025-11-25: the client sends `initialize` first
    stateless era   2026-07-28: every request carries its version in `params._meta`; no handshake, no ping

The result of a request is a response, or a tool call that the transport runs and passes to `encode_tool_result`. Each
transport itself checks what only it knows: the handshake on stdio, the headers on HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from contextfold import __version__
from contextfold.common.canonical import is_too_deep
from contextfold.errors import INTERNAL_ERROR, INVALID_PARAMS, JSON_RPC_CODES, CacheMissing, DocumentMissing
from contextfold.serve.mcp.resolve_tools import RESOLVE_TOOLS, RESOURCE_READERS
from contextfold.serve.mcp.tools import (
    ResolveTool,
    ResourceReader,
    Tool,
    ToolResult,
    describe_tool,
    describe_unknown_arguments,
    instructions,
)
from contextfold.serve.request_error import (
    BAD_REQUEST_STATUS,
    INTERNAL_ERROR_STATUS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RequestError,
)
from contextfold.settings import ALL_TOOLSETS, offers_folding

Members = dict[str, object]

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSIONS = ("2026-07-28",)

META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_SERVER = "io.modelcontextprotocol/serverInfo"

# Error codes that the stateless era defines.
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022
# The code in the handshake era; in the stateless era an unknown address is an invalid parameter.
RESOURCE_NOT_FOUND = -32002
NOT_FOUND_KINDS = frozenset({CacheMissing.code, DocumentMissing.code})

TOOLS_CALL, RESOURCES_READ = "tools/call", "resources/read"
# The name in metrics and spans for a call of a tool that does not exist.
UNKNOWN_TOOL_KIND = "unknown_tool"

SERVER_INFO = {"name": "contextfold", "version": __version__}
NOT_CACHEABLE = {"ttlMs": 0, "cacheScope": "private"}
# By default, Python converts integers of up to this many digits.
INTEGER_DIGITS = 4300


class RpcRequest(NamedTuple):
    method: str
    # The unchecked parameters; None if absent.
    params: Any
    id: str | int | None
    is_notification: bool


class InvalidMessage(RequestError):
    """A message is not a valid request. `request_id` is its id, if that is valid."""

    def __init__(self, code: int, message: str, request_id: str | int | None = None) -> None:
        super().__init__(BAD_REQUEST_STATUS, "invalid_request", message, code=code)
        self.request_id = request_id


class _HugeInteger(int):
    """Represents an integer with more digits than INTEGER_DIGITS, which is out of every range and no valid id."""


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) <= INTEGER_DIGITS:
        return int(digits)
    return _HugeInteger(-1 if digits[0] == "-" else 1 << 64)


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_int=_integer, parse_constant=_reject_constant)


def parse_request(message: bytes) -> RpcRequest:
    """Parse a message. Raises InvalidMessage if it is not a request."""
    if is_too_deep(message):
        raise InvalidMessage(PARSE_ERROR, "Parse error")
    try:
        value = _decoder.decode(message.decode("utf-8"))
    except ValueError:
        raise InvalidMessage(PARSE_ERROR, "Parse error") from None
    if not isinstance(value, dict):
        raise InvalidMessage(INVALID_REQUEST, "Invalid Request")
    is_notification = "id" not in value
    sent_id = value.get("id")
    is_valid_id = type(sent_id) in (str, int)
    request_id = sent_id if is_valid_id else None
    method = value.get("method")
    if value.get("jsonrpc") != "2.0" or not isinstance(method, str) or not (is_valid_id or is_notification):
        raise InvalidMessage(INVALID_REQUEST, "Invalid Request", request_id)
    return RpcRequest(method, value.get("params"), request_id, is_notification)


def encode_result(request_id: str | int | None, result: object) -> bytes:
    return encode_message({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: str | int | None, error: RequestError) -> bytes:
    return encode_message({"jsonrpc": "2.0", "id": request_id, "error": error.rpc_error()})


def encode_message(message: object) -> bytes:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # A lone surrogate in an echoed value can only be written as an escape.
        return json.dumps(message, separators=(",", ":")).encode("ascii")


class McpToolCall(NamedTuple):
    """A tool that a request asks to run."""

    tool: Tool | ResourceReader
    arguments: Mapping[str, object]
    meta: Mapping[str, object]
    request_id: str | int | None
    is_stateless: bool


class McpServer:
    """Answers requests for a set of tools, and for resources by readers of theirs, which are run as tools are."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        """A server with these tools. Caches are its resources if it has tools for them."""
        readers = RESOURCE_READERS if any(isinstance(tool, ResolveTool) for tool in tools) else {}
        self._tools = {tool.name: tool for tool in tools}
        self._readers = readers
        self._listing = [describe_tool(tool) for tool in tools]
        self._instructions = instructions(tools)
        self._capabilities: Members = {"tools": {}, "resources": {}} if readers else {"tools": {}}

    def answer(self, request: RpcRequest) -> bytes | McpToolCall:
        """The response to a request, or the tool call in it. Raises RequestError if the response is an error."""
        is_stateless = has_envelope(request)
        if is_stateless:
            _check_envelope(request.params["_meta"])
        match request.method:
            case "tools/call":
                return self._parse_call(request, _params_of(request), is_stateless=is_stateless)
            case "tools/list":
                _params_of(request)
                return _encode_list(request.id, {"tools": self._listing}, is_stateless=is_stateless)
            case method if method in self._readers:
                params = _params_of(request)
                if "cursor" in params or (method == RESOURCES_READ and not isinstance(params.get("uri"), str)):
                    raise invalid_params()
                arguments = {name: value for name, value in params.items() if name == "uri"}
                return McpToolCall(self._readers[method], arguments, {}, request.id, is_stateless)
            case "initialize" if not is_stateless:
                return self._initialize(request)
            case "ping" if not is_stateless:
                _params_of(request)
                return encode_result(request.id, {})
            case "server/discover" if is_stateless:
                about: Members = {
                    "supportedVersions": STATELESS_VERSIONS,
                    "capabilities": self._capabilities,
                    "instructions": self._instructions,
                }
                return _encode_list(request.id, about, is_stateless=True)
        raise RequestError(404, "method_not_found", f"Method not found: {request.method}", code=METHOD_NOT_FOUND)

    def _initialize(self, request: RpcRequest) -> bytes:
        wanted = _params_of(request).get("protocolVersion")
        return encode_result(
            request.id,
            {
                "protocolVersion": wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
                "capabilities": self._capabilities,
                "serverInfo": SERVER_INFO,
                "instructions": self._instructions,
            },
        )

    def _parse_call(self, request: RpcRequest, params: Mapping[str, object], *, is_stateless: bool) -> McpToolCall:
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise invalid_params()
        tool = self._tools.get(name)
        if tool is None:
            raise RequestError(BAD_REQUEST_STATUS, UNKNOWN_TOOL_KIND, f"Unknown tool: {name}", code=INVALID_PARAMS)
        unknown = describe_unknown_arguments(tool, arguments)
        if unknown:
            raise invalid_params(unknown)
        meta = params.get("_meta")
        return McpToolCall(tool, arguments, meta if isinstance(meta, dict) else {}, request.id, is_stateless)


def tools_of(names: Collection[str]) -> list[Tool]:
    """The tools of the sets with these names."""
    tools: list[Tool] = list(RESOLVE_TOOLS) if "resolve" in names else []
    if offers_folding(names):
        # They import the folding service, and that asyncio, which a server without them does not need.
        from contextfold.serve.mcp.fold_tools import AFTERWARDS_TOOLS, FOLD_TOOLS

        tools += FOLD_TOOLS if "fold" in names else AFTERWARDS_TOOLS
    return tools


def choose_tools(offered: Sequence[Tool], names: str) -> list[Tool]:
    """Of the offered tools, those of the sets with these names, separated by commas."""
    wanted = names.split(",")
    if not set(wanted) <= set(ALL_TOOLSETS):
        message = f"tools must be one or more of {', '.join(ALL_TOOLSETS)}, separated by commas"
        raise RequestError(BAD_REQUEST_STATUS, "unknown_toolset", message, code=INVALID_REQUEST)
    return [tool for tool in tools_of(wanted) if tool in offered]


def _encode_list(request_id: str | int | None, result: Members, *, is_stateless: bool) -> bytes:
    return encode_result(request_id, _add_envelope(result | NOT_CACHEABLE) if is_stateless else result)


def _encode_resource(call: McpToolCall, found: ToolResult) -> bytes:
    """The response to a request for resources: the reader's members are the result itself."""
    if found.members is not None:
        return _encode_list(call.request_id, dict(found.members), is_stateless=call.is_stateless)
    code = JSON_RPC_CODES[found.kind]
    if found.kind in NOT_FOUND_KINDS and not call.is_stateless:
        code = RESOURCE_NOT_FOUND
    status = INTERNAL_ERROR_STATUS if code == INTERNAL_ERROR else BAD_REQUEST_STATUS
    # The kind, because several have the same code.
    data = {**call.arguments, "kind": found.kind}
    raise RequestError(status, found.kind, found.message, data=data, code=code)


def encode_tool_result(call: McpToolCall, tool_result: ToolResult) -> bytes:
    """The response that carries a tool's result: its text is the only content block."""
    if isinstance(call.tool, ResourceReader):
        return _encode_resource(call, tool_result)
    content = [{"type": "text", "text": tool_result.text}]
    result: Members = {"content": content, "isError": bool(tool_result.kind)}
    meta = tool_result.meta()
    if call.is_stateless:
        result["resultType"] = "complete"
        meta = {META_SERVER: SERVER_INFO, **meta}
    if meta:
        result["_meta"] = meta
    return encode_result(call.request_id, result)


def is_initialize(request: RpcRequest) -> bool:
    """Whether a request opens a session of the handshake era."""
    return request.method == "initialize" and not has_envelope(request)


def has_envelope(request: RpcRequest) -> bool:
    """Whether a request belongs to the stateless era. The handshake era has `_meta`, too, but no version key."""
    meta = request.params.get("_meta") if isinstance(request.params, dict) else None
    return isinstance(meta, dict) and META_VERSION in meta


def invalid_params(message: str = "Invalid params") -> RequestError:
    return RequestError(BAD_REQUEST_STATUS, "invalid_params", message, code=INVALID_PARAMS)


def unsupported_version(requested: str, supported: tuple[str, ...] = STATELESS_VERSIONS) -> RequestError:
    data = {"supported": supported, "requested": requested}
    return RequestError(
        BAD_REQUEST_STATUS, "unsupported_version", "Unsupported protocol version", data=data, code=UNSUPPORTED_VERSION
    )


def _params_of(request: RpcRequest) -> Mapping[str, object]:
    if request.params is None:
        return {}
    if not isinstance(request.params, dict):
        raise invalid_params()
    return request.params


def _check_envelope(meta: Mapping[str, object]) -> None:
    version = meta[META_VERSION]
    if META_CAPABILITIES not in meta:
        raise invalid_params(f"params._meta lacks {META_CAPABILITIES}")
    if not isinstance(version, str):
        raise invalid_params(f"{META_VERSION} is not a string")
    if version not in STATELESS_VERSIONS:
        raise unsupported_version(version)


def _add_envelope(result: Members) -> Members:
    return result | {"resultType": "complete", "_meta": {META_SERVER: SERVER_INFO}}
