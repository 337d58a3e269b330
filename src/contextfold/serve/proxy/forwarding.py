"""A request on its way to a model: its head as the provider gets it, its body as it comes or without what is folded.

A body is looked into only when it is here, whole. How much of all bodies may be here at once is bounded; what does not
fit, or cannot be read, goes on part by part as it came, and the receipt says why. Knows ASGI and header names; what is
left out is `fold.messages`' to say.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import httpx2

from contextfold.common.exception_location import place_of
from contextfold.fold.messages import BodyProjection, Format, Receipt, project_body
from contextfold.serve.http.exchange import OWNER, ClientGone, Headers, Receive, Scope
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.proxy.upstream import sent_on, with_body, with_readable_encoding

FOLDED_MAX_BYTES = 32 << 20  # a larger request is not looked into
FOLDED_ALL_MAX_BYTES = 256 << 20  # of all that are looked into or kept for their sessions at a time
FOLDED_OWNER_MAX_BYTES = 128 << 20  # of these, an owner's
INLINE_BYTES = 256 << 10  # a longer request is looked into in a thread, so that others are answered meanwhile
PART_BYTES = 256 << 10  # of a body that is here, sent at once: each has the upstream's time to be taken
LANES = 2  # threads

TOO_LARGE, MANY, ENCODED, FAILED = "too_large", "busy", "encoded", "failed"
REASONS = (TOO_LARGE, MANY, ENCODED, FAILED)  # ours, beside those of `fold.messages`


class Passing:
    """A request on its way: its head as the upstream gets it, its body as it comes."""

    def __init__(self, scope: Scope, target: bytes, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.owner: str = scope[OWNER]
        self.target = target
        self.given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            self.given.setdefault(name, []).append(value)
        self.headers: Headers = sent_on(scope["headers"])
        self.incoming = Incoming(receive)
        self.body: httpx2.AsyncByteStream = self.incoming

    def claimed_bytes(self) -> int:
        """The length that the head tells; 0 if none."""
        claimed = self.given.get(b"content-length", [b"0"])[0]
        return int(claimed) if claimed.isdigit() else 0


class Incoming(httpx2.AsyncByteStream):
    """The client's body, part by part; first those that somebody has read and given back."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._given_back: deque[bytes] = deque()
        self._taken: Callable[[], None] = lambda: None
        self.is_over = asyncio.Event()

    def give_back(self, parts: Iterable[bytes], taken: Callable[[], None]) -> None:
        """Have these come first; `taken` is called when they are no longer here."""
        self._given_back, self._taken = deque(parts), taken

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._given_back:
            yield self._given_back.popleft()
        self._taken()
        while not self.is_over.is_set():
            yield await self.next()

    async def next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if not message.get("more_body", False):
            self.is_over.set()
        part: bytes = message.get("body", b"")
        return part


class _Whole(httpx2.AsyncByteStream):
    """A body that is here, in parts that a slow line can take. It is sent once and then forgotten."""

    def __init__(self, body: bytes, taken: Callable[[], None]) -> None:
        self._body, self._taken = body, taken

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body, self._body = self._body, b""
        for start in range(0, len(body), PART_BYTES):
            yield body[start : start + PART_BYTES]
        del body
        self._taken()


class Held:
    """What is kept of a request while it is answered, of a budget that all share.

    Once it is sent, nothing more is needed but what was taken out of it for its session.
    """

    def __init__(self, folding: Folding, owner: str) -> None:
        self._folding, self._owner = folding, owner
        self.size_bytes = 0
        self._is_sent = False
        self._noted_bytes: int | None = None
        self.receipt = _unread("")
        self.projection: BodyProjection | None = None

    def take(self, more: int) -> bool:
        """Whether there is room for so many bytes."""
        if not self._folding.has_room_for(self._owner, more):
            return False
        self.size_bytes += more
        self._folding.hold(self._owner, more)
        return True

    def sent(self) -> None:
        self._is_sent = True
        self._let_go()

    def noted(self, size: int) -> None:
        """So much was taken out of it."""
        self._noted_bytes = size
        self._let_go()

    def _let_go(self) -> None:
        if self._is_sent and self._noted_bytes is not None:
            self.release(but=self._noted_bytes)

    def release(self, but: int = 0) -> None:
        freed = max(0, self.size_bytes - but)
        self.size_bytes -= freed
        self._folding.hold(self._owner, -freed)
        self.projection = None


class Folding:
    """Looks into requests, a bounded number of bytes at a time."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lane = ThreadPoolExecutor(LANES, "contextfold-project")
        self.held_bytes = 0
        self.held_of: Counter[str] = Counter()

    def has_room_for(self, owner: str, more: int) -> bool:
        is_fair = self.held_of[owner] + more <= FOLDED_OWNER_MAX_BYTES
        return is_fair and self.held_bytes + more <= FOLDED_ALL_MAX_BYTES

    def hold(self, owner: str, more: int) -> None:
        self.held_bytes += more
        self.held_of[owner] += more
        if not self.held_of[owner]:
            del self.held_of[owner]

    def close(self) -> None:
        self._lane.shutdown(wait=False, cancel_futures=True)

    async def fold(self, api: Format, passing: Passing) -> Held:
        """Have the request pass without what is folded, or as it comes where that cannot be known."""
        held = Held(self, passing.owner)
        try:
            reason = await self._read(api, passing, held)
        except BaseException:
            held.release()
            raise
        passing.headers = with_readable_encoding(passing.headers)
        if reason:
            held.noted(0)
            held.receipt = _unread(reason)
        dropped = held.receipt.tokens_before - held.receipt.tokens_after
        self._metrics.proxied(
            api, tokens_dropped=max(0, dropped), is_folded=bool(held.receipt.folds), reason=held.receipt.reason
        )
        return held

    async def _read(self, api: Format, passing: Passing, held: Held) -> str:
        """Empty, or why the request was not looked into."""
        if any(value.strip().lower() != b"identity" for value in passing.given.get(b"content-encoding", ())):
            return ENCODED
        if passing.claimed_bytes() > FOLDED_MAX_BYTES:
            return TOO_LARGE
        parts: list[bytes] = []
        size = 0
        while not passing.incoming.is_over.is_set():
            part = await passing.incoming.next()
            parts.append(part)
            size += len(part)
            if size > FOLDED_MAX_BYTES or not held.take(len(part)):
                passing.incoming.give_back(parts, held.sent)
                return TOO_LARGE if size > FOLDED_MAX_BYTES else MANY
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        del parts
        passing.body, passing.headers = _Whole(body, held.sent), with_body(passing.headers, len(body))
        projection = await self._projected(api, body)
        if projection is None:
            return FAILED
        held.projection, held.receipt = projection, projection.receipt
        passing.body = _Whole(projection.body, held.sent)
        passing.headers = with_body(passing.headers, len(projection.body))
        return ""

    async def _projected(self, api: Format, body: bytes) -> BodyProjection | None:
        began_s = time.perf_counter()
        try:
            if len(body) <= INLINE_BYTES:
                return project_body(body, api)
            return await asyncio.get_running_loop().run_in_executor(self._lane, project_body, body, api)
        except Exception as problem:  # a bug folds nothing, and breaks no request
            log("proxy.fold_failed", "error", exception=type(problem).__name__, raised_at=place_of(problem))
            return None
        finally:
            self._metrics.projection_took(api, time.perf_counter() - began_s)


def _unread(reason: str) -> Receipt:
    return Receipt(0, 0, 0, 0, 0, 0, None, (), (), reason)
