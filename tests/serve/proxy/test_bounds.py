"""Limits of a proxied request: timeouts, sizes and counts. Guard and proxy run in this process, with small limits."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import httpx2
import pytest

from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.store import SessionKey
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.serve.http.capacity import RequestLimits
from contextfold.serve.http.exchange import Message, Receive, Scope, Send
from contextfold.serve.http.guard import Buckets, Guard, HostRule
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.proxy import endpoint, folding, proxied_request, session_reports, upstream
from contextfold.settings import ProxySettings, Upstream
from tests.serve.proxy.raw_upstream import WAIT_S, RawRequest, RawUpstream, Wire, answer_ok
from tests.support.temporary_store import TemporaryStore

MESSAGES = "/proxy/anthropic/v1/messages"
OTHER = "/proxy/openai/v1/x"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: "
HELLO = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'


class GuardedProxy:
    """A guard around a proxy, and the provider that the proxy forwards to."""

    def __init__(
        self, store: TemporaryStore | None = None, *, proxy_options: dict[str, Any] | None = None, **limits: Any
    ) -> None:
        self.upstream = RawUpstream()
        self.metrics = Metrics([])
        self.fold = FoldService(store or TemporaryStore(), standard_scrubber())
        provider = Upstream(self.upstream.url)
        self.proxy = endpoint.Proxy(
            self.fold, self.metrics, ProxySettings(provider, provider, 1 << 20, provider), **(proxy_options or {})
        )
        self.guard = Guard(
            self._app,
            hosts=HostRule("127.0.0.1"),
            metrics=self.metrics,
            buckets=Buckets(1000, 1000),
            limits=RequestLimits(**limits),
        )

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self.proxy.routes():
            if scope["path"].startswith(route.path.partition("{")[0]):
                await route.app(scope, receive, send)

    def close(self) -> None:
        self.upstream.close()


class Client:
    """One request as the server passes it to the guard. The client stays connected until the test ends it."""

    def __init__(self, *parts: bytes, path: str = MESSAGES, is_whole: bool = True) -> None:
        headers = [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")]
        self.scope: Scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
        self.scope |= {"query_string": b"", "headers": headers}
        self.gone, self.started = asyncio.Event(), asyncio.Event()
        self.sent: list[Message] = []
        self._parts, self._is_whole = [*parts], is_whole

    async def receive(self) -> Message:
        if self._parts:
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts) or not self._is_whole}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.started.set()

    async def call(self, guarded: GuardedProxy) -> Client:
        async with asyncio.timeout(WAIT_S):
            await guarded.guard(self.scope, self.receive, self.send)
        assert guarded.guard.capacity.requests.total == 0
        return self

    @property
    def error(self) -> tuple[int, str]:
        status, body = self.sent[0]["status"], self.sent[1]["body"]
        return status, json.loads(body)["error"]["data"]["kind"]

    @property
    def receipt(self) -> Any:
        return json.loads(dict(self.sent[0]["headers"])[b"x-context-fold"])

    @property
    def is_complete(self) -> bool:
        return not self.sent[-1].get("more_body", True)


@pytest.fixture
def guarded() -> Iterator[GuardedProxy]:
    with closing(GuardedProxy()) as guarded:
        yield guarded


def run(scenario: Callable[[], Awaitable[None]], guarded: GuardedProxy) -> None:
    async def main() -> None:
        try:
            await scenario()
        finally:
            await guarded.proxy.close()
        assert (guarded.guard.capacity.proxied.total, guarded.guard.capacity.proxied.by_owner) == (0, {})

    asyncio.run(main())


def silent(_: RawRequest, wire: Wire) -> None:
    wire.is_closed()


def test_an_upstream_that_does_not_read_the_request_is_a_gateway_timeout(
    guarded: GuardedProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "WRITE_S", 0.2)
    test_over = threading.Event()

    def script(_request: RawRequest, _wire: Wire) -> None:
        test_over.wait(WAIT_S)

    guarded.upstream.script_of_head = script

    async def scenario() -> None:
        client = await Client(*[b"x" * (1 << 20)] * 16, path=OTHER).call(guarded)
        assert client.error == (504, "upstream_timeout")
        test_over.set()

    guarded.guard.capacity.limits = RequestLimits(proxied_body_bytes=1 << 30)
    run(scenario, guarded)


def test_a_connection_is_used_again_after_a_whole_response_by_its_owner_alone(guarded: GuardedProxy) -> None:
    """What a broken provider sends behind a response may reach a later request, but never another owner's."""
    provider = upstream.Provider(Upstream(guarded.upstream.url))

    async def ask(owner: str, *, to_the_end: bool = True) -> int:
        headers = [(b"content-length", b"0")]
        response = await provider.send(owner, "POST", b"v1/messages", headers, httpx2.ByteStream(b""))
        async for _ in response.parts():
            if not to_the_end:
                break
        await response.close()
        return guarded.upstream.next().connection

    async def scenario() -> None:
        first, again, others = await ask("ann"), await ask("ann"), await ask("bob")
        assert first == again != others
        # These bytes are another response for whoever uses the connection next.
        guarded.upstream.script = lambda _, wire: wire.send(OK + b"2\r\n\r\n{}" + OK + b"6\r\n\r\nstolen")
        assert await ask("ann") == first
        guarded.upstream.script = answer_ok
        assert await ask("bob") == others
        # A response that is not read to its end closes its connection.
        guarded.upstream.script = lambda _, wire: wire.send(OK + b"9\r\n\r\nhalf")
        assert await ask("bob", to_the_end=False) == others
        guarded.upstream.script = answer_ok
        assert await ask("bob") not in (first, others)
        await provider.close()

    run(scenario, guarded)


