"""`/proxy/…`: an agent's requests to its model pass here, and what it folded is left out on the way. Knows HTTP.

    /proxy/anthropic/X      →  the Anthropic upstream's X      `POST v1/messages` and `…/count_tokens` are folded
    /proxy/openai/v1/X      →  the OpenAI upstream's X         `POST chat/completions` and `POST responses` are
    /proxy/gemini/X         →  the Gemini upstream's X         `POST …/models/M:generateContent` and its like are

A request that is folded is first read whole, because its branches cannot be known sooner (`serve.proxy.forwarding`).
Everything else is streamed part by part both ways. A response is the upstream's own, to the byte; if none comes
the proxy answers with an error of its own, and one that does not end is cut off, as it would be without the proxy.
`serve.proxy.upstream` sends requests to the provider; `serve.proxy.session_reports` tells the session about them. API
keys are forwarded like any other header and never read.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine
from urllib.parse import unquote_to_bytes

from starlette.routing import Route

from contextfold.fold import messages
from contextfold.fold.left_out_results import LeftOutResults, LeftOutResultsInMemory
from contextfold.fold.service.fold_service import FoldService
from contextfold.serve.http.exchange import AS_IT_CAME, ClientGone, Headers, Receive, Scope, Send
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.proxy.forwarding import REASONS, Folding, Held, Passing, ProxiedCall, ResultFolding
from contextfold.serve.proxy.session_reports import Draft, Receipts
from contextfold.serve.proxy.upstream import TIMEOUT, Answer, Provider, UpstreamFailed
from contextfold.serve.proxy.usage import UsageReader
from contextfold.serve.request_error import RequestError, busy
from contextfold.settings import ProxySettings

ANTHROPIC_PATH, OPENAI_PATH, GEMINI_PATH = "/proxy/anthropic/", "/proxy/openai/v1/", "/proxy/gemini/"
FOLD_HEADER = b"x-context-fold"
EXCHANGE_S = 3600.0  # for all of a request and its answer
DECODED_TIMES = 4  # that a path's percent signs are looked behind
OK_LEAST, OK_MOST = 200, 299

_ANTHROPIC_CALLS = {
    b"v1/messages": ProxiedCall("anthropic"),
    b"v1/messages/count_tokens": ProxiedCall("anthropic", is_count=True),
}
_OPENAI_CALLS = {b"chat/completions": ProxiedCall("openai-chat"), b"responses": ProxiedCall("openai-responses")}
_GEMINI_CALL = re.compile(
    rb"v1[a-z0-9]{0,16}/models/([^/:]{1,256}):(generateContent|streamGenerateContent|countTokens)"
)


class Proxy:
    """`left_out` is where left-out results are stored. Without it none are left out: they could not be given back."""

    def __init__(
        self,
        fold: FoldService,
        metrics: Metrics,
        settings: ProxySettings,
        *,
        left_out: LeftOutResults | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        metrics.may_fail_open((*messages.REASONS, *REASONS))
        self._receipts = Receipts(fold)
        results = ResultFolding(
            LeftOutResultsInMemory() if left_out is None else left_out,
            fold.scrub,
            is_on=settings.folds_results and left_out is not None,
            prompt_cache_s=float(settings.prompt_cache_s) or None,
            clock=clock,
        )
        self._folding = Folding(metrics, results)
        self._endpoints = (
            _Anthropic(Provider(settings.anthropic), self._folding, self._receipts, metrics),
            _OpenAi(Provider(settings.openai), self._folding, self._receipts, metrics),
            _Gemini(Provider(settings.gemini), self._folding, self._receipts, metrics),
        )

    def routes(self) -> list[Route]:
        return [Route(f"{endpoint.prefix}{{path:path}}", endpoint=endpoint) for endpoint in self._endpoints]

    async def close(self) -> None:
        await self._receipts.close()
        await self._folding.close()
        for endpoint in self._endpoints:
            await endpoint.provider.close()


class _Endpoint:
    name = ""
    prefix = ""

    def proxied_call(self, path: bytes) -> ProxiedCall | None:
        """What a `POST` of this path asks for, if it is folded."""
        raise NotImplementedError

    def __init__(self, provider: Provider, folding: Folding, receipts: Receipts, metrics: Metrics) -> None:
        self.provider, self._folding, self._receipts, self._metrics = provider, folding, receipts, metrics

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
        passing = Passing(scope, path + (b"?" + query if query else b""), receive)
        call = self.proxied_call(path) if scope["method"] == "POST" else None
        try:
            async with asyncio.timeout(EXCHANGE_S):
                if call is None:
                    await _while_client_stays(passing, receive, self._exchange(passing, send, None))
                else:
                    await self._fold_and_pass(call, passing, receive, send)
        except TimeoutError:
            raise self._refusal(UpstreamFailed(TIMEOUT, "Exchange"), has_begun=False) from None

    async def _fold_and_pass(self, call: ProxiedCall, passing: Passing, receive: Receive, send: Send) -> None:
        held = await self._folding.fold(call, passing)
        try:
            reading = _Reading(call, held, self._receipts, passing)
            try:
                await _while_client_stays(passing, receive, self._exchange(passing, send, reading))
            finally:
                reading.close()
                self._folding.note(held, passing.owner)
        finally:
            held.release()

    async def _exchange(self, passing: Passing, send: Send, reading: _Reading | None) -> None:
        try:
            answer = await self.provider.ask(passing.method, passing.target, passing.headers, passing.body)
        except UpstreamFailed as failure:
            raise self._refusal(failure, has_begun=False) from None
        passing.incoming.is_over.set()  # an upstream may answer before it has heard all, and then hears no more
        try:
            headers = reading.begin(answer) if reading else answer.headers
            start = {"type": "http.response.start", "status": answer.status, "headers": headers, AS_IT_CAME: True}
            await send(start)
            async for part in answer.parts():
                if reading:
                    reading.feed(part)
                await send({"type": "http.response.body", "body": part, "more_body": True})
            if reading:
                reading.end()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except UpstreamFailed as failure:
            raise self._refusal(failure, has_begun=True) from None
        finally:
            await answer.close()

    def _refusal(self, failure: UpstreamFailed, *, has_begun: bool) -> RequestError:
        """What the client is told; where an answer has begun it can be told nothing, and is cut off."""
        kind = "cut" if has_begun else failure.kind
        self._metrics.upstream_error(self.name, kind)
        log("proxy.upstream_failed", "warning", upstream=self.name, kind=kind, exception=failure.exception)
        match failure.kind:
            case "busy":
                return busy(f"All connections to the {self.name} upstream are in use; try again in a second.")
            case "timeout":
                return RequestError(
                    504, "upstream_timeout", f"The {self.name} upstream did not answer in time; try again."
                )
            case "unreachable":
                return RequestError(
                    502,
                    "upstream_unreachable",
                    f"The {self.name} upstream cannot be reached from the daemon; check the network, or its setting "
                    f"{self.name}_upstream.",
                )
        return RequestError(
            502,
            "upstream_broken",
            f"The {self.name} upstream gave no answer that can be passed on, or hung up before it; try again.",
        )


class _Anthropic(_Endpoint):
    """Whatever the Anthropic upstream has; `POST v1/messages` goes there without what is folded."""

    name = "anthropic"
    prefix = ANTHROPIC_PATH

    def proxied_call(self, path: bytes) -> ProxiedCall | None:
        return _ANTHROPIC_CALLS.get(path)


class _OpenAi(_Endpoint):
    """Whatever the OpenAI upstream has; `POST chat/completions` and `responses` go there without what is folded."""

    name = "openai"
    prefix = OPENAI_PATH

    def proxied_call(self, path: bytes) -> ProxiedCall | None:
        return _OPENAI_CALLS.get(path)


class _Gemini(_Endpoint):
    """Whatever the Gemini upstream has; `POST` of a model's `generateContent` goes there without what is folded."""

    name = "gemini"
    prefix = GEMINI_PATH

    def proxied_call(self, path: bytes) -> ProxiedCall | None:
        match = _GEMINI_CALL.fullmatch(path)
        if match is None:
            return None
        return ProxiedCall("gemini", match[1].decode("latin-1"), is_count=match[2] == b"countTokens")


