"""A connection to NATS that comes back by itself, and JetStream as far as a store needs it. Knows nothing of sessions.

The client library is told not to reconnect: here a connection lives once, whoever waits for an answer on it hears at
once when it breaks, and the next one is made by us, every step of it within a time. A request that was never sent and
one whose answer never came are told apart, for the second may have had its effect.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import secrets
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from contextfold.errors import StoreInvalid, StoreUnavailable

SERVER_LEAST: Final = (2, 12)  # older ones ignore what we rely on, and do not say so
CONNECT_TIMEOUT_S: Final = 3.0
CONNECT_PAUSE_S: Final = 0.1  # before another try, doubled each time
CONNECT_PAUSE_MOST_S: Final = 2.0
GRACE_S: Final = 1.0  # that a call waits for a connection that is just being made
ANSWER_TIMEOUT_S: Final = 2.0
PING_EVERY_S: Final = 2
PINGS_UNANSWERED: Final = 2
CLOSE_TIMEOUT_S: Final = 3.0

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_OF: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
TTL: Final = "Nats-TTL"
NO_MESSAGE: Final = 10037
NO_SEQUENCE: Final = 10043
NO_STREAM: Final = 10059
STREAM_THERE: Final = 10058
CONFLICTS: Final = frozenset({10071, 10164})


class Unanswered(StoreUnavailable):
    """Sent, perhaps: it may have had its effect, and it may still have it."""


class Conflict(Exception):
    """The last message was not the one that was expected."""


class Refused(Exception):
    """JetStream's own no."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Place:
    """Where NATS is and how to get in. What lets one in is not shown."""

    servers: tuple[str, ...] = field(repr=False)
    prefix: str = "contextfold"
    domain: str = ""
    replicas: int = 0  # 0: one for new streams, and the others as they are
    creds: str = ""
    nkey: str = ""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in a stream."""

    subject: str
    seq: int
    headers: Mapping[str, str]
    data: bytes = field(repr=False)


Answer = dict[str, Any]  # of JetStream's own, as JSON
Tell = Callable[[str], None]  # what became of the connection: "connected", "away: …"
Prepare = Callable[["Wire"], Any]  # done once, on the first connection, before anybody may use it


class Wire:
    def __init__(self, place: Place, prepare: Prepare, tell: Tell = lambda _: None) -> None:
        self.place = place
        self._prepare = prepare
        self._tell = tell
        self._api = f"$JS.{place.domain}.API" if place.domain else "$JS.API"
        self._client: Client | None = None
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._is_prepared = False
        self._problem: Exception = StoreUnavailable("NATS: not connected yet")
        self._answers: dict[str, asyncio.Future[Msg]] = {}
        self._inbox = ""
        self._numbers = itertools.count()
        self._closed = False

    # ---- the connection

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    @property
    def payload_most(self) -> int:
        return self._client.max_payload if self._client else 0

    @property
    def has_jetstream(self) -> bool:
        """Whether the server says so; one that does not may still lead to others that have it."""
        return bool(self._client and self._client._server_info.get("jetstream"))

    async def open(self, patience_s: float = CONNECT_TIMEOUT_S + GRACE_S) -> None:
        """StoreInvalid if NATS says no; StoreUnavailable if there is none to be had for now: it is tried further."""
        self._begin()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._ready.wait()
        if not self.is_ready:
            raise self._problem

    async def connected(self) -> None:
        """Wait for a connection however long it takes, unless this is closed."""
        self._begin()
        await self._ready.wait()
        self._check_open()

    def _begin(self) -> None:
        self._check_open()
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_connected(), name="contextfold-nats")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    async def _keep_connected(self) -> None:
        pause_s = CONNECT_PAUSE_S
        for server in itertools.cycle(self.place.servers):
            try:
                await self._connect(server)
            except Exception as problem:  # of any kind: the library has many, and the next try may do better
                self._failed(problem)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, CONNECT_PAUSE_MOST_S)
                continue
            pause_s = CONNECT_PAUSE_S
            await self._lost.wait()
            self._ready.clear()
            self._problem = StoreUnavailable("NATS: the connection was lost")
            self._tell("away: the connection was lost")
            await self._let_go()

    async def _connect(self, server: str) -> None:
        self._lost.clear()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            self._client = await nats.connect(server, **self._options())
            self._inbox = f"{self._client.new_inbox()}."
            await self._client.subscribe(f"{self._inbox}*", cb=self._answered)
        try:
            check_server(str(self._client.connected_server_version))
            if not self._is_prepared:
                await self._prepare(self)
                self._is_prepared = True
        except BaseException:
            await self._let_go()
            raise
        if not self._lost.is_set():
            self._ready.set()
            self._tell("connected")

    def _options(self) -> dict[str, Any]:
        place = self.place

        async def lost() -> None:
            self._lost.set()
            self._break_off()

        async def ignore(_problem: Exception) -> None:
            """What fails is told to whoever asked; the library would write it to a log of its own."""

        given: dict[str, Any] = {
            "name": "contextfold",
            "allow_reconnect": False,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "ping_interval": PING_EVERY_S,
            "max_outstanding_pings": PINGS_UNANSWERED,
            "closed_cb": lost,
            "disconnected_cb": lost,
            "error_cb": ignore,
        }
        optional = {"user_credentials": place.creds, "nkeys_seed": place.nkey, "user": place.user}
        given |= {name: value for name, value in optional.items() if value}
        if place.user:
            given["password"] = place.password
        if place.tls_ca or place.tls_cert:
            context = ssl.create_default_context(cafile=place.tls_ca or None)
            if place.tls_cert:
                context.load_cert_chain(place.tls_cert, place.tls_key or None)
            given["tls"] = context
        return given

    def _failed(self, problem: Exception) -> None:
        if isinstance(problem, StoreInvalid):
            self._problem = problem
        elif _is_refusal(problem):
            self._problem = StoreInvalid(
                f"NATS refuses us: {_plain(problem)}; check user, password, nkey or credentials"
            )
        elif isinstance(problem, ssl.SSLError | ssl.CertificateError | FileNotFoundError):
            self._problem = StoreInvalid(f"NATS: {_plain(problem)}; check the TLS settings and the files they name")
        else:
            self._problem = StoreUnavailable(f"NATS: {_plain(problem)}")
        self._tell(f"away: {self._problem.reason}")

    def _break_off(self) -> None:
        waiting, self._answers = self._answers, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Unanswered("NATS: the connection was lost before the answer"))
                future.exception()  # somebody may have given up waiting for it

    async def _let_go(self) -> None:
        client, self._client = self._client, None
        self._break_off()
        if client is not None:
            with suppress(Exception):  # it is given up, however it takes that
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await client.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        self._ready.set()  # whoever waits for a connection hears that there will be none
        await self._let_go()

    # ---- requests

    async def _answered(self, message: Msg) -> None:
        future = self._answers.pop(message.subject.rpartition(".")[2], None)
        if future is not None and not future.done():
            future.set_result(message)

    async def client(self) -> Client:
        """The connection; StoreUnavailable if there is none, after a moment at most."""
        if self._closed or not (self._ready.is_set() and self._client):
            await self.open(GRACE_S)
        assert self._client is not None
        return self._client

    async def ask(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None, *, client: Client | None = None
    ) -> Msg:
        client = client or await self.client()
        number = str(next(self._numbers))
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        try:
            await client.publish(subject, payload, reply=self._inbox + number, headers=headers)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await future
        except TimeoutError:
            raise Unanswered(f"NATS did not answer within {ANSWER_TIMEOUT_S:g} s") from None
        except (NatsError, OSError) as problem:
            raise Unanswered(f"NATS: {_plain(problem)}") from problem
        finally:
            self._answers.pop(number, None)
        if answer.headers and answer.headers.get("Status") == "503":
            raise StoreUnavailable("NATS: nobody answers for the stream now")
        return answer

    async def api(self, what: str, body: Mapping[str, Any] | None = None, *, client: Client | None = None) -> Answer:
        answer: Answer = json.loads((await self.ask(f"{self._api}.{what}", _json(body), client=client)).data)
        if "error" in answer:
            raise _refused(answer["error"])
        return answer

    async def preparing(self, what: str, body: Mapping[str, Any] | None = None) -> Answer:
        """As `api`, while the connection is not yet anybody's."""
        assert self._client is not None
        return await self.api(what, body, client=self._client)

    async def tell(self, what: str, body: Mapping[str, Any] | None = None, *, reply: str = "") -> None:
        """Ask without waiting; what comes of it goes to `reply`."""
        client = await self.client()
        try:
            await client.publish(f"{self._api}.{what}", _json(body), reply=reply)
        except (NatsError, OSError) as problem:
            raise StoreUnavailable(f"NATS: {_plain(problem)}") from problem

    # ---- messages in streams

    async def put(
        self,
        subject: str,
        data: bytes,
        *,
        expected: int | None = None,
        expected_of: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Its sequence once it is stored; Conflict unless the subject's last message is the expected one (0: none)."""
        told = dict(headers or {})
        if expected is not None:
            told[EXPECTED] = str(expected)
        if expected_of:
            told[EXPECTED_OF] = expected_of
        answer = json.loads((await self.ask(subject, data, told)).data)
        if "error" in answer:
            problem = _refused(answer["error"])
            raise problem if isinstance(problem, Conflict) else StoreUnavailable(f"NATS: {problem}")
        seq: int = answer["seq"]
        return seq

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The last message of a subject, which may have wildcards, as the stream's leader has it."""
        return await self._get(stream, {"last_by_subj": subject})

    async def at(self, stream: str, seq: int) -> Stored | None:
        return await self._get(stream, {"seq": seq})

    async def _get(self, stream: str, which: Mapping[str, Any]) -> Stored | None:
        try:
            found = (await self.api(f"STREAM.MSG.GET.{stream}", which))["message"]
        except Refused as problem:
            if problem.code == NO_MESSAGE:
                return None
            raise StoreUnavailable(f"NATS: {problem}") from problem
        headers = _headers(base64.b64decode(found.get("hdrs", "")))
        return Stored(found["subject"], found["seq"], headers, base64.b64decode(found.get("data", "")))

    async def counts(self, stream: str, subjects: str) -> dict[str, int]:
        """How many messages each subject has of those that a filter names."""
        counted: dict[str, int] = {}
        while True:
            asked = {"subjects_filter": subjects, "offset": len(counted)}
            told = await self._info(stream, asked)
            page = told["state"].get("subjects") or {}
            counted |= page
            if not page or len(counted) >= told.get("total", 0):
                return counted

    async def last_seq(self, stream: str) -> int:
        seq: int = (await self._info(stream, {}))["state"]["last_seq"]
        return seq

    async def _info(self, stream: str, asked: Mapping[str, Any]) -> Answer:
        try:
            return await self.api(f"STREAM.INFO.{stream}", asked)
        except Refused as problem:
            raise StoreUnavailable(f"NATS: {problem}") from problem

    async def purge(self, stream: str, subjects: str, *, below: int = 0) -> None:
        """Delete what a filter names, or what of it comes before a sequence."""
        try:
            await self.api(f"STREAM.PURGE.{stream}", {"filter": subjects} | ({"seq": below} if below else {}))
        except Refused as problem:
            raise StoreUnavailable(f"NATS: {problem}") from problem

    async def delete(self, stream: str, seq: int) -> None:
        try:
            await self.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})
        except Refused as problem:
            if problem.code not in (NO_SEQUENCE, NO_MESSAGE):
                raise StoreUnavailable(f"NATS: {problem}") from problem


