"""The connection to NATS: nats-py's client, which reconnects by itself, and what the store must know about it.

A call fails soon if the connection is known to be lost. A call that was not sent and a call without a response are
different errors, because the second may have taken effect.

nats-py does not reconnect in every case: a server that refuses the user ends the client, and unsent data of a lost
connection can hold it up. A client without a connection for REPLACE_S is replaced by a new one.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeVar

from nats.aio.client import Client
from nats.errors import (
    ConnectionClosedError,
    ConnectionDrainingError,
    NoRespondersError,
    OutboundBufferLimitError,
    UnexpectedEOF,
)
from nats.errors import Error as NatsError
from nats.js.errors import NoStreamResponseError

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.settings import NatsOptions

Result = TypeVar("Result")
# Older servers ignore features that the store relies on, without an error.
SERVER_MIN: Final = (2, 12)
CONNECT_TIMEOUT_S: Final = 2.0
# The pause between two attempts to connect to the same server.
RECONNECT_PAUSE_S: Final = 0.25
REPLACE_S: Final = 8.0
# A call waits this long for the first connection, and for one that is lost, counted from the loss.
FIRST_GRACE_S: Final = 4.0
LOST_GRACE_S: Final = 0.5
RESPONSE_TIMEOUT_S: Final = 2.0
PING_EVERY_S: Final = 2
PINGS_UNANSWERED: Final = 2
# After this time without a useful response another server is tried: this one may be cut off from the others.
FAILING_S: Final = 5.0
# Words in the errors of a server that refuses a user.
REFUSALS: Final = ("authoriz", "authenticat", "permission")
FORBIDDEN_MAX: Final = 100
# After this many closed connections in a row a server that uses TLS is taken to want a certificate.
RESETS_REFUSE: Final = 4
CLOSE_TIMEOUT_S: Final = 1.0
LOST: Final = "NATS: the connection was lost"
# Called with the reason when there is no connection, after each attempt, and with an empty text when there is one.
OnConnectionChange = Callable[[str], None]


async def in_batches(works: Iterable[Awaitable[Result]], at_once: int) -> list[Result]:
    """Await some at a time. The first failure is raised when nothing is in progress any more."""
    results: list[Result] = []
    left = iter(works)
    while batch := list(islice(left, at_once)):
        for result in await asyncio.gather(*batch, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
    return results


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel the tasks and wait for them, ignoring their exceptions."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


class OutcomeUnknown(StoreUnavailable):
    """No response: the request may have taken effect, or may still do so."""


class TlsMissing(ConnectionError):
    """The address begins with tls:// and the server does not use TLS."""


class NatsClient(Client):
    """A client that notes whether it has started TLS, which it does only if the server asks for it."""

    def __init__(self, domain: str) -> None:
        super().__init__()
        self.has_tls = False
        # For requests whose timeout is ours, and for consumers, which the library makes again by itself.
        self.context = self.jetstream(domain=domain or None, timeout=None)
        self.consumers = self.jetstream(domain=domain or None, timeout=RESPONSE_TIMEOUT_S)

    @property
    def ssl_context(self) -> ssl.SSLContext:
        self.has_tls = True
        return super().ssl_context


