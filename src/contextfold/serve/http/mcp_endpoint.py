"""MCP over Streamable HTTP: stateless, JSON responses, both eras, answered by the same core as stdio.

Any daemon can answer any request, because no state of a connection is stored: there is no session id, and no handshake
is required. This module handles what only HTTP has: media types, the routing headers of the stateless era, the status,
the rate limit and the session's state for `X-Context-State`. Knows tools only by their tables.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qs

from contextfold.common.canonical import encode
from contextfold.errors import INVALID_PARAMS, ArgumentInvalid, FoldError, LimitReached
from contextfold.fold.project import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.serve.http.exchange import EXCHANGE, OWNER, RUN, HttpExchange, Receive, Scope, Send
from contextfold.serve.http.guard import CALLS_PER_SECOND, Buckets
from contextfold.serve.mcp import protocol
from contextfold.serve.mcp.fold_tools import caller_from, run_fold_tool, to_request_error
from contextfold.serve.mcp.protocol import (
    InvalidMessage,
    McpServer,
    RpcRequest,
    choose_tools,
    encode_error,
    parse_request,
)
from contextfold.serve.mcp.tools import FoldTool, Tool, ToolResult
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.metrics import UNKNOWN_TOOL, Metrics
from contextfold.serve.ops.tracing import Tracer, tool_span
from contextfold.serve.request_error import (
    BAD_REQUEST_STATUS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RequestError,
)
from contextfold.serve.resolvers import Resolvers

SESSION_HEADER = b"x-context-session"
OPERATION_HEADER = b"idempotency-key"
VERSION_HEADER, METHOD_HEADER, NAME_HEADER = b"mcp-protocol-version", b"mcp-method", b"mcp-name"

JSON_TYPE = "application/json"
JSON_RANGES = frozenset({JSON_TYPE, "application/*", "*/*"})
ACCEPTED = 202
OK = 200
# The HTTP status of a JSON-RPC error; other codes use 200.
STATUSES = {INVALID_PARAMS: BAD_REQUEST_STATUS, METHOD_NOT_FOUND: 404}
# In the handshake era only these have a status other than 200.
ALWAYS_REFUSED = frozenset({PARSE_ERROR, INVALID_REQUEST, protocol.HEADER_MISMATCH, protocol.UNSUPPORTED_VERSION})
# The messages of these errors may repeat a method or a tool's name.
REPEATS_THE_CALLER = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND})
# A header value that cannot be written in plain ASCII is sent as Base64 between these.
BASE64_PREFIX, BASE64_SUFFIX = "=?base64?", "?="

# At most this many servers are cached, one for each query.
SERVERS_CACHED_MAX = 32

# The parameter that NAME_HEADER repeats, by method.
_NAMED_BY = {protocol.TOOLS_CALL: "name", protocol.RESOURCES_READ: "uri"}


@dataclass(frozen=True, slots=True)
class DaemonServices:
    """The services that the routes use."""

    fold: FoldService
    resolvers: Resolvers
    buckets: Buckets
    metrics: Metrics
    # Redacts secrets in a text that repeats a caller's input.
    redact: Callable[[str], str]
    tracer: Tracer | None = None


class McpEndpoint:
    """MCP over Streamable HTTP, without sessions and streams; every protocol version."""

    def __init__(self, tools: Sequence[Tool], services: DaemonServices) -> None:
        self._tools, self._services = tools, services
        self._server_for = lru_cache(SERVERS_CACHED_MAX)(self._make_server)

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        """Answer one POST. Every message counts for the owner's rate limit."""
        exchange: HttpExchange = scope[EXCHANGE]
        wait_s = self._services.buckets.take(scope[OWNER], time.monotonic())
        _check_media_types(exchange)
        request: RpcRequest | None = None
        request_id = None
        try:
            try:
                request = parse_request(exchange.take_body())
                request_id = request.id
            except InvalidMessage as error:
                request_id = error.request_id
                # Beyond the rate limit every message gets the error for that, also one that cannot be parsed.
                if not wait_s:
                    raise
            if request is None or wait_s:
                raise await self._rate_limit_error(exchange, request)
            check_routing_headers(exchange, request)
            if request.is_notification:
                await exchange.respond(ACCEPTED, b"")
                return
            answer = self._server_for(scope["query_string"]).answer(request)
            if isinstance(answer, protocol.McpToolCall):
                answer = protocol.encode_tool_result(answer, await self._run(exchange, answer))
        except RequestError as error:
            _set_state_header(exchange, error)
            await exchange.respond(_choose_status(exchange, request, error), self._encode_error(request_id, error))
        else:
            await exchange.respond(OK, answer)

    def _make_server(self, query: bytes) -> protocol.McpServer:
        """The server with all tools, or with those that `?tools=` names: a client may want fewer definitions."""
        names = ",".join(parse_qs(query.decode("latin-1"), keep_blank_values=True).get("tools", ()))
        return McpServer(choose_tools(self._tools, names) if names else self._tools)

    async def _run(self, exchange: HttpExchange, call: protocol.McpToolCall) -> ToolResult:
        """Run a tool and count the call; log the reason of a failure."""
        services = self._services
        started_s = time.monotonic()
        tool, scope = call.tool, exchange.scope
        outcome: ToolResult | RequestError
        with tool_span(services.tracer) as span:
            try:
                if isinstance(tool, FoldTool):
                    outcome = await run_fold_tool(tool, services.fold, caller_of(scope, call.meta), call.arguments)
                else:
                    outcome = await services.resolvers.call(tool.name, call.arguments)
            except FoldError as problem:
                # The session's name or the operation id is invalid.
                outcome = await to_request_error(problem, services.fold, Caller(scope[OWNER]), {})
            except RequestError as error:
                outcome = error
            span.record_tool(tool.name, outcome.kind or "ok")
        services.metrics.tool_call(tool.name, outcome.kind or "ok", time.monotonic() - started_s)
        if outcome.reason:
            # The reason of a resolve tool quotes its arguments, which may contain a secret.
            reason = outcome.reason if isinstance(tool, FoldTool) else outcome.kind
            log("tool.failed", "warning", tool=tool.name, reason=reason)
        if isinstance(outcome, RequestError):
            raise outcome
        _set_state_header(exchange, outcome)
        return outcome

    async def _rate_limit_error(self, exchange: HttpExchange, request: RpcRequest | None) -> RequestError:
        """The error of a call beyond the rate limit, with the state of its session."""
        services = self._services
        services.metrics.refusals(LimitReached.code).inc()
        per_second = int(services.buckets.per_second)
        problem = LimitReached(CALLS_PER_SECOND, per_second, "wait, then call again")
        params = request.params if request else None
        arguments = params.get("arguments") if isinstance(params, dict) else None
        try:
            caller = caller_of(exchange.scope)._replace(operation_id=None)
        except FoldError:
            caller = Caller(exchange.scope[OWNER])
        return await to_request_error(problem, services.fold, caller, arguments if isinstance(arguments, dict) else {})

    def _encode_error(self, request_id: str | int | None, error: RequestError) -> bytes:
        """Encode an error. Its message is redacted, because it may repeat a method, a tool's name or a version."""
        services = self._services
        if error.kind == protocol.UNKNOWN_TOOL_KIND:
            services.metrics.tool_call(UNKNOWN_TOOL, protocol.UNKNOWN_TOOL_KIND, 0.0)
            with tool_span(services.tracer) as span:
                span.record_tool(UNKNOWN_TOOL, protocol.UNKNOWN_TOOL_KIND)
        if error.code in REPEATS_THE_CALLER:
            error.message = services.redact(error.message)
        if error.code == protocol.UNSUPPORTED_VERSION and error.data is not None:
            error.data = {**error.data, "requested": services.redact(str(error.data["requested"]))}
        return encode_error(request_id, error)


