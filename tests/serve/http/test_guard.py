"""The guard around an application: which requests it admits, and what application and client receive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from contextfold.serve.http.bearer_tokens import TokenFile, add_token
from contextfold.serve.http.capacity import RequestLimits
from contextfold.serve.http.exchange import OWNER, Message, Receive, Scope, Send
from contextfold.serve.http.guard import Buckets, Guard, HostRule
from contextfold.serve.ops.metrics import Metrics

WAIT_S = 30.0
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RecordingApp:
    """An application that answers at once and records its requests."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        self.bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"Server", b"x"), (b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b"fine"})


class Client:
    """One request, in the form of ASGI messages."""

    def __init__(
        self,
        *chunks: bytes,
        method: str = "GET",
        path: str = "/x",
        headers: Iterable[tuple[str, str]] = (("host", "localhost"),),
    ) -> None:
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        self.scope: Scope = {"type": "http", "method": method, "path": path, "headers": encoded}
        self.gone = asyncio.Event()
        self.sent: list[Message] = []
        self._chunks = [*chunks] or [b""]

    async def receive(self) -> Message:
        if self._chunks:
            return {"type": "http.request", "body": self._chunks.pop(0), "more_body": bool(self._chunks)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def call(self, guard: Guard) -> Client:
        async with asyncio.timeout(WAIT_S):
            await guard(self.scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode().lower(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def error(self) -> tuple[int, str]:
        assert self.headers["content-type"] == "application/json"
        assert int(self.headers["content-length"]) == len(self.body)
        assert "more_body" not in self.sent[-1] or not self.sent[-1]["more_body"]
        return self.status, json.loads(self.body)["error"]["data"]["kind"]


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def make_guard(app: App, *, rate: tuple[float, int] = (1000, 1000), **options: Any) -> Guard:
    return Guard(app, hosts=HostRule("127.0.0.1"), metrics=Metrics([]), buckets=Buckets(*rate), **options)


def host(name: str = "localhost", *headers: tuple[str, str]) -> list[tuple[str, str]]:
    return [("host", name), *headers]


def tokens_of(folder: Path, *owners: str) -> tuple[TokenFile, list[str]]:
    tokens = [add_token(str(folder / "tokens"), owner) for owner in owners]
    return TokenFile(str(folder / "tokens"), print), tokens


def run(scenario: Awaitable[None]) -> None:
    async def main() -> None:
        await scenario

    asyncio.run(main())


def test_without_tokens_an_authorization_header_is_ignored_and_removed() -> None:
    async def scenario() -> None:
        recorder = RecordingApp()
        client = Client(headers=host("localhost", ("authorization", "Bearer x"), ("x-other", "1")))
        assert (await client.call(make_guard(recorder))).status == 200
        assert recorder.scopes[0]["headers"] == [(b"host", b"localhost"), (b"x-other", b"1")]
        assert client.scope["headers"] != recorder.scopes[0]["headers"]

    run(scenario())


def test_a_token_gives_its_owner_and_all_other_authorizations_get_the_same_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        tokens, (alice, bob) = tokens_of(tmp_path, "alice", "bob")
        recorder = RecordingApp()
        guard = make_guard(recorder, tokens=tokens)
        for scheme, token in (("Bearer", alice), ("bearer", bob), ("BEARER ", alice)):
            client = Client(headers=host("localhost", ("authorization", f"{scheme} {token}")))
            assert (await client.call(guard)).status == 200
        assert [scope[OWNER] for scope in recorder.scopes] == ["alice", "bob", "alice"]
        refused = [
            await Client(path=path, headers=host("localhost", *(("authorization", value) for value in values))).call(
                guard
            )
            for path in ("/x", "//", "/web", "/mcp", "/healthz/", "/healthz/../x", "//healthz")
            for values in (
                [],
                [""],
                ["Bearer"],
                ["Bearer x"],
                [f"Basic {alice}"],
                [alice],
                [f"Bearer {alice} {alice}"],
                [f"Bearer {alice}", f"Bearer {alice}"],
                [f"Bearer {alice},"],
            )
        ]
        assert {client.error for client in refused} == {(401, "unauthorized")}
        assert {client.headers["www-authenticate"] for client in refused} == {"Bearer"}
        assert len({client.body for client in refused}) == 1
        assert len(recorder.scopes) == 3

    run(scenario())


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ([], (421, "host_not_allowed")),
        ([("host", "localhost"), ("host", "localhost")], (421, "host_not_allowed")),
        ([("host", "localhost"), ("HOST", "evil.example")], (421, "host_not_allowed")),
        (host("evil.example", ("origin", "http://localhost")), (421, "host_not_allowed")),
        (host("localhost", ("origin", "null")), (403, "origin_not_allowed")),
        (host("localhost", ("origin", "http://localhost"), ("origin", "null")), (403, "origin_not_allowed")),
        (host("localhost", ("origin", "")), (403, "origin_not_allowed")),
        (host("localhost", ("sec-fetch-site", "cross-site")), (403, "origin_not_allowed")),
    ],
)
def test_a_request_that_a_web_page_may_have_sent_is_refused(
    headers: list[tuple[str, str]], refused: tuple[int, str]
) -> None:
    async def scenario() -> None:
        recorder = RecordingApp()
        assert (await Client(headers=headers).call(make_guard(recorder))).error == refused
        assert not recorder.scopes

    run(scenario())


def test_an_owner_who_calls_too_often_gets_retry_after() -> None:
    async def scenario() -> None:
        clock = Clock()
        guard = make_guard(RecordingApp(), rate=(0.4, 2), clock=clock)
        assert [(await Client().call(guard)).status for _ in range(3)] == [200, 200, 429]
        refused = await Client().call(guard)
        assert refused.error == (429, "limit_reached")
        assert refused.headers["retry-after"] == "3"
        for method, path in (("POST", "/mcp"), ("GET", "/healthz"), ("GET", "/readyz")):
            assert (await Client(method=method, path=path).call(guard)).status == 200
        assert (await Client(path="/mcp").call(guard)).status == 429
        clock.now_s += 3
        assert (await Client().call(guard)).status == 200

    run(scenario())


def test_all_bodies_together_are_bounded() -> None:
    async def scenario() -> None:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            entered.set()
            await leave.wait()
            await RecordingApp()(scope, receive, send)

        guard = make_guard(app, limits=RequestLimits(buffered_bytes=10))
        first = asyncio.create_task(Client(b"x" * 6).call(guard))
        await entered.wait()
        assert (await Client(b"x" * 6).call(guard)).error == (503, "busy")
        leave.set()
        assert (await first).status == 200
        assert (await Client(b"x" * 6).call(guard)).status == 200
        assert guard.capacity.buffered_bytes.total == guard.capacity.requests.total == 0

    run(scenario())


def test_a_refusal_before_100_continue_closes_the_connection() -> None:
    async def scenario() -> None:
        client = Client(headers=host("localhost", ("expect", "100-continue"), ("content-length", "99999999999")))
        await client.call(make_guard(RecordingApp()))
        assert client.error == (413, "body_too_large")
        assert client.headers["connection"] == "close"

    run(scenario())


def test_a_stream_that_begins_while_the_daemon_stops_is_ended() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        assert (await receive())["type"] == "http.disconnect"

    async def scenario() -> None:
        guard = make_guard(app)
        guard.end_streams()
        client = await Client().call(guard)
        assert client.status == 200
        assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        assert guard.capacity.streams.total == guard.capacity.requests.total == 0

    run(scenario())


def test_a_request_without_a_token_cannot_make_the_daemon_wait_for_a_body(tmp_path: Path) -> None:
    async def scenario() -> None:
        tokens, _ = tokens_of(tmp_path, "alice")
        guard = make_guard(RecordingApp(), tokens=tokens)
        for path in ("/", "/web/app.js", "/web/x", "/healthz"):
            for method in ("POST", "PUT", "OPTIONS"):
                slow = Client(method=method, path=path, headers=host("localhost", ("content-length", "1000")))
                assert (await slow.call(guard)).error == (405, "method_not_allowed")
            assert (
                await Client(path=path, headers=host("localhost", ("content-length", "9"))).call(guard)
            ).status == 200

    run(scenario())


def test_requests_without_a_token_use_no_owners_rate(tmp_path: Path) -> None:
    async def scenario() -> None:
        tokens, (local,) = tokens_of(tmp_path, "local")
        guard = make_guard(RecordingApp(), tokens=tokens, rate=(1, 3), clock=Clock())
        statuses = [(await Client(path="/web/app.js").call(guard)).status for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        client = Client(headers=host("localhost", ("authorization", f"Bearer {local}")))
        assert (await client.call(guard)).status == 200

    run(scenario())


@pytest.mark.parametrize(
    ("method", "origin", "content_type", "status"),
    [
        # Our own page has this origin.
        ("POST", "http://localhost:9090", "text/plain", 200),
        # A browser sends a preflight request first, which is refused.
        ("POST", "http://localhost:5173", "application/json", 200),
        ("POST", "http://localhost:5173", "text/plain", 403),
        ("POST", "http://localhost:5173", "", 403),
        ("POST", "http://localhost", "application/x-www-form-urlencoded", 403),
        ("GET", "http://localhost:5173", "", 200),
        ("OPTIONS", "http://localhost:5173", "", 403),
    ],
)
def test_a_page_of_another_port_cannot_send_requests_without_preflight(
    method: str, origin: str, content_type: str, status: int
) -> None:
    async def scenario() -> None:
        content_types = [("content-type", content_type)] if content_type else []
        client = Client(method=method, headers=host("localhost:9090", ("origin", origin), *content_types))
        assert (await client.call(make_guard(RecordingApp()))).status == status

    run(scenario())


@pytest.mark.parametrize(
    ("limits", "body"),
    [(RequestLimits(requests=4), b""), (RequestLimits(body_bytes=10, buffered_bytes=20), b"x" * 8)],
    ids=["requests", "bytes"],
)
def test_an_owner_cannot_use_up_the_capacity_of_others(tmp_path: Path, limits: RequestLimits, body: bytes) -> None:
    async def scenario() -> None:
        tokens, (alice, bob) = tokens_of(tmp_path, "alice", "bob")
        leave = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await leave.wait()
            await RecordingApp()(scope, receive, send)

        guard = make_guard(app, tokens=tokens, limits=limits)

        def client(token: str) -> Client:
            return Client(body, headers=host("localhost", ("authorization", f"Bearer {token}")))

        alices_tasks = [asyncio.create_task(client(alice).call(guard)) for _ in range(3)]
        bobs_task = asyncio.create_task(client(bob).call(guard))
        (refused, *_), _ = await asyncio.wait([*alices_tasks, bobs_task], return_when=asyncio.FIRST_COMPLETED)
        assert refused in alices_tasks
        leave.set()
        assert sorted([(await task).status for task in alices_tasks])[-1] == 503
        assert (await bobs_task).status == 200
        assert (guard.capacity.requests.by_owner, guard.capacity.buffered_bytes.by_owner) == ({}, {})

    run(scenario())


@pytest.mark.parametrize("path", ["/", "/healthz", "/mcp", "/v1/sessions", "/proxy/anthropic/v1/models", "/metrics"])
def test_a_page_of_another_site_is_refused_on_every_path(path: str) -> None:
    async def scenario() -> None:
        client = Client(path=path, headers=host("localhost", ("sec-fetch-site", "cross-site")))
        assert (await client.call(make_guard(RecordingApp()))).error == (403, "origin_not_allowed")

    run(scenario())
