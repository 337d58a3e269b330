"""The bounds of a proxied request: times, sizes and numbers, all of them small; guard and proxy in one process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from contextfold.fold.ports.store import SessionKey
from contextfold.fold.service.fold_service import FoldService
from contextfold.scrub.standard import standard_scrubber
from contextfold.serve.http.exchange import Message, Receive, RequestLimits, Scope, Send
from contextfold.serve.http.guard import Guard
from contextfold.serve.http.limits import Buckets, HostRule, RateLimit
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.proxy import endpoint as proxy
from contextfold.serve.proxy import forwarding as passing
from contextfold.serve.proxy import session_reports as receipts
from contextfold.serve.proxy import upstream
from contextfold.settings import ProxySettings, Upstream
from contextfold.stores.memory import MemoryStore
from tests.serve.proxy.raw_upstream import WAIT_S, Asked, RawUpstream, Wire
from tests.support.clauses import covers

MESSAGES = "/proxy/anthropic/v1/messages"
OTHER = "/proxy/openai/v1/x"
HELLO = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'


class Place:
    """A guard around a proxy, and the provider that the proxy forwards to."""

    def __init__(
        self, store: MemoryStore | None = None, *, proxied: dict[str, Any] | None = None, **limits: Any
    ) -> None:
        self.upstream = RawUpstream()
        self.metrics = Metrics([])
        fold = FoldService(store or MemoryStore(), standard_scrubber())
        both = Upstream(self.upstream.url)
        self.proxy = proxy.Proxy(fold, self.metrics, ProxySettings(both, both, 1 << 20, both), **(proxied or {}))
        self.guard = Guard(
            self._app,
            hosts=HostRule("127.0.0.1"),
            metrics=self.metrics,
            buckets=Buckets(RateLimit(1000, 1000)),
            limits=RequestLimits(**limits),
        )

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self.proxy.routes():
            if scope["path"].startswith(route.path.partition("{")[0]):
                await route.app(scope, receive, send)

    def close(self) -> None:
        self.upstream.close()


class Client:
    """The server's side of one request: sends parts, and stays until the test ends it."""

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

    async def call(self, place: Place) -> Client:
        async with asyncio.timeout(WAIT_S):
            await place.guard(self.scope, self.receive, self.send)
        assert place.guard.capacity.in_flight == 0
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
def place() -> Iterator[Place]:
    with closing(Place()) as made:
        yield made


def run(scenario: Callable[[], Awaitable[None]], place: Place) -> None:
    async def main() -> None:
        try:
            await scenario()
        finally:
            await place.proxy.close()
        assert (place.guard.capacity.streams, place.guard.capacity.streams_of) == (0, {})

    asyncio.run(main())


def silent(_: Asked, wire: Wire) -> None:
    wire.is_closed()


@covers("proxy.md#bounds")
@pytest.mark.parametrize("path", [MESSAGES, OTHER])
def test_an_upstream_that_does_not_answer_in_time_is_a_gateway_timeout(
    place: Place, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "READ_S", 0.05)
    place.upstream.script = silent

    async def scenario() -> None:
        client = await Client(HELLO, path=path).call(place)
        assert client.error == (504, "upstream_timeout")

    run(scenario, place)


def test_an_upstream_that_stops_in_the_middle_is_cut_after_that_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "READ_S", 5.0)

    def script(_: Asked, wire: Wire) -> None:
        wire.begin("Content-Type: text/event-stream")
        wire.chunk(b"data: 1\n\n")
        wire.is_closed()

    place.upstream.script = script

    async def scenario() -> None:
        client = await Client(HELLO).call(place)
        assert [client.sent[0]["status"], client.sent[1]["body"]] == [200, b"data: 1\n\n"]
        assert not client.is_complete

    run(scenario, place)