class NatsConnection:
    def __init__(
        self,
        options: NatsOptions,
        prepare: Callable[[], Awaitable[None]],
        on_change: OnConnectionChange = lambda _: None,
    ) -> None:
        """`prepare` runs once, on the first connection, before any other request."""
        self.options = options
        self._prepare = prepare
        self._is_prepared = False
        self._on_change = on_change
        self._client: NatsClient | None = None
        self._keeper: asyncio.Task[None] | None = None
        # Set when there is a connection, or when every server has refused us.
        self._is_clear = asyncio.Event()
        # Why there is no connection, and since when; None if there is one.
        self._problem: StoreInvalid | StoreUnavailable | None = StoreUnavailable("NATS: not connected yet")
        self._away_since_s: float | None = None
        self._failing_since_s: float | None = None
        # Refusals in a row, and connections in a row that a server closed at once.
        self._refusals = self._resets = 0
        # Subjects that the server does not permit, in lower case.
        self._forbidden: set[str] = set()
        self.is_closed = False

    @property
    def is_ready(self) -> bool:
        return self._problem is None and self._client is not None and self._client.is_connected

    @property
    def payload_max(self) -> int:
        return self._client.max_payload if self._client else 0

    # ---- the connection

    async def open(self, timeout_s: float = FIRST_GRACE_S) -> None:
        """Connect. Raises StoreInvalid if NATS refuses us, or StoreUnavailable; attempts continue in the background."""
        self._start()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_clear.wait()
        self.check_open()
        if not self.is_ready:
            raise self._problem or StoreUnavailable(LOST)

    async def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        await end_tasks(self._keeper)
        # Wake the calls that wait for a connection.
        self._is_clear.set()
        await self._drop_client()

    def _start(self) -> None:
        self.check_open()
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_connected(), name="contextfold-nats")

    def check_open(self) -> None:
        if self.is_closed:
            raise StoreUnavailable("the store is closed")

    async def _keep_connected(self) -> None:
        while not self.is_closed:
            try:
                await self._connect()
                while self._away_s < REPLACE_S:
                    await asyncio.sleep(RECONNECT_PAUSE_S)
            # The library raises many kinds of exceptions, and after any of them the next attempt may succeed.
            except Exception as problem:
                # A client that has tried until the timeout has said why it does not succeed.
                self._note_away((isinstance(problem, TimeoutError) and self._problem) or self._reason(problem))
            await self._drop_client()
            await asyncio.sleep(RECONNECT_PAUSE_S)

    @property
    def _away_s(self) -> float:
        """How long there has been no connection."""
        self._note_if_lost()
        return 0.0 if self._away_since_s is None else asyncio.get_running_loop().time() - self._away_since_s

    async def _connect(self) -> None:
        client = self._client = NatsClient(self.options.domain)
        async with asyncio.timeout(REPLACE_S):
            # Shuffled, so that daemons spread over the servers; after a loss the client tries them in this order.
            servers = random.sample(self.options.servers, len(self.options.servers))
            await client.connect(servers, **self._connect_options(client))
            # The library may have lost the cancellation by `close`.
            self.check_open()
            if not client.is_connected:
                raise ConnectionResetError("the server closed the connection")
            self._check_client(client)
            if not self._is_prepared:
                await self._prepare()
                self._is_prepared = True
        if client.is_connected:
            self._note_connected()
        else:
            self._note_away(StoreUnavailable(LOST))

    def _connect_options(self, client: NatsClient) -> dict[str, Any]:
        options = self.options

        def after_tls(secret: str) -> Callable[[], str]:
            """Called before the client sends anything that identifies us."""

            def give() -> str:
                self._check_tls(client)
                return secret

            return give

        given: dict[str, Any] = {
            "name": "contextfold",
            "dont_randomize": True,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "reconnect_time_wait": RECONNECT_PAUSE_S,
            "max_reconnect_attempts": -1,
            "ping_interval": PING_EVERY_S,
            "max_outstanding_pings": PINGS_UNANSWERED,
            # Without a connection nothing is buffered: the call fails, and is known not to have been sent.
            "pending_size": 0,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "closed_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
        }
        if options.user:
            given |= {"user": after_tls(options.user), "password": after_tls(options.password)}
        elif options.uses_tls:
            given["token"] = after_tls("")
        optional = {"user_credentials": options.creds, "nkeys_seed": options.nkey}
        given |= {name: value for name, value in optional.items() if value}
        if options.tls_ca or options.tls_cert:
            context = ssl.create_default_context(cafile=options.tls_ca or None)
            if options.tls_cert:
                context.load_cert_chain(options.tls_cert, options.tls_key or None)
            given["tls"] = context
        return given

    def _check_tls(self, client: NatsClient) -> None:
        if self.options.uses_tls and not client.has_tls:
            raise TlsMissing("the server does not use TLS; write nats:// instead of tls:// if that is intended")

    def _check_client(self, client: NatsClient) -> None:
        self._check_tls(client)
        check_server(str(client.connected_server_version))

    async def _on_reconnected(self) -> None:
        if self._is_prepared and self._client is not None:
            try:
                self._check_client(self._client)
            except (StoreInvalid, TlsMissing) as problem:
                self._note_away(self._reason(problem))
            else:
                self._note_connected()

    async def _on_disconnected(self) -> None:
        """Called before the client connects again."""
        if self._client is not None:
            self._client.has_tls = False
        self._note_if_lost()

    def _note_if_lost(self) -> None:
        if self._problem is None and not self.is_ready:
            self._note_away(StoreUnavailable(LOST))

    async def _on_error(self, problem: Exception) -> None:
        """What the client would log: a failed attempt to connect, or a subject that the server does not permit.

        The server does not respond to a forbidden request. It sends an error text that contains the subject.
        """
        if "permissions violation" in str(problem).lower():
            if len(self._forbidden) < FORBIDDEN_MAX:
                self._forbidden |= set(re.findall(r'"([^"]+)"', str(problem).lower()))
        elif not self.is_ready:
            # Such an error ends an attempt, perhaps in the middle of starting TLS.
            if self._client is not None and isinstance(problem, OSError):
                self._client.has_tls = False
            self._resets = self._resets + 1 if isinstance(problem, ConnectionResetError | UnexpectedEOF) else 0
            self._note_away(self._reason(problem))

    def _reason(self, problem: Exception) -> StoreInvalid | StoreUnavailable:
        """Why an attempt to connect has failed: StoreInvalid if another one cannot succeed."""
        if isinstance(problem, StoreInvalid | StoreUnavailable):
            return problem
        line = first_line(problem)
        if isinstance(problem, TlsMissing):
            return StoreInvalid(f"NATS: {line}")
        if isinstance(problem, NatsError) and any(word in line.lower() for word in REFUSALS):
            return StoreInvalid(f"NATS refused the connection: {line}; check user, password, nkey or credentials")
        # A file is missing or malformed.
        is_key = type(problem).__module__.partition(".")[0] == "nkeys"
        if is_key or isinstance(problem, ssl.SSLError | FileNotFoundError | PermissionError | ValueError | IndexError):
            return StoreInvalid(f"NATS: {line}; check the files that the settings for NATS name")
        if self._resets >= RESETS_REFUSE and self.options.uses_tls and not self.options.tls_cert:
            # With TLS 1.3 the handshake succeeds before the server asks for a certificate, and the connection is often
            # closed before its alert can be read.
            return StoreInvalid(
                "NATS: the server closes connections after the TLS handshake; it may want a certificate (nats-tls-cert)"
            )
        return StoreUnavailable(f"NATS: {line}")

    def _note_connected(self) -> None:
        self._problem = self._away_since_s = self._failing_since_s = None
        self._refusals = self._resets = 0
        self._is_clear.set()
        self._on_change("")

    def _note_away(self, problem: StoreInvalid | StoreUnavailable) -> None:
        if self.is_closed:
            return
        self._problem = problem
        if self._away_since_s is None:
            self._away_since_s = asyncio.get_running_loop().time()
        self._refusals = self._refusals + 1 if isinstance(problem, StoreInvalid) else 0
        if self._refusals >= len(self.options.servers):
            self._is_clear.set()
        else:
            self._is_clear.clear()
        self._on_change(problem.reason)

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            # The client is abandoned, whatever the library raises and however long it would take.
            with suppress(Exception):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await client.close()

    # ---- calls

    async def client(self) -> NatsClient:
        """Return the connected client. Raises StoreUnavailable soon if the connection is known to be lost."""
        # It is prepared before it is ready.
        if self._client and asyncio.current_task() is self._keeper:
            return self._client
        if not self.is_ready:
            # Calls that queue for a lost connection wait for it together, not one after another.
            away_s = self._away_s
            await self.open(FIRST_GRACE_S if self._away_since_s is None else max(0.0, LOST_GRACE_S - away_s))
        assert self._client is not None
        return self._client

    async def send(self, subject: str, work: Callable[[NatsClient], Awaitable[Result]]) -> Result:
        """Do work that sends one request to this subject, and wait for the response."""
        client = await self.client()
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                return await _keep_cancellation(work(client))
        except TimeoutError:
            if subject.lower() in self._forbidden:
                reason = f"NATS does not permit {subject}: give this user the permissions in docs/nats.md"
                raise StoreInvalid(reason) from None
            await self.note_failure()
            raise OutcomeUnknown(f"NATS did not respond within {RESPONSE_TIMEOUT_S:g} s") from None
        except (OutboundBufferLimitError, ConnectionClosedError, ConnectionDrainingError) as problem:
            raise StoreUnavailable(LOST) from problem
        except (NoRespondersError, NoStreamResponseError) as problem:
            await self.note_failure()
            raise StoreUnavailable("NATS: no server responds for the stream now") from problem

    async def note_failure(self) -> None:
        """Leave a server that answers pings but gives no useful response, if there are others."""
        now_s = asyncio.get_running_loop().time()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        elif now_s - self._failing_since_s >= FAILING_S and len(self.options.servers) > 1 and self._client:
            self._failing_since_s = None
            await self._client.force_reconnect()

    def note_success(self) -> None:
        self._failing_since_s = None


async def _keep_cancellation(work: Awaitable[Result]) -> Result:
    """Await work, and raise a cancellation that it has lost, as `asyncio.wait_for` can before Python 3.12."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    result = await work
    if task and task.cancelling() > before:
        raise asyncio.CancelledError
    return result


def check_server(version: str) -> None:
    """Raise StoreInvalid for a server that is too old. The version is `<nats server v2.15.1>` or a bare number."""
    found = re.search(r"(\d+)\.(\d+)[.\d]*", version)
    if found is None or (int(found[1]), int(found[2])) < SERVER_MIN:
        least = ".".join(map(str, SERVER_MIN))
        known = found[0] if found else "of no known version"
        raise StoreInvalid(f"the NATS server is {known}; {least} or later is needed")


def first_line(problem: Exception) -> str:
    """The first line of the message, or the type of an exception that has none, as a timeout."""
    return (str(problem).removeprefix("nats: ").splitlines() or [type(problem).__name__])[0]
