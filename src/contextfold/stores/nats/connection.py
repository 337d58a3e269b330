"""A connection to NATS that is restored after a loss. Knows requests and responses, nothing of streams.

The client library does not reconnect here. Each of its connections is used once; when it breaks, every waiting request
fails at once and this module makes the next connection, each step within a timeout. A request that was not sent and one
whose response did not arrive are different errors, because the second may have taken effect.

The library sends what is left in its buffer before it reports that a connection has ended, which can take long if the
server is gone. It also starts TLS only if the server announces it. Neither can be changed through its public interface,
so `NatsClient` uses private names of the library.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Any, Final, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.settings import NatsOptions

Result = TypeVar("Result")
# An attribute of a transport. `tests/stores/test_nats_client.py` has all private names that this module uses.
PRIVATE_WRITER: Final = "_io_writer"
# Older servers ignore features that the store relies on, without an error.
SERVER_LEAST: Final = (2, 12)
CONNECT_TIMEOUT_S: Final = 3.0
# The pause before another attempt to connect, doubled each time.
CONNECT_PAUSE_S: Final = 0.05
CONNECT_PAUSE_MOST_S: Final = 2.0
# A call waits for the first attempt to connect, and this much longer.
GRACE_S: Final = 1.0
# After a loss, calls wait this long for the connection to be restored. Later ones fail at once.
LOST_GRACE_S: Final = 0.15
# Words in the errors of a server that refuses a user.
REFUSALS: Final = ("authoriz", "authenticat", "permission")
RESPONSE_TIMEOUT_S: Final = 2.0
PING_EVERY_S: Final = 2
PINGS_UNANSWERED: Final = 2
# After this time without a useful response another server is tried: this one may be cut off from the others.
FAILING_S: Final = 5.0
# After this many closed connections in a row a server that uses TLS is taken to want a certificate.
RESETS_REFUSE: Final = 4
# The library waits in vain for the end of a failed TLS handshake.
CLOSE_TIMEOUT_S: Final = 1.0
FLUSH_TIMEOUT_S: Final = 1
# Messages of a subscription, and None when the connection is lost.
MessageQueue = asyncio.Queue[Msg | None]
# Called with "connected" or "away: …".
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


class NatsClient(Client):
    """A connection that reports its end at once, and requires TLS if the address does."""

    def __init__(self, on_end: Callable[[Client], None]) -> None:
        super().__init__()
        self._on_end = on_end

    @property
    def has_jetstream(self) -> bool:
        """Whether the server announces JetStream. A server without it may still be connected to others that have it."""
        return bool(self._server_info.get("jetstream"))

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._on_end(self)
        self._pending = []
        self._pending_data_size = 0
        writer = getattr(self._transport, PRIVATE_WRITER, None)
        if writer is not None:
            writer.transport.abort()
        await super()._close(status, do_cbs)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        server = self._current_server
        if initial_connection and server and server.uri.scheme == "tls" and not info.get("tls_required"):
            raise StoreInvalid("NATS: the server does not use TLS; write nats:// instead of tls:// if that is intended")
        await super()._process_info(info, initial_connection)


class OutcomeUnknown(StoreUnavailable):
    """No response: the request may have taken effect, or may still do so."""


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
        self._last_report = ""
        self._client: NatsClient | None = None
        self._ready = asyncio.Event()
        # Set when there is a connection, or when every server has refused us.
        self._is_clear = asyncio.Event()
        self._down_since_s: float | None = None
        self._refusals = 0
        # Attempts in a row that the server ended by closing the connection.
        self._resets = 0
        self._lost = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._problem: StoreInvalid | StoreUnavailable = StoreUnavailable("NATS: not connected yet")
        # The subject and the response of each request, by number.
        self._requests: dict[str, tuple[str, asyncio.Future[Msg]]] = {}
        # The messages of each subscription.
        self._queues: set[MessageQueue] = set()
        self._inbox = ""
        self._numbers = itertools.count()
        self._failing_since_s: float | None = None
        self._closed = False

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    @property
    def payload_most(self) -> int:
        return self._client.max_payload if self._client else 0

    @property
    def has_jetstream(self) -> bool:
        return bool(self._client and self._client.has_jetstream)

    # ---- the connection

    async def open(self, timeout_s: float = CONNECT_TIMEOUT_S + GRACE_S) -> None:
        """Connect. Raises StoreInvalid if NATS refuses us, or StoreUnavailable; attempts continue in the background."""
        self._start()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_clear.wait()
        self._check_open()
        if not self.is_ready:
            raise self._problem

    async def wait_connected(self) -> None:
        """Wait for a connection without a timeout. Raises StoreUnavailable when this is closed."""
        self._start()
        await self._ready.wait()
        self._check_open()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await end_tasks(self._keeper)
        # Wake the calls that wait for a connection.
        self._ready.set()
        self._is_clear.set()
        if self._client is not None:
            with suppress(NatsError, OSError, TimeoutError):
                await self._client.flush(FLUSH_TIMEOUT_S)
        await self._drop_client()

    def _start(self) -> None:
        self._check_open()
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_connected(), name="contextfold-nats")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    async def _keep_connected(self) -> None:
        now_s = asyncio.get_running_loop().time
        pause_s = CONNECT_PAUSE_S / 2
        # Shuffled, so that daemons spread over the servers.
        for server in itertools.cycle(random.sample(self.options.servers, len(self.options.servers))):
            has_lived = False
            try:
                await self._connect(server)
                made_s = now_s()
                await self._lost.wait()
                has_lived = now_s() - made_s >= CONNECT_PAUSE_MOST_S
                self._report_away(StoreUnavailable("NATS: the connection was lost"))
            # The library raises many kinds of exceptions, and after any of them the next attempt may succeed.
            except Exception as problem:
                self._resets = self._resets + 1 if isinstance(problem, ConnectionResetError) else 0
                self._report_away(self._reason(problem))
            await self._drop_client()
            pause_s = CONNECT_PAUSE_S if has_lived else min(pause_s * 2, CONNECT_PAUSE_MOST_S)
            await asyncio.sleep(pause_s)

    async def _connect(self, server: str) -> None:
        self._lost.clear()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            self._client = NatsClient(self._on_client_end)
            await self._client.connect(server, **self._options())
            self._inbox = f"{self._client.new_inbox()}."
            await self._client.subscribe(f"{self._inbox}*", cb=self._on_response)
        check_server(str(self._client.connected_server_version))
        if not self._is_prepared:
            await self._prepare()
            self._is_prepared = True
        if not self._lost.is_set():
            self._failing_since_s = self._down_since_s = None
            self._refusals = self._resets = 0
            self._ready.set()
            self._is_clear.set()
            self._report_change("connected")

    def _options(self) -> dict[str, Any]:
        options = self.options
        given: dict[str, Any] = {
            "name": "contextfold",
            "allow_reconnect": False,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "ping_interval": PING_EVERY_S,
            "max_outstanding_pings": PINGS_UNANSWERED,
            "error_cb": self._on_error,
        }
        optional = {"user_credentials": options.creds, "nkeys_seed": options.nkey, "user": options.user}
        given |= {name: value for name, value in optional.items() if value}
        if options.user:
            given["password"] = options.password
        if options.tls_ca or options.tls_cert:
            context = ssl.create_default_context(cafile=options.tls_ca or None)
            if options.tls_cert:
                context.load_cert_chain(options.tls_cert, options.tls_key or None)
            given["tls"] = context
        return given

    def _reason(self, problem: Exception) -> StoreInvalid | StoreUnavailable:
        """Why an attempt to connect has failed: StoreInvalid if another one cannot succeed."""
        if isinstance(problem, StoreInvalid):
            return problem
        line = first_line(problem)
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

    def _report_away(self, problem: StoreInvalid | StoreUnavailable) -> None:
        self._problem = problem
        if self._down_since_s is None:
            self._down_since_s = asyncio.get_running_loop().time()
        self._ready.clear()
        self._refusals = self._refusals + 1 if isinstance(problem, StoreInvalid) else 0
        if self._refusals >= len(self.options.servers):
            self._is_clear.set()
        else:
            self._is_clear.clear()
        self._report_change(f"away: {problem.reason}")

    def _report_change(self, text: str) -> None:
        """Report a change once, not every attempt."""
        if text != self._last_report:
            self._last_report = text
            self._on_change(text)

    def _on_client_end(self, client: Client) -> None:
        if client is self._client:
            self._lost.set()
            self._end_waits()

    def _end_waits(self) -> None:
        waiting, self._requests = self._requests, {}
        for _, future in waiting.values():
            _fail(future, OutcomeUnknown("NATS: the connection was lost before the response"))
        for queue in self._queues:
            queue.put_nowait(None)

    async def _on_error(self, problem: Exception) -> None:
        """Failures are raised in the request they belong to; the library would log them.

        The server does not respond to a forbidden request. It sends an error text that contains the subject.
        """
        text = str(problem).lower()
        for subject, future in list(self._requests.values()) if "permissions violation" in text else ():
            if f'"{subject.lower()}"' in text:
                reason = f"NATS does not permit {subject}: give this user the permissions in docs/nats.md"
                _fail(future, StoreInvalid(reason))

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        self._end_waits()
        if client is not None:
            # The connection is abandoned, whatever the library raises.
            with suppress(Exception):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await client.close()

    # ---- requests

    async def client(self) -> Client:
        """Return the connection. Raises StoreUnavailable soon if it is known to be down."""
        # It is prepared before it is ready.
        if self._client and asyncio.current_task() is self._keeper:
            return self._client
        if self._closed or not (self._ready.is_set() and self._client):
            timeout_s = CONNECT_TIMEOUT_S + GRACE_S
            if self._down_since_s is not None:
                # Calls that queue for a lost connection wait for it together, not one after another.
                timeout_s = max(0.0, self._down_since_s + LOST_GRACE_S - asyncio.get_running_loop().time())
            await self.open(timeout_s)
        assert self._client is not None
        return self._client

    async def request(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> Msg:
        client = await self.client()
        number = str(next(self._numbers))
        sent_s = asyncio.get_running_loop().time()
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._requests[number] = (subject, future)
        try:
            await client.publish(subject, payload, reply=self._inbox + number, headers=headers)
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                response = await future
        except TimeoutError:
            self._note_failure()
            raise OutcomeUnknown(f"NATS did not respond within {RESPONSE_TIMEOUT_S:g} s") from None
        # The caller's timeout may be shorter than ours.
        except asyncio.CancelledError:
            if asyncio.get_running_loop().time() - sent_s >= RESPONSE_TIMEOUT_S / 2:
                self._note_failure()
            raise
        except (NatsError, OSError) as problem:
            raise OutcomeUnknown(f"NATS: {first_line(problem)}") from problem
        finally:
            self._requests.pop(number, None)
        if response.headers and response.headers.get("Status") == "503":
            self._note_failure()
            raise StoreUnavailable("NATS: no server responds for the stream now")
        return response

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[tuple[str, MessageQueue]]:
        """Subscribe to a new subject, and unsubscribe at the end."""
        client = await self.client()
        subject, queue = client.new_inbox(), MessageQueue()
        try:
            subscription = await client.subscribe(subject, cb=queue.put)
        except (NatsError, OSError) as problem:
            raise StoreUnavailable(f"NATS: {first_line(problem)}") from problem
        self._queues.add(queue)
        try:
            yield subject, queue
        finally:
            self._queues.discard(queue)
            with suppress(NatsError, OSError):
                await subscription.unsubscribe()

    def _note_failure(self) -> None:
        """Leave a server that answers pings but gives no useful response, if there are others."""
        now_s = asyncio.get_running_loop().time()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        elif now_s - self._failing_since_s >= FAILING_S and len(self.options.servers) > 1:
            self._lost.set()

    async def _on_response(self, message: Msg) -> None:
        _, future = self._requests.pop(message.subject.rpartition(".")[2], ("", None))
        if future is not None and not future.done():
            future.set_result(message)


def _fail(future: asyncio.Future[Msg], problem: Exception) -> None:
    if not future.done():
        future.set_exception(problem)
        # Mark the exception as retrieved: the caller may have given up.
        future.exception()


def check_server(version: str) -> None:
    """Raise StoreInvalid for a server that is too old. The version is `<nats server v2.15.1>` or a bare number."""
    found = re.search(r"(\d+)\.(\d+)[.\d]*", version)
    if found is None or (int(found[1]), int(found[2])) < SERVER_LEAST:
        least = ".".join(map(str, SERVER_LEAST))
        known = found[0] if found else "of no known version"
        raise StoreInvalid(f"the NATS server is {known}; {least} or later is needed")


def first_line(problem: Exception) -> str:
    """The first line of the message, or the type of an exception that has none, as a timeout."""
    return (str(problem).removeprefix("nats: ").splitlines() or [type(problem).__name__])[0]
