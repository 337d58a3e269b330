"""A connection to NATS that comes back by itself. Knows questions and answers, nothing of streams.

The client library is told not to reconnect: here a connection lives once, whoever waits for an answer on it hears at
once when it breaks, and the next one is made by us, every step of it within a time. A question that was never sent and
one whose answer never came are told apart, for the second may have had its effect.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

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
USELESS_S: Final = 5.0  # without one good answer, and another server is tried: this one may be cut off from the others
CLOSE_TIMEOUT_S: Final = 1.0  # for the library to let go; a failed TLS handshake it waits out in vain
FLUSH_TIMEOUT_S: Final = 1


class Unanswered(StoreUnavailable):
    """Sent, perhaps: it may have had its effect, and it may still have it."""


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


Tell = Callable[[str], None]  # what became of the connection: "connected", "away: …"


class _Client(Client):
    """The library's, but that its end is told in any case, and at once: it first sends what is left, to nobody perhaps.

    It also begins TLS only if the server says so: what `tls://` asks for must not depend on that.
    """

    def __init__(self, on_end: Callable[[Client], None]) -> None:
        super().__init__()
        self._on_end = on_end

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._on_end(self)
        self._pending = []
        self._pending_data_size = 0
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await super()._close(status, do_cbs)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        server = self._current_server
        if initial_connection and server and server.uri.scheme == "tls" and not info.get("tls_required"):
            raise StoreInvalid("NATS: the server does not speak TLS; write nats:// in place of tls:// if that is meant")
        await super()._process_info(info, initial_connection)


class Link:
    def __init__(self, place: Place, prepare: Callable[[], Awaitable[None]], tell: Tell = lambda _: None) -> None:
        """`prepare` is done once, on the first connection, before anybody else may use it."""
        self.place = place
        self._prepare = prepare
        self._is_prepared = False
        self._tell = tell
        self._said = ""
        self._client: Client | None = None
        self._ready = asyncio.Event()
        self._is_clear = asyncio.Event()  # connected, or refused by every server
        self._refusals = 0  # in a row
        self._lost = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._problem: StoreInvalid | StoreUnavailable = StoreUnavailable("NATS: not connected yet")
        self._answers: dict[str, tuple[str, asyncio.Future[Msg]]] = {}  # what was asked, by number
        self._inbox = ""
        self._numbers = itertools.count()
        self._useless_since_s: float | None = None
        self._closed = False

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

    # ---- the connection

    async def open(self, patience_s: float = CONNECT_TIMEOUT_S + GRACE_S) -> None:
        """StoreInvalid if NATS says no; StoreUnavailable if there is none to be had for now: it is tried further."""
        self._begin()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._is_clear.wait()
        self._check_open()
        if not self.is_ready:
            raise self._problem

    async def connected(self) -> None:
        """Wait for a connection however long it takes, unless this is closed."""
        self._begin()
        await self._ready.wait()
        self._check_open()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await end_tasks(self._keeper)
        self._ready.set()  # whoever waits for a connection hears that there will be none
        self._is_clear.set()
        if self._client is not None:
            with suppress(NatsError, OSError, TimeoutError):
                await self._client.flush(FLUSH_TIMEOUT_S)
        await self._let_go()

    def _begin(self) -> None:
        self._check_open()
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_connected(), name="contextfold-nats")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    async def _keep_connected(self) -> None:
        pause_s = CONNECT_PAUSE_S
        servers = random.sample(self.place.servers, len(self.place.servers))  # not everybody to the same one
        for server in itertools.cycle(servers):
            try:
                await self._connect(server)
            except Exception as problem:  # of any kind: the library has many, and the next try may do better
                self._failed(problem)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, CONNECT_PAUSE_MOST_S)
                continue
            begun_s = asyncio.get_running_loop().time()
            await self._lost.wait()
            self._ready.clear()
            self._is_clear.clear()
            self._problem = StoreUnavailable("NATS: the connection was lost")
            self._say("away: the connection was lost")
            await self._let_go()
            has_lived = asyncio.get_running_loop().time() - begun_s >= CONNECT_PAUSE_MOST_S
            pause_s = CONNECT_PAUSE_S if has_lived else min(pause_s * 2, CONNECT_PAUSE_MOST_S)
            await asyncio.sleep(pause_s)

    async def _connect(self, server: str) -> None:
        self._lost.clear()
        try:
            await self._connect_once(server)
        except BaseException:
            await self._let_go()
            raise
        if not self._lost.is_set():
            self._useless_since_s = None
            self._refusals = 0
            self._ready.set()
            self._is_clear.set()
            self._say("connected")

    async def _connect_once(self, server: str) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            self._client = _Client(self._ended)
            await self._client.connect(server, **self._options())
            self._inbox = f"{self._client.new_inbox()}."
            await self._client.subscribe(f"{self._inbox}*", cb=self._answered)
        check_server(str(self._client.connected_server_version))
        if not self._is_prepared:
            await self._prepare()
            self._is_prepared = True

    def _options(self) -> dict[str, Any]:
        place = self.place

        async def hear(problem: Exception) -> None:
            """What fails is told to whoever asked; the library would write it to a log of its own."""
            if "permissions violation" in str(problem).lower():
                self._forbidden(str(problem).lower())

        given: dict[str, Any] = {
            "name": "contextfold",
            "allow_reconnect": False,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "ping_interval": PING_EVERY_S,
            "max_outstanding_pings": PINGS_UNANSWERED,
            "error_cb": hear,
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
                f"NATS refuses us: {plain(problem)}; check user, password, nkey or credentials"
            )
        elif _is_setting(problem):
            self._problem = StoreInvalid(f"NATS: {plain(problem)}; check the files that the settings for NATS name")
        else:
            self._problem = StoreUnavailable(f"NATS: {plain(problem)}")
        self._refusals = self._refusals + 1 if isinstance(self._problem, StoreInvalid) else 0
        if self._refusals >= len(self.place.servers):
            self._is_clear.set()
        else:
            self._is_clear.clear()
        self._say(f"away: {self._problem.reason}")

    def _say(self, text: str) -> None:
        """Once: what fails every second is told when it begins."""
        if text != self._said:
            self._said = text
            self._tell(text)

    def _ended(self, client: Client) -> None:
        if client is self._client:
            self._lost.set()
            self._break_off()

    def _break_off(self) -> None:
        waiting, self._answers = self._answers, {}
        for _, future in waiting.values():
            _fail(future, Unanswered("NATS: the connection was lost before the answer"))

    def _forbidden(self, told: str) -> None:
        """The server answers nothing to what we may not ask; it says so beside, in a text with the subject in it."""
        for subject, future in list(self._answers.values()):
            if f'"{subject.lower()}"' in told:
                reason = f"NATS does not let us ask {subject}: give this user the rights that docs/nats.md lists"
                _fail(future, StoreInvalid(reason))

    async def _let_go(self) -> None:
        client, self._client = self._client, None
        self._break_off()
        if client is not None:
            with suppress(Exception):  # it is given up, however it takes that
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await client.close()

    # ---- questions

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
        asked_s = asyncio.get_running_loop().time()
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._answers[number] = (subject, future)
        try:
            await client.publish(subject, payload, reply=self._inbox + number, headers=headers)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await future
        except TimeoutError:
            self._useless()
            raise Unanswered(f"NATS did not answer within {ANSWER_TIMEOUT_S:g} s") from None
        except asyncio.CancelledError:  # whoever asked has less patience than we have
            if asyncio.get_running_loop().time() - asked_s >= ANSWER_TIMEOUT_S / 2:
                self._useless()
            raise
        except (NatsError, OSError) as problem:
            raise Unanswered(f"NATS: {plain(problem)}") from problem
        finally:
            self._answers.pop(number, None)
        if answer.headers and answer.headers.get("Status") == "503":
            self._useless()
            raise StoreUnavailable("NATS: nobody answers for the stream now")
        return answer

    def _useful(self) -> None:
        self._useless_since_s = None

    def _useless(self) -> None:
        """A server that answers pings but leads nowhere is left after a while, if there are others."""
        now_s = asyncio.get_running_loop().time()
        if self._useless_since_s is None:
            self._useless_since_s = now_s
        elif now_s - self._useless_since_s >= USELESS_S and len(self.place.servers) > 1:
            self._lost.set()

    async def _answered(self, message: Msg) -> None:
        _, future = self._answers.pop(message.subject.rpartition(".")[2], ("", None))
        if future is not None and not future.done():
            future.set_result(message)


async def end_tasks(*tasks: asyncio.Task[None] | None) -> None:
    """However each of them takes it."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _fail(future: asyncio.Future[Msg], problem: Exception) -> None:
    if not future.done():
        future.set_exception(problem)
        future.exception()  # somebody may have given up waiting for it


def check_server(version: str) -> None:
    """StoreInvalid for one that is too old; what is told is `<nats server v2.15.1>` or the bare number."""
    digits = "".join(mark if mark.isdigit() or mark == "." else " " for mark in version).split()
    found = tuple(int(part) for part in digits[0].split(".")[:2] if part) if digits else ()
    if found < SERVER_LEAST:
        least = ".".join(map(str, SERVER_LEAST))
        raise StoreInvalid(
            f"the NATS server is {digits[0] if digits else 'of no known version'}; {least} or later is needed"
        )


def _is_refusal(problem: Exception) -> bool:
    text = str(problem).lower()
    return isinstance(problem, NatsError) and any(word in text for word in ("authoriz", "authenticat", "permission"))


def _is_setting(problem: Exception) -> bool:
    """A file that is missing or makes no sense: no other try will do better."""
    is_key = type(problem).__module__.partition(".")[0] == "nkeys"
    return is_key or isinstance(problem, ssl.SSLError | FileNotFoundError | PermissionError | ValueError | IndexError)


def plain(problem: Exception) -> str:
    """One line; of a time that ran out there is nothing but its kind."""
    return (str(problem).removeprefix("nats: ").splitlines() or [type(problem).__name__])[0]
