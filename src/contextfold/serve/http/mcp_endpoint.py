"""MCP over Streamable HTTP by the official SDK's low-level server: stateless, JSON answers, every protocol version.

Any daemon can answer any call, for nothing of a conversation is kept. What a call learns about its session goes into
the exchange's `Told`, for the header that every MCP response carries. Knows the SDK; knows tools only by their tables.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent
from mcp_types import Tool as ListedTool
from starlette.requests import Request
from starlette.responses import JSONResponse

from contextfold import __version__
from contextfold.common.canonical import Malformed, decode
from contextfold.common.record import Record
from contextfold.error_codes import INVALID_PARAMS
from contextfold.errors import ArgumentInvalid, FoldError, LimitReached
from contextfold.fold.service.callers import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.serve.http.guard import OWNER, Message, Receive, Scope, Send
from contextfold.serve.http.limits import Buckets
from contextfold.serve.http.refusals import CALLS_PER_SECOND, error_told
from contextfold.serve.mcp.fold_tools import call as run_fold_tool
from contextfold.serve.mcp.fold_tools import caller_from, refused
from contextfold.serve.mcp.protocol import UNSUPPORTED_VERSION
from contextfold.serve.mcp.tools import Answer, Refusal, ResolveTool, instructions, listing
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.metrics import UNKNOWN_TOOL, Metrics
from contextfold.serve.ops.tracing import Tracer, tool_span
from contextfold.serve.resolvers import Resolvers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextfold.serve.mcp.tools import Tool

SESSION_HEADER = "x-context-session"
BAD_REQUEST = 400
OPERATION_HEADER = "idempotency-key"
TOLD = "contextfold.told"  # in the scope: what the header will say

_VERSION = re.compile(r"v?[0-9]{1,4}(?:[.-][0-9]{1,4}){0,3}")
_REPLACED = frozenset({b"content-length", b"content-type"})
_NO_META: Mapping[str, object] = {}


class Told:
    """What the response's header says of the session; a call that knows better changes it."""

    __slots__ = ("by_us", "state")

    def __init__(self, state: str) -> None:
        self.state = state
        self.by_us = False  # whether the answer is ours, and not the SDK's own


class Services(Record):
    fold: FoldService
    resolvers: Resolvers
    buckets: Buckets
    metrics: Metrics
    tracer: Tracer | None = None
    clock: Callable[[], float] = time.monotonic