@pytest.mark.parametrize("path", [MESSAGES, OTHER])
def test_a_body_that_does_not_arrive_is_a_timeout(path: str) -> None:
    with closing(GuardedProxy(body_timeout_s=0.05)) as guarded:

        async def scenario() -> None:
            client = await Client(b"{", path=path, is_whole=False).call(guarded)
            assert client.error == (408, "body_timeout")

        run(scenario, guarded)


def test_proxied_requests_are_limited_apart_from_others() -> None:
    with closing(GuardedProxy(proxied=1, requests=1, streams=1)) as guarded:
        received, may_respond = threading.Event(), threading.Event()

        def script(_: RawRequest, wire: Wire) -> None:
            received.set()
            assert may_respond.wait(WAIT_S)
            wire.answer()

        guarded.upstream.script = script

        async def scenario() -> None:
            first = Client(HELLO)
            waiting = asyncio.create_task(first.call(guarded))
            await asyncio.to_thread(received.wait, WAIT_S)
            second = await Client(HELLO).call(guarded)
            assert second.error == (503, "busy")
            may_respond.set()
            await waiting
            assert first.sent[0]["status"] == 200
            assert (await Client(HELLO).call(guarded)).sent[0]["status"] == 200

        run(scenario, guarded)


def test_a_request_is_forwarded_unchanged_when_too_many_bytes_are_being_folded(
    guarded: GuardedProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxied_request, "FOLDED_ALL_MAX_BYTES", len(HELLO) - 1)

    async def scenario() -> None:
        client = await Client(HELLO[:20], HELLO[20:]).call(guarded)
        assert (client.sent[0]["status"], client.receipt["reason"]) == (200, "busy")
        assert guarded.upstream.next().body == HELLO

    run(scenario, guarded)


def test_no_owner_can_use_the_whole_byte_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxied_request, "FOLDED_OWNER_MAX_BYTES", len(HELLO))
    budget, size = proxied_request.ByteBudget(), len(HELLO)
    assert (budget.reserve("alice", size), budget.reserve("alice", 1), budget.reserve("bob", size)) == (
        *(True, False),
        True,
    )
    budget.release("alice", size)
    assert budget.reserve("alice", 1)
    budget.release("alice", 1)
    budget.release("bob", size)
    assert not budget.by_owner


