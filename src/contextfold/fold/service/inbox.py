"""What was received and is not yet written: a bounded queue for each session. Knows no text, no verb and no store.

Whoever puts something in is answered at once; it is written behind, in order, several at a time, however often the
store has to be asked again. A verb on the same session waits for what was put in before it, and makes it hurry.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from contextfold.errors import StoreUnavailable
from contextfold.fold.store import SessionKey

ITEMS_MAX = 40_000  # of all owners together
BYTES_MAX = 128 << 20
OWNER_ITEMS_MAX = 20_000  # so that one who floods leaves room for others
OWNER_BYTES_MAX = 64 << 20
BATCH_ITEMS = 64  # written with one commit
BATCH_BYTES = 1 << 20
LINGER_S = (0.2, 0.4)  # for more of the same session to come; at random, so that not all begin to write at once
QUIET_S = 0.01  # without anything coming in before writing begins: who reports is served first
LINGERS_MOST = 3
AGAIN_FIRST_S, AGAIN_MOST_S = 0.1, 2.0  # between tries while the store is away
SETTLED_S = 5.0  # that a verb waits at most
ALL_SETTLED_S = 1.0  # and a look at all sessions: better without the last than late

Item = TypeVar("Item")


class InboxFull(Exception):
    """Nothing more can be taken until the store has caught up."""


@dataclass(frozen=True, slots=True)
class Batch(Generic[Item]):
    """Items of one session, to be written together. Tried again, it has the same id."""

    key: SessionKey
    id: str
    items: Sequence[Item]
    is_again: bool = False


@dataclass(slots=True)
class _Lane(Generic[Item]):
    """What waits for one session."""

    items: deque[tuple[Item, int]] = field(default_factory=deque)
    taken: int = 0  # so many were ever put in
    done: int = 0  # and so many are written
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    waiters: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class Inbox(Generic[Item]):
    def __init__(
        self,
        write: Callable[[Batch[Item]], Awaitable[None]],
        *,
        lost: Callable[[Sequence[Item], Exception | None], None],
        away: Callable[[bool], None] = lambda _is_away: None,
    ) -> None:
        self._write = write
        self._lost = lost  # told of what could not be written, and why
        self._away = away  # told when the store has to be asked again, and when it no longer has to
        self._retrying = 0
        self._lanes: dict[SessionKey, _Lane[Item]] = {}
        self._items: Counter[str] = Counter()  # that wait, by owner
        self._bytes: Counter[str] = Counter()
        self._closed = False
        self._last_put_s = 0.0

    @property
    def waiting(self) -> int:
        return self._items.total()

    @property
    def is_away(self) -> bool:
        """Whether the store has to be asked again for some of what waits."""
        return self._retrying > 0

    def put(self, key: SessionKey, items: Sequence[Item], sizes_bytes: Sequence[int]) -> None:
        """Take them all, or refuse with InboxFull. What was taken is written, unless the process is killed before."""
        if not items:
            return
        self._check_room(key.owner, len(items), sum(sizes_bytes))
        loop = asyncio.get_running_loop()
        self._last_put_s = loop.time()
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        lane.items.extend(zip(items, sizes_bytes, strict=True))
        lane.taken += len(items)
        self._count(key.owner, len(items), sum(sizes_bytes))
        if lane.task is None:
            lane.task = loop.create_task(self._work(key, lane))

    async def settled(self, key: SessionKey, timeout_s: float | None = None) -> None:
        """Wait until everything that was put in for this session by now is written."""
        timeout_s = SETTLED_S if timeout_s is None else timeout_s
        lane = self._lanes.get(key)
        if lane is None:
            return
        lane.hurry.set()
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.waiters.append((lane.taken, written))
        try:
            async with asyncio.timeout(timeout_s):
                await written
        except TimeoutError:
            raise StoreUnavailable(f"what was reported before is not written after {timeout_s:g} s") from None
        finally:
            lane.waiters = [waiter for waiter in lane.waiters if waiter[1] is not written]

    async def all_settled(self, owner: str) -> None:
        """Wait for what was put in for any session of an owner's. One that cannot be written holds up no other."""
        keys = [key for key in self._lanes if key.owner == owner]
        await asyncio.gather(*(self.settled(key, ALL_SETTLED_S) for key in keys), return_exceptions=True)

    async def close(self, timeout_s: float) -> None:
        """Write all that is there, and take nothing more. What is left when the time is over is lost, and told."""
        self._closed = True
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.hurry.set()
        tasks = [lane.task for lane in lanes if lane.task]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        left = [item for lane in self._lanes.values() for item, _ in lane.items]
        if left:
            self._lost(left, None)

    def _check_room(self, owner: str, items: int, size_bytes: int) -> None:
        if (
            self._closed
            or self._items.total() + items > ITEMS_MAX
            or self._bytes.total() + size_bytes > BYTES_MAX
            or self._items[owner] + items > OWNER_ITEMS_MAX
            or self._bytes[owner] + size_bytes > OWNER_BYTES_MAX
        ):
            raise InboxFull

    def _count(self, owner: str, items: int, size_bytes: int) -> None:
        self._items[owner] += items
        self._bytes[owner] += size_bytes
        if not self._items[owner]:
            del self._items[owner], self._bytes[owner]

    async def _work(self, key: SessionKey, lane: _Lane[Item]) -> None:
        while lane.items:
            await self._linger(lane.hurry)
            batch = _first(lane.items)
            await self._deliver(Batch(key, secrets.token_hex(16), [item for item, _ in batch]))
            for _ in batch:
                lane.items.popleft()
            self._count(key.owner, -len(batch), -sum(size_bytes for _, size_bytes in batch))
            lane.done += len(batch)
            for ticket, written in lane.waiters:
                if ticket <= lane.done and not written.done():
                    written.set_result(None)
            if not self._closed and all(written.done() for _, written in lane.waiters):
                lane.hurry.clear()
        del self._lanes[key]  # with no await since the last look, nothing can have come

    async def _linger(self, hurry: asyncio.Event) -> None:
        """Until a quiet moment, or for as long as can be afforded."""
        loop = asyncio.get_running_loop()
        for _ in range(LINGERS_MOST):
            await _wait(hurry, random.uniform(*LINGER_S))  # noqa: S311 - no secret
            if hurry.is_set() or loop.time() - self._last_put_s > QUIET_S:
                return

    async def _deliver(self, batch: Batch[Item]) -> None:
        """Write them together; if that cannot be done, one by one, so that one bad apple spoils nothing."""
        pause_s = AGAIN_FIRST_S
        while True:
            try:
                await self._write(batch)
            except StoreUnavailable:
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, AGAIN_MOST_S)
                batch = replace(batch, is_again=True)
                continue
            except Exception as problem:  # a text that cannot be scrubbed, a log that cannot be read: it stays so
                if len(batch.items) == 1:
                    self._lost(batch.items, problem)
                else:
                    for item in batch.items:
                        await self._deliver(Batch(batch.key, secrets.token_hex(16), [item]))
            return

    async def _pause(self, pause_s: float) -> None:
        self._retry(1)
        try:
            await asyncio.sleep(pause_s)
        finally:
            self._retry(-1)

    def _retry(self, more: int) -> None:
        was_away = self.is_away
        self._retrying += more
        if self.is_away != was_away:
            self._away(self.is_away)


def _first(items: deque[tuple[Item, int]]) -> list[tuple[Item, int]]:
    """As many as are written with one commit."""
    chosen: list[tuple[Item, int]] = []
    size_bytes = 0
    for item, item_bytes in items:
        size_bytes += item_bytes
        if chosen and (len(chosen) >= BATCH_ITEMS or size_bytes > BATCH_BYTES):
            break
        chosen.append((item, item_bytes))
    return chosen


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