class McpEndpoint:
    """MCP: Streamable HTTP without sessions or streams, JSON answers, every protocol version of the SDK."""

    def __init__(self, tools: Sequence[Tool], services: Services, *, body_max_bytes: int) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._services = services
        self._listing = ListToolsResult(tools=[ListedTool.model_validate(listing(tool)) for tool in tools])
        server: Server[Any] = Server(
            "contextfold",
            version=__version__,
            instructions=instructions(tools),
            on_list_tools=self._list,
            on_call_tool=self._call,
            get_tool_input_schema=lambda _name: None,  # no tool of ours takes an argument from a header
        )
        server.middleware.clear()  # its spans, which nobody asked for, cost every call, and would hold what errors say
        self.manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, max_request_body_size=body_max_bytes
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one exchange, if the owner may make one more call."""
        wait_s = self._services.buckets.take(scope[OWNER], self._services.clock())
        if wait_s:
            self._services.metrics.refusal(LimitReached.code)
            await self._refuse(scope, receive, send)
        else:
            await self.manager.handle_request(scope, receive, self._plainly(scope[TOLD], send))

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Too many calls, told to this one in its own terms: its id, and the state of its session."""
        per_second = int(self._services.buckets.limit.per_second)
        problem = LimitReached(CALLS_PER_SECOND, per_second, "wait, then call again")
        request = Request(scope, receive)
        message = _message(await request.body())
        arguments = _members(_members(message.get("params")).get("arguments"))
        refusal = await refused(problem, self._services.fold, _session_of(request), arguments)
        scope[TOLD].state = refusal.state
        sent_id = message.get("id")
        error = {"code": refusal.code, "message": refusal.message, "data": json.loads(refusal.data)}
        body = {"jsonrpc": "2.0", "id": sent_id if type(sent_id) in (str, int) else None, "error": error}
        await JSONResponse(body)(scope, receive, send)

    def _plainly(self, told: Told, send: Send) -> Send:
        """What the SDK itself says of a message it refuses quotes it; so that is told plainly."""
        begun: Message = {}

        async def send_plainly(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = message
                return
            if begun:
                if not told.by_us and (begun["status"] >= BAD_REQUEST or b'"error"' in message.get("body", b"")):
                    message = {**message, "body": self._plain(message["body"], begun["status"])}
                    length = (b"content-length", str(len(message["body"])).encode())
                    others = [header for header in begun["headers"] if header[0] not in _REPLACED]
                    begun = {**begun, "headers": [*others, length, (b"content-type", b"application/json")]}
                await send(begun)
                begun = {}
            await send(message)

        return send_plainly

    def _plain(self, body: bytes, status: int) -> bytes:
        """An error of the SDK's without what was sent: it puts the input into its messages, and cut off at that."""
        try:
            answer = json.loads(body)
            error = answer["error"]
        except (ValueError, KeyError, TypeError):  # a line of plain text, about the request's head
            told = error_told(status, "bad_request", body.decode("utf-8", "replace").partition(":")[0])
            return json.dumps({"jsonrpc": "2.0", "id": None, **told}).encode()
        error["message"] = error["message"].partition(": ")[0]
        data = error.pop("data", None)
        if error.get("code") == UNSUPPORTED_VERSION:  # clients need it to agree on another one
            error["data"] = _versions(data)
        return json.dumps(answer, separators=(",", ":")).encode()

    async def _list(
        self, context: ServerRequestContext[Any], _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        _request(context).scope[TOLD].by_us = True
        return self._listing

    async def _call(self, context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        request = _request(context)
        request.scope[TOLD].by_us = True
        started_s = self._services.clock()
        tool = self._tools.get(params.name)
        if tool is None:
            self._services.metrics.tool_call(UNKNOWN_TOOL, "unknown_tool", 0.0)
            with tool_span(self._services.tracer) as span:
                span.called(UNKNOWN_TOOL, "unknown_tool")
            raise MCPError(INVALID_PARAMS, "Unknown tool; tools/list has those there are")
        with tool_span(self._services.tracer) as span:
            answer = await self._answer(tool, request, params)
            span.called(tool.name, answer.kind or "ok")
        self._services.metrics.tool_call(tool.name, answer.kind or "ok", self._services.clock() - started_s)
        if answer.reason:
            log("tool.failed", "warning", tool=tool.name, reason=answer.reason)
        if answer.state:
            request.scope[TOLD].state = answer.state
        if isinstance(answer, Refusal):
            raise MCPError(answer.code, answer.message, json.loads(answer.data))
        return CallToolResult(
            content=[TextContent(type="text", text=text) for text in answer.texts],
            is_error=answer.is_error,
            _meta=answer.meta or None,
        )

    async def _answer(self, tool: Tool, request: Request, params: CallToolRequestParams) -> Answer | Refusal:
        arguments = params.arguments or {}
        if isinstance(tool, ResolveTool):
            return await self._services.resolvers.call(tool.name, arguments)
        fold = self._services.fold
        try:
            caller = caller_of(request, params.meta or _NO_META)
        except FoldError as problem:
            return await refused(problem, fold, Caller(request.scope[OWNER]), {})
        return await run_fold_tool(tool, fold, caller, arguments)


def caller_of(request: Request, meta: Mapping[str, object] = _NO_META) -> Caller:
    return caller_from(
        request.scope[OWNER],
        meta,
        session=_header(request, SESSION_HEADER),
        operation_id=_header(request, OPERATION_HEADER),
    )


def _session_of(request: Request) -> Caller:
    """Whose session a refused call was for; a name that is no name is nobody's."""
    try:
        return replace(caller_of(request), operation_id=None)
    except FoldError:
        return Caller(request.scope[OWNER])


def _message(body: bytes) -> Mapping[str, object]:
    try:
        return _members(decode(body))
    except Malformed:
        return {}


def _members(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _header(request: Request, name: str) -> str | None:
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise ArgumentInvalid(name, "must be given once")
    try:
        return values[0].encode("latin-1").decode("utf-8") if values else None
    except UnicodeDecodeError:
        raise ArgumentInvalid(name, "must be UTF-8") from None


def _versions(data: Mapping[str, object]) -> dict[str, object]:
    """What is spoken, and what was asked for if it looks like a version at all, for it is the caller's text."""
    requested = data.get("requested")
    looks_like_one = isinstance(requested, str) and _VERSION.fullmatch(requested)
    return {"supported": data.get("supported"), **({"requested": requested} if looks_like_one else {})}


def _request(context: ServerRequestContext[Any]) -> Request:
    assert isinstance(context.request, Request)
    return context.request