def _set_state_header(exchange: HttpExchange, outcome: ToolResult | RequestError) -> None:
    """Put the state of the call's session into the response's header; without one, it stays as it is."""
    if outcome.state is not None:
        exchange.state = encode(outcome.state)


def caller_of(scope: Scope, meta: Mapping[str, object] | None = None) -> Caller:
    """The caller of a request, by its token, its headers and its `_meta`."""
    exchange: HttpExchange = scope[EXCHANGE]
    return caller_from(
        scope[OWNER],
        meta or {},
        session=_single_value(exchange, SESSION_HEADER),
        operation_id=_single_value(exchange, OPERATION_HEADER),
        run=scope[RUN],
    )


def _single_value(exchange: HttpExchange, name: bytes) -> str | None:
    values = exchange.header_values(name)
    if len(values) > 1:
        raise ArgumentInvalid(name.decode(), "must be given once")
    try:
        return values[0].encode("latin-1").decode("utf-8") if values else None
    except UnicodeDecodeError:
        raise ArgumentInvalid(name.decode(), "must be UTF-8") from None


def _check_media_types(exchange: HttpExchange) -> None:
    if _media_types(exchange, b"content-type") != [JSON_TYPE]:
        raise RequestError(BAD_REQUEST_STATUS, "bad_request", f"Content-Type must be {JSON_TYPE}.")
    # A client that does not say what it accepts accepts everything.
    if exchange.header_values(b"accept") and JSON_RANGES.isdisjoint(_media_types(exchange, b"accept")):
        raise RequestError(406, "not_acceptable", f"Accept must allow {JSON_TYPE}.")