def test_the_byte_budget_is_released_however_a_request_ends(
    guarded: GuardedProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxied_request, "FOLDED_ALL_MAX_BYTES", len(HELLO))

    async def scenario() -> None:
        guarded.guard.capacity.limits = RequestLimits(body_timeout_s=0.05)
        assert (await Client(HELLO, is_whole=False).call(guarded)).error == (408, "body_timeout")
        guarded.guard.capacity.limits = RequestLimits()
        guarded.upstream.script = lambda _, wire: wire.socket.shutdown(2)
        assert (await Client(HELLO).call(guarded)).error == (502, "upstream_broken")
        received = threading.Event()

        def script(request: RawRequest, wire: Wire) -> None:
            received.set()
            silent(request, wire)

        guarded.upstream.script = script
        leaving = Client(HELLO)
        call = asyncio.create_task(leaving.call(guarded))
        await asyncio.to_thread(received.wait, WAIT_S)
        leaving.gone.set()
        await call
        assert leaving.sent == []
        guarded.upstream.script = lambda _, wire: wire.answer()
        assert (await Client(HELLO).call(guarded)).receipt["reason"] is None

    run(scenario, guarded)


def test_only_the_reported_part_of_a_request_that_was_sent_uses_the_byte_budget(
    guarded: GuardedProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxied_request, "FOLDED_ALL_MAX_BYTES", 2 * len(HELLO) - 1)
    received, may_respond = threading.Event(), threading.Event()

    def script(_: RawRequest, wire: Wire) -> None:
        if not received.is_set():
            received.set()
            assert may_respond.wait(WAIT_S)
        wire.answer()

    guarded.upstream.script = script

    async def scenario() -> None:
        thinking = asyncio.create_task(Client(HELLO).call(guarded))
        await asyncio.to_thread(received.wait, WAIT_S)
        # The report is prepared while the provider works.
        while guarded.proxy._folding.budget.by_owner.total() >= len(HELLO):
            await asyncio.sleep(0)
        assert (await Client(HELLO).call(guarded)).receipt["reason"] is None
        may_respond.set()
        assert (await thinking).receipt["reason"] is None

    run(scenario, guarded)


class SlowStore(TemporaryStore):
    """Blocks every search for a session until the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()

    async def find(self, owner: str, session_id: str) -> SessionKey | None:
        await self.may_answer.wait()
        return await super().find(owner, session_id)


def test_requests_that_wait_for_their_session_are_bounded(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ids = '{"session_id":"sess_0123456789abcdef"}'
    call = {"type": "tool_use", "id": "1", "name": "context_branch_status", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": ids}
    turns: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    turns += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    body = json.dumps({"messages": turns}).encode()
    monkeypatch.setattr(session_reports, "WAITING_MAX_BYTES", 2 * len(body))
    store = SlowStore()
    with closing(GuardedProxy(store)) as guarded:

        async def scenario() -> None:
            for _ in range(3):
                assert (await Client(body).call(guarded)).receipt["reason"] is None
            assert capfd.readouterr().err.count("proxy.receipt_lost") == 1
            store.may_answer.set()

        run(scenario, guarded)


def test_only_the_last_messages_of_a_long_request_are_recorded(
    guarded: GuardedProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "Fine."},
        {"role": "user", "content": "last"},
    ]
    last = json.dumps(messages[-1], separators=(",", ":"))
    monkeypatch.setattr(session_reports, "TEXTS_MAX_CHARS", len(last))

    async def scenario() -> None:
        client = Client(json.dumps({"messages": messages}).encode())
        client.scope["headers"] += [(b"x-context-project", b"/p")]
        await client.call(guarded)
        await guarded.fold.settle_reports("local")
        ((key, session_id, _),) = await guarded.fold.store.sessions("local", limit=2)
        page: Any = await guarded.fold.page(key, None, session_id, 1_000, (0, 0))
        assert [entry["text"] for entry in page["entries"]] == [f"[2 earlier messages were not handed over]\n{last}"]

    run(scenario, guarded)


def test_an_exception_in_folding_breaks_no_request(guarded: GuardedProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_body: bytes, _api: str) -> None:
        raise RecursionError

    monkeypatch.setattr(folding, "parse_request", broken)

    async def scenario() -> None:
        client = await Client(HELLO).call(guarded)
        assert (client.sent[0]["status"], client.receipt["reason"]) == (200, "failed")
        assert guarded.upstream.next().body == HELLO

    run(scenario, guarded)
