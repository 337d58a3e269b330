"""`/proxy/…`: forwards an agent's requests to its model, and leaves folded work out of them. Knows HTTP.

    /proxy/anthropic/X      →  the Anthropic upstream's X      folds `POST v1/messages` and `…/count_tokens`
    /proxy/openai/v1/X      →  the OpenAI upstream's X         folds `POST chat/completions` and `POST responses…`
    /proxy/gemini/X         →  the Gemini upstream's X         folds `POST …/models/M:generateContent` and variants

A request that is folded is first read completely, because its branches are not known before (`serve.proxy.folding`).
All other bodies are streamed in both directions. The upstream's response is not changed. If there is none, the proxy
responds with an error of its own; an incomplete response is cut off, as it would be without the proxy.
`serve.proxy.upstream` sends requests to the provider; `serve.proxy.session_reports` reports them to their sessions. API
keys are forwarded like any other header and never read.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.routing import Route

from contextfold.fold import messages
from contextfold.fold.messages import Format, Receipt
from contextfold.fold.messages.request import KEPT_ELSEWHERE
from contextfold.fold.sent_request import RequestReport
from contextfold.fold.service.conversation_records import FRESH_S, ConversationRecords
from contextfold.fold.service.fold_service import FoldService
from contextfold.serve.http.exchange import AS_IT_CAME, ClientGone, Headers, Receive, Scope, Send
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.proxy.folding import REASONS, RequestFolding
from contextfold.serve.proxy.proxied_request import ProxiedRequest
from contextfold.serve.proxy.response_reader import ResponseReader
from contextfold.serve.proxy.session_reports import SessionReports
from contextfold.serve.proxy.upstream import (
    BROKEN,
    BUSY,
    TIMEOUT,
    UNREACHABLE,
    Provider,
    UpstreamFailed,
    UpstreamResponse,
)
from contextfold.serve.request_error import RequestError, busy
from contextfold.settings import ProxySettings

FOLD_HEADER = b"x-context-fold"
# The time for a whole request and its response.
EXCHANGE_S = 3600.0
# A path is percent-decoded this many times to find dots.
DECODED_TIMES = 4
OK_MIN, OK_MAX = 200, 299


class ProviderPaths(NamedTuple):
    # The prefix of the provider's paths here.
    prefix: str
    # The format of the messages in a `POST` to the paths that are folded. The groups of a pattern are the model, and
    # what only a call has that counts tokens.
    folded: Mapping[re.Pattern[bytes], Format]
    # For the reference.
    purpose: str
    # Paths whose requests name a history that the provider stores. They pass unread, with this reason in the receipt.
    stored: re.Pattern[bytes] | None = None


_PATHS = {
    "anthropic": ProviderPaths(
        "/proxy/anthropic/",
        {re.compile(rb"v1/messages(?P<count>/count_tokens)?"): "anthropic"},
        "Forwards to the Anthropic upstream; leaves folded work out of `POST v1/messages`.",
    ),
    "openai": ProviderPaths(
        "/proxy/openai/v1/",
        {
            re.compile(rb"chat/completions"): "openai-chat",
            # Compaction reads the same history, so it is sent as it was sent before.
            re.compile(rb"responses(?:/compact|(?P<count>/input_tokens))?"): "openai-responses",
        },
        "Forwards to the OpenAI upstream; leaves folded work out of `POST chat/completions` and `responses`.",
    ),
    "gemini": ProviderPaths(
        "/proxy/gemini/",
        {
            re.compile(
                rb"v1[a-z0-9]{0,16}/models/(?P<model>[^/:]{1,256}):"
                rb"(?:generateContent|streamGenerateContent|(?P<count>countTokens))"
            ): "gemini"
        },
        "Forwards to the Gemini upstream; leaves folded work out of `POST` to a model's `generateContent`.",
        re.compile(rb"v1[a-z0-9]{0,16}/interactions"),
    ),
}


# The status and the message of the error for each failure.
_FAILURES = {
    TIMEOUT: (504, "The {0} upstream did not answer in time; try again."),
    UNREACHABLE: (
        502,
        "The {0} upstream cannot be reached from the daemon; check the network, or its setting {0}_upstream.",
    ),
    BROKEN: (502, "The {0} upstream gave no answer that can be passed on, or hung up before it; try again."),
}


class Proxy:
    """An endpoint for each provider. Without `records`, those of conversations are in the store of sessions."""

    def __init__(
        self,
        fold: FoldService,
        metrics: Metrics,
        settings: ProxySettings,
        *,
        records: ConversationRecords | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        metrics.may_fail_open((*messages.REASONS, *REASONS))
        self._reports = SessionReports(fold)
        # A lost prefix can make another daemon leave results out at any time, so what it stored is read each time.
        fresh_s = 0.0 if settings.shares_store else min(FRESH_S, settings.prompt_cache_s or FRESH_S)
        records = records or ConversationRecords(fold.store, clock=clock, fresh_s=fresh_s)
        self._folding = RequestFolding(
            metrics,
            settings,
            records,
            fold.scrub,
            origin=self._reports.origin,
            clock=clock,
            prices=fold.policy.ledger_prices,
        )
        fold.request_folding = self._folding
        upstreams = {"anthropic": settings.anthropic, "openai": settings.openai, "gemini": settings.gemini}
        self._endpoints = [
            ProviderEndpoint(name, Provider(upstream), self._folding, self._reports, metrics)
            for name, upstream in upstreams.items()
        ]

    def routes(self) -> list[Route]:
        return [Route(f"{endpoint.prefix}{{path:path}}", endpoint=endpoint) for endpoint in self._endpoints]

    async def close(self) -> None:
        await self._reports.close()
        await self._folding.close()
        for endpoint in self._endpoints:
            await endpoint.provider.close()


class ProviderEndpoint:
    """Forwards requests to one provider."""

    def __init__(
        self, name: str, provider: Provider, folding: RequestFolding, reports: SessionReports, metrics: Metrics
    ) -> None:
        self.provider, self._folding, self._reports, self._metrics = provider, folding, reports, metrics
        self._name, self._paths = name, _PATHS[name]
        self.prefix, self.purpose = self._paths.prefix, self._paths.purpose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _path_below(self.prefix, scope["raw_path"])
        if scope["method"] == "CONNECT":
            raise RequestError(
                405, "method_not_allowed", "No tunnel is made here; ask for what you want of the upstream."
            )
        if self.provider.leads_back(scope["headers"]):
            raise RequestError(
                508, "proxy_loop", "This upstream leads back to this daemon; give the upstream's setting another URL."
            )
        query = scope["query_string"]
        target = path + (b"?" + query if query else b"")
        request = ProxiedRequest(scope, target, receive, self._folding.budget)
        if scope["method"] == "POST":
            if self._paths.stored is not None and self._paths.stored.fullmatch(path):
                request.receipt = Receipt(0, 0, reason=KEPT_ELSEWHERE)
            for pattern, format in self._paths.folded.items():
                if match := pattern.fullmatch(path):
                    named = match.groupdict(b"")
                    request.format = format
                    request.model = named.get("model", b"").decode("latin-1")
                    request.is_count = bool(named.get("count"))
        try:
            async with asyncio.timeout(EXCHANGE_S):
                if request.format is not None:
                    await self._folding.fold(request, request.format)
                observer = ResponseObserver(request, self._folding, self._reports)
                try:
                    await _run_while_connected(request, receive, self._exchange(request, send, observer))
                finally:
                    observer.close()
                    self._folding.record_end(request)
        except TimeoutError:
            self._reports.count_failure(request)
            raise self._failure(UpstreamFailed(TIMEOUT, "Exchange"), has_begun=False) from None
        finally:
            request.body.release()

    async def _exchange(self, request: ProxiedRequest, send: Send, observer: ResponseObserver) -> None:
        try:
            response = await self.provider.send(
                request.owner, request.method, request.target, request.headers, request.body
            )
        except UpstreamFailed as failure:
            self._reports.count_failure(request)
            raise self._failure(failure, has_begun=False) from None
        # An upstream may respond before it has read the whole request. Then it does not read the rest.
        request.body.is_read.set()
        try:
            headers = observer.begin(response)
            await send({"type": "http.response.start", "status": response.status, "headers": headers, AS_IT_CAME: True})
            async for part in response.parts():
                observer.feed(part)
                await send({"type": "http.response.body", "body": part, "more_body": True})
            observer.report()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except UpstreamFailed as failure:
            self._reports.count_failure(request)
            raise self._failure(failure, has_begun=True) from None
        finally:
            await response.close()

    def _failure(self, failure: UpstreamFailed, *, has_begun: bool) -> RequestError:
        """The error for the client. If the response has begun, it is cut off and the client does not get the error."""
        kind = "cut" if has_begun else failure.kind
        self._metrics.upstream_errors(self._name, kind).inc()
        log("proxy.upstream_failed", "warning", upstream=self._name, kind=kind, exception=failure.exception)
        if failure.kind == BUSY:
            return busy(f"All connections to the {self._name} upstream are in use; try again in a second.")
        status, text = _FAILURES[failure.kind]
        return RequestError(status, f"upstream_{failure.kind}", text.format(self._name))


class ResponseObserver:
    """Reads the response while it is forwarded, and reports the request to its session at the end."""

    def __init__(self, request: ProxiedRequest, folding: RequestFolding, reports: SessionReports) -> None:
        self._request, self._folding, self._reports = request, folding, reports
        self._reader: ResponseReader | None = None
        # The bytes of the response that are still to come; None if its length is not known.
        self._remaining_bytes: int | None = None
        # Makes the report, except for what the response shows, while the provider answers.
        self._preparing: asyncio.Task[RequestReport | None] | None = None
        projection = request.body.projection
        self._our_tools = projection.our_tools if projection else frozenset[str]()
        self._opening_tokens = projection.opening_tokens if projection else 0
        if projection is not None and request.is_count:
            request.body.keep_for_report(0)
        elif projection is not None:
            self._preparing = asyncio.get_running_loop().create_task(reports.prepare(request, projection))

    def begin(self, response: UpstreamResponse) -> Headers:
        """The response's headers, with that of the proxy if the request was to be folded."""
        if self._request.format is None and not self._request.receipt.reason:
            return response.headers
        if response.status > OK_MAX:
            self._reports.count_failure(self._request)
        headers = [header for header in response.headers if header[0].lower() != FOLD_HEADER]
        if self._preparing is not None and self._request.format is not None and OK_MIN <= response.status <= OK_MAX:
            named = {name.lower(): value.decode("latin-1") for name, value in headers}
            content_type, encoding = named.get(b"content-type", ""), named.get(b"content-encoding", "identity")
            self._reader = ResponseReader(self._request.format, content_type, encoding, self._our_tools)
            length = named.get(b"content-length", "")
            self._remaining_bytes = int(length) if length.isdecimal() else None
        receipt = json.dumps(self._request.receipt.header_fields(), separators=(",", ":"))
        return [*headers, (FOLD_HEADER, receipt.encode("ascii"))]

    def feed(self, part: bytes) -> None:
        if self._reader is None:
            return
        self._reader.feed(part)
        # The host makes a call as soon as it has read it, so it is noted before.
        self._reports.note_calls(self._request, self._reader.take_own_calls())
        if self._remaining_bytes is not None:
            self._remaining_bytes -= len(part)
            # After the last part, a client may ask for the report at once.
            if self._remaining_bytes <= 0:
                self.report()

    def report(self) -> None:
        """Report the request with what its response shows, once."""
        if self._reader is not None and self._preparing is not None:
            response = self._reader.facts()
            self._reports.note_calls(self._request, self._reader.take_own_calls())
            self._folding.note_usage(self._request, response.usage, self._opening_tokens)
            self._reports.report(self._request, self._preparing, response)
            self._reader = self._preparing = None

    def close(self) -> None:
        """Report the request, even if the response is incomplete: the provider charges for a response that has begun.

        Many clients also disconnect after the last event.
        """
        self.report()
        if self._preparing is not None:
            self._preparing.cancel()
            self._request.reported.cancel()


async def _run_while_connected(request: ProxiedRequest, receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Do the work; cancel it when the client disconnects."""

    async def wait_for_disconnect() -> None:
        await request.body.is_read.wait()
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientGone
        tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _path_below(prefix: str, raw_path: bytes) -> bytes:
    """The path for the upstream, unchanged. Refuses a path that could lead out of the upstream's base path."""
    begin = prefix.encode("ascii")
    path = raw_path.removeprefix(begin)
    decoded = path
    for _ in range(DECODED_TIMES):
        if not {b".", b".."}.isdisjoint(_segments(decoded)):
            break
        decoded, before = unquote_to_bytes(decoded), decoded
        if decoded == before:
            if raw_path.startswith(begin):
                return path
            break
    raise RequestError(
        400, "bad_request", "A path must not contain `.` or `..` segments, encoded or not, nor needless encoding."
    )


def _segments(path: bytes) -> list[bytes]:
    return [segment.partition(b";")[0] for segment in path.replace(b"\\", b"/").split(b"/")]