def _media_types(exchange: HttpExchange, header: bytes) -> list[str]:
    """The media types that a header lists, without parameters."""
    values = ",".join(exchange.header_values(header)).split(",")
    return [value.partition(";")[0].strip().lower() for value in values]


def check_routing_headers(exchange: HttpExchange, request: RpcRequest) -> None:
    """Check the headers that repeat a part of the body, so that a proxy on the way can trust them.

    `initialize` agrees on a version by its body alone. A notification has no envelope.
    """
    if protocol.is_initialize(request):
        return
    for header in (VERSION_HEADER, METHOD_HEADER, NAME_HEADER):
        if len(exchange.header_values(header)) > 1:
            raise _header_mismatch(header, "appears more than once")
    version = next(iter(exchange.header_values(VERSION_HEADER)), None)
    if request.is_notification or not protocol.has_envelope(request):
        _check_version(version, request)
        return
    # The protocol core refuses values that are not strings.
    claimed = request.params["_meta"][protocol.META_VERSION]
    if isinstance(claimed, str) and version != claimed:
        raise _header_mismatch(VERSION_HEADER, "does not match the version in params._meta")
    if _decode_header(exchange.header_values(METHOD_HEADER)) != request.method:
        raise _header_mismatch(METHOD_HEADER, "does not match the method")
    member = _NAMED_BY.get(request.method)
    name = request.params.get(member) if member else None
    if isinstance(name, str) and _decode_header(exchange.header_values(NAME_HEADER)) != name:
        raise _header_mismatch(NAME_HEADER, f"does not match params.{member}")


def _check_version(version: str | None, request: RpcRequest) -> None:
    """Check the version of a message without an envelope. A notification needs none."""
    if version is None or version in protocol.HANDSHAKE_VERSIONS:
        return
    if version not in protocol.STATELESS_VERSIONS:
        raise protocol.unsupported_version(version, (*protocol.HANDSHAKE_VERSIONS, *protocol.STATELESS_VERSIONS))
    if not request.is_notification:
        raise protocol.invalid_params(f"params._meta lacks {protocol.META_VERSION}")


def _header_mismatch(header: bytes, problem: str) -> RequestError:
    message = f"The header {header.decode()} {problem}"
    return RequestError(BAD_REQUEST_STATUS, "header_mismatch", message, code=protocol.HEADER_MISMATCH)


def _decode_header(values: list[str]) -> str | None:
    """The value of a header, which may be Base64; None if it is missing or cannot be decoded."""
    value = values[0] if values else None
    if value is None or not (value.startswith(BASE64_PREFIX) and value.endswith(BASE64_SUFFIX)):
        return value
    encoded = value[len(BASE64_PREFIX) : -len(BASE64_SUFFIX)]
    try:
        decoded = base64.b64decode(encoded, validate=True)
        # Only the canonical form of Base64 is accepted.
        return decoded.decode("utf-8") if base64.b64encode(decoded).decode("ascii") == encoded else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _choose_status(exchange: HttpExchange, request: RpcRequest | None, error: RequestError) -> int:
    if error.code in ALWAYS_REFUSED:
        return BAD_REQUEST_STATUS
    version = next(iter(exchange.header_values(VERSION_HEADER)), None)
    is_without_envelope = request is not None and not protocol.has_envelope(request)
    is_handshake_era = is_without_envelope and version in (None, *protocol.HANDSHAKE_VERSIONS)
    return OK if is_handshake_era else STATUSES.get(error.code, OK)