class _Reading:
    """Reads along while the model answers, and has the session told when it is done."""

    def __init__(self, call: ProxiedCall, held: Held, receipts: Receipts, passing: Passing) -> None:
        self._api, self._held, self._receipts = call.format, held, receipts
        self._usage: UsageReader | None = None
        self._left_bytes: int | None = None
        self._drafting: asyncio.Task[Draft | None] | None = None
        self._receipt = held.receipt
        if held.projection is not None and call.is_count:
            held.noted(0)
        elif held.projection is not None:
            draft = receipts.draft(
                passing.owner,
                passing.given,
                call.format,
                held.projection,
                conversation=held.conversation.id if held.conversation else "",
                kept_tokens=held.kept_tokens,
            )
            self._drafting = asyncio.get_running_loop().create_task(draft)
            self._drafting.add_done_callback(self._drafted)

    def _drafted(self, drafting: asyncio.Task[Draft | None]) -> None:
        draft = None if drafting.cancelled() else drafting.result()
        self._held.noted(draft.held_chars if draft else 0)

    def begin(self, answer: Answer) -> Headers:
        """The answer's headers, with our own."""
        headers = [header for header in answer.headers if header[0].lower() != FOLD_HEADER]
        if self._drafting is not None and OK_LEAST <= answer.status <= OK_MOST:
            named = {name.lower(): value.decode("latin-1") for name, value in headers}
            self._usage = UsageReader(
                self._api, named.get(b"content-type", ""), named.get(b"content-encoding", "identity")
            )
            length = named.get(b"content-length", "")
            self._left_bytes = int(length) if length.isdecimal() else None
        told = json.dumps(self._receipt.header_fields(), separators=(",", ":"))
        return [*headers, (FOLD_HEADER, told.encode("ascii"))]

    def feed(self, part: bytes) -> None:
        if self._usage is None:
            return
        self._usage.feed(part)
        if self._left_bytes is not None:
            self._left_bytes -= len(part)
            if self._left_bytes <= 0:  # whoever has this part has all, and may ask what became of it
                self.end()

    def end(self) -> None:
        """The answer is whole."""
        if self._usage is not None and self._drafting is not None:
            usage, own = self._usage.usage(), self._usage.own_output()
            self._receipts.tell(self._drafting, usage, self._held.size_bytes, own)
            self._usage = self._drafting = None

    def close(self) -> None:
        """However it ended: an answer that has begun is counted by the provider, and clients leave at its last word."""
        self.end()
        if self._drafting is not None:
            self._drafting.cancel()


async def _while_client_stays(passing: Passing, receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Do the work, and let it be as soon as the client is gone."""

    async def gone() -> None:
        await passing.incoming.is_over.wait()
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone())]
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
    """What is asked of the upstream, as it was written. Refuses what could lead out of the upstream's own path."""
    begin = prefix.encode("ascii")
    path = raw_path.removeprefix(begin)
    decoded = path
    for _ in range(DECODED_TIMES):
        if not {b".", b".."}.isdisjoint(_steps(decoded)):
            break
        decoded, before = unquote_to_bytes(decoded), decoded
        if decoded == before:
            if raw_path.startswith(begin):
                return path
            break
    raise RequestError(
        400, "bad_request", "A path must have no `.` or `..` in it, encoded or not, and be spelled plainly."
    )


def _steps(path: bytes) -> list[bytes]:
    return [step.partition(b";")[0] for step in path.replace(b"\\", b"/").split(b"/")]