def test_an_upstream_that_does_not_take_the_request_is_a_gateway_timeout(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "WRITE_S", 0.2)
    over = threading.Event()

    def script(_asked: Asked, _wire: Wire) -> None:
        over.wait(WAIT_S)

    place.upstream.script_of_head = script

    async def scenario() -> None:
        client = await Client(*[b"x" * (1 << 20)] * 16, path=OTHER).call(place)
        assert client.error == (504, "upstream_timeout")
        over.set()

    place.guard.capacity.limits = RequestLimits(proxied_body_bytes=1 << 30)
    run(scenario, place)


def test_connections_that_nobody_uses_are_let_go_by_themselves(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "IDLE_S", 0.05)
    is_let_go = threading.Event()

    def script(_: Asked, wire: Wire) -> None:
        wire.answer(b"{}")
        if wire.is_closed():
            is_let_go.set()

    place.upstream.script = script

    async def scenario() -> None:
        # The second request opens a new connection.
        for _ in range(2):
            client = await Client(HELLO).call(place)
            assert client.sent[0]["status"] == 200
            assert await asyncio.to_thread(is_let_go.wait, WAIT_S)
            is_let_go.clear()

    run(scenario, place)


def test_an_exchange_without_end_is_cut_at_last(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "EXCHANGE_S", 5.0)

    def script(_: Asked, wire: Wire) -> None:
        wire.begin()
        pause = threading.Event()
        while not pause.wait(0.01):
            wire.chunk(b"more" * 1000)

    place.upstream.script = script

    async def scenario() -> None:
        client = await Client(HELLO).call(place)
        assert client.sent[0]["status"] == 200
        assert not client.is_complete

    run(scenario, place)


@pytest.mark.parametrize("path", [MESSAGES, OTHER])
def test_a_client_whose_body_does_not_come_is_told_so(path: str) -> None:
    with closing(Place(body_timeout_s=0.05)) as place:

        async def scenario() -> None:
            client = await Client(b"{", path=path, is_whole=False).call(place)
            assert client.error == (408, "body_timeout")

        run(scenario, place)


def test_a_client_that_drips_is_not_waited_for_for_ever() -> None:
    with closing(Place(body_timeout_s=WAIT_S, proxied_body_timeout_s=0.05)) as place:

        async def scenario() -> None:
            client = await Client(b"{", path=OTHER, is_whole=False).call(place)
            assert client.error == (408, "body_timeout")

        run(scenario, place)


def test_an_owner_has_so_many_at_a_time_and_short_requests_are_not_among_them() -> None:
    with closing(Place(streams_of_owner=1, in_flight=1)) as place:
        asked, answer = threading.Event(), threading.Event()

        def script(_: Asked, wire: Wire) -> None:
            asked.set()
            assert answer.wait(WAIT_S)
            wire.answer()

        place.upstream.script = script

        async def scenario() -> None:
            first = Client(HELLO)
            waiting = asyncio.create_task(first.call(place))
            await asyncio.to_thread(asked.wait, WAIT_S)
            second = await Client(HELLO).call(place)
            assert second.error == (503, "busy")
            answer.set()
            await waiting
            assert first.sent[0]["status"] == 200
            assert (await Client(HELLO).call(place)).sent[0]["status"] == 200

        run(scenario, place)


def test_where_too_much_is_looked_into_at_once_a_request_passes_as_it_came(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "FOLDED_ALL_MAX_BYTES", len(HELLO) - 1)

    async def scenario() -> None:
        client = await Client(HELLO[:20], HELLO[20:]).call(place)
        assert (client.sent[0]["status"], client.receipt["reason"]) == (200, "busy")
        assert place.upstream.next().body == HELLO

    run(scenario, place)


def test_no_owner_takes_all_the_room_for_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "FOLDED_OWNER_MAX_BYTES", len(HELLO))
    budget, size = passing.ByteBudget(), len(HELLO)
    assert (budget.reserve("alice", size), budget.reserve("alice", 1), budget.reserve("bob", size)) == (
        *(True, False),
        True,
    )
    budget.release("alice", size)
    assert budget.reserve("alice", 1)
    budget.release("alice", 1)
    budget.release("bob", size)
    assert (budget.size_bytes, budget.by_owner) == (0, {})