def new_mark() -> str:
    """What tells one message from every other."""
    return secrets.token_hex(16)


def check_server(version: str) -> None:
    """StoreInvalid for one that is too old; what is told is `<nats server v2.15.1>` or the bare number."""
    digits = "".join(mark if mark.isdigit() or mark == "." else " " for mark in version).split()
    found = tuple(int(part) for part in digits[0].split(".")[:2] if part) if digits else ()
    if found < SERVER_LEAST:
        least = ".".join(map(str, SERVER_LEAST))
        raise StoreInvalid(
            f"the NATS server is {digits[0] if digits else 'of no known version'}; {least} or later is needed"
        )


def _json(body: Mapping[str, Any] | None) -> bytes:
    return json.dumps(body).encode() if body else b""


def _refused(error: Mapping[str, Any]) -> Exception:
    code, text = int(error.get("err_code", 0)), str(error.get("description", "no reason given"))
    return Conflict(text) if code in CONFLICTS else Refused(code, text)


def _headers(block: bytes) -> dict[str, str]:
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    return {name.strip(): value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


def _is_refusal(problem: Exception) -> bool:
    text = str(problem).lower()
    return isinstance(problem, NatsError) and any(word in text for word in ("authoriz", "authenticat", "permission"))


def _plain(problem: Exception) -> str:
    """One line; of a time that ran out there is nothing but its kind."""
    return (str(problem).removeprefix("nats: ").splitlines() or [type(problem).__name__])[0]