def test_the_room_for_looking_is_given_back_however_a_request_ends(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "FOLDED_ALL_MAX_BYTES", len(HELLO))

    async def scenario() -> None:
        place.guard.capacity.limits = RequestLimits(body_timeout_s=0.05)
        assert (await Client(HELLO, is_whole=False).call(place)).error == (408, "body_timeout")
        place.guard.capacity.limits = RequestLimits()
        place.upstream.script = lambda _, wire: wire.socket.shutdown(2)
        assert (await Client(HELLO).call(place)).error == (502, "upstream_broken")
        asked = threading.Event()

        def script(given: Asked, wire: Wire) -> None:
            asked.set()
            silent(given, wire)

        place.upstream.script = script
        leaving = Client(HELLO)
        call = asyncio.create_task(leaving.call(place))
        await asyncio.to_thread(asked.wait, WAIT_S)
        leaving.gone.set()
        await call
        assert leaving.sent == []
        place.upstream.script = lambda _, wire: wire.answer()
        assert (await Client(HELLO).call(place)).receipt["reason"] is None

    run(scenario, place)


def test_a_request_that_is_sent_takes_no_room_while_the_model_thinks(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "FOLDED_ALL_MAX_BYTES", len(HELLO))
    asked, answer = threading.Event(), threading.Event()

    def script(_: Asked, wire: Wire) -> None:
        if not asked.is_set():
            asked.set()
            assert answer.wait(WAIT_S)
        wire.answer()

    place.upstream.script = script

    async def scenario() -> None:
        thinking = asyncio.create_task(Client(HELLO).call(place))
        await asyncio.to_thread(asked.wait, WAIT_S)
        assert (await Client(HELLO).call(place)).receipt["reason"] is None
        answer.set()
        assert (await thinking).receipt["reason"] is None

    run(scenario, place)


class SlowStore(MemoryStore):
    """Blocks every search for a session until the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_find = asyncio.Event()

    async def find(self, owner: str, session_id: str) -> SessionKey | None:
        await self.may_find.wait()
        return await super().find(owner, session_id)


def test_requests_whose_session_is_still_looked_for_are_kept_as_long_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    named = '{"session_id":"sess_0123456789abcdef"}'
    call = {"type": "tool_use", "id": "1", "name": "context_branch_status", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": named}
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    body = json.dumps({"messages": turns}).encode()
    monkeypatch.setattr(receipts, "WAITING_MAX_BYTES", 2 * len(body))
    store = SlowStore()
    with closing(Place(store)) as place:

        async def scenario() -> None:
            for _ in range(3):
                assert (await Client(body).call(place)).receipt["reason"] is None
            assert capfd.readouterr().err.count("proxy.receipt_lost") == 1
            store.may_find.set()

        run(scenario, place)


@covers("proxy.md#laws")
def test_a_bug_in_folding_breaks_no_request(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_body: bytes, _api: str) -> None:
        raise RecursionError

    monkeypatch.setattr(passing, "project_body", broken)

    async def scenario() -> None:
        client = await Client(HELLO).call(place)
        assert (client.sent[0]["status"], client.receipt["reason"]) == (200, "failed")
        assert place.upstream.next().body == HELLO

    run(scenario, place)


def test_a_cancelled_exchange_is_cut_and_not_ended(place: Place) -> None:
    def script(_: Asked, wire: Wire) -> None:
        wire.begin("Content-Type: text/event-stream")
        wire.chunk(b"data: 1\n\n")
        wire.is_closed()

    place.upstream.script = script

    async def scenario() -> None:
        client = Client(HELLO)
        call = asyncio.create_task(client.call(place))
        await client.started.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert not client.is_complete

    run(scenario, place)
