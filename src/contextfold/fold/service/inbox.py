"""A bounded queue of received items for each session. Knows no text, no verb and no store.

A sender is answered at once. Items are written later, in order and in batches, with retries while the store is
unavailable. A batch is written when it is full, or when its first item has waited for `PAUSE_S`; each session has its
own pause. So a killed process loses only items that are younger than the pause and one commit. A verb on the same
session waits for the items before it, and ends the pause.
"""

from __future__ import annotations

import asyncio
import os
import random
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from contextfold.errors import StoreUnavailable
from contextfold.fold.store import SessionKey

# The limits on waiting items and bytes, of all owners together and of one owner, which leaves room for others.
ITEMS_MAX = 40_000
BYTES_MAX = 128 << 20
OWNER_ITEMS_MAX = 20_000
OWNER_BYTES_MAX = 64 << 20
# The limits of one batch, which is one commit.
BATCH_ITEMS = 256
BATCH_BYTES = 1 << 20
# The range of the time that the first item of a batch waits; random, so that sessions do not write in step.
PAUSE_S = (0.2, 0.4)
# The first and the longest pause between retries while the store is unavailable.
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 2.0
# The timeouts of a verb that waits for earlier reports, and of a view of all sessions.
SETTLED_TIMEOUT_S = 5.0
ALL_SETTLED_TIMEOUT_S = 1.0
# Closing waits at most this long for received items.
CLOSE_TIMEOUT_S = 5.0

Item = TypeVar("Item")


class InboxFull(Exception):
    """The queue is full until some of the waiting items are written."""


@dataclass(slots=True)
class _Queue(Generic[Item]):
    """The queue of one session: items with their sizes, and the numbers of items ever added and written."""

    # Set when the pause before the next batch should end, because it is full or a caller waits for it.
    hurry: asyncio.Event
    # Set when a caller begins to wait, which ends the pause before the next attempt.
    awaited: asyncio.Event
    items: deque[tuple[Item, int]] = field(default_factory=deque)
    bytes: int = 0
    added: int = 0
    done: int = 0
    waiters: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether there are enough items for a full batch."""
        return len(self.items) >= BATCH_ITEMS or self.bytes >= BATCH_BYTES


class Inbox(ABC, Generic[Item]):
    """The queues; a subclass writes the items."""

    def __init__(self) -> None:
        # The number of sessions whose next attempt to write waits for the store.
        self._retrying = 0
        self._queues: dict[SessionKey, _Queue[Item]] = {}
        # The number of waiting items of each owner, and of their bytes.
        self._items: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._closed = False

    @abstractmethod
    async def write(self, key: SessionKey, batch_id: str, items: Sequence[Item]) -> None:
        """Write items of one session together. A retry has the same id."""

    def lose(self, key: SessionKey, items: Sequence[Item], problem: Exception | None) -> None:
        """Called with items that could not be written, and the error; None after the timeout of closing."""

    def note_unavailable(self, is_unavailable: bool) -> None:
        """Called when the store becomes unavailable, and when it is back."""

    @property
    def waiting(self) -> int:
        return self._items.total()

    @property
    def is_unavailable(self) -> bool:
        """Whether the store is unavailable for some of what waits."""
        return self._retrying > 0

    def put(self, key: SessionKey, items: Sequence[Item], sizes_bytes: Sequence[int]) -> None:
        """Add all items, or raise InboxFull and add none."""
        if not items:
            return
        self._check_room(key.owner, len(items), sum(sizes_bytes))
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(asyncio.Event(), asyncio.Event())
        queue.items.extend(zip(items, sizes_bytes, strict=True))
        queue.added += len(items)
        queue.bytes += sum(sizes_bytes)
        self._count(key.owner, len(items), sum(sizes_bytes))
        if queue.task is None:
            queue.task = asyncio.get_running_loop().create_task(self._work(key, queue))
        elif queue.is_full:
            queue.hurry.set()

    async def settle(self, key: SessionKey, timeout_s: float | None = None) -> None:
        """Wait until all items that were added for this session before are written."""
        timeout_s = SETTLED_TIMEOUT_S if timeout_s is None else timeout_s
        queue = self._queues.get(key)
        if queue is None:
            return
        queue.hurry.set()
        queue.awaited.set()
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.waiters.append((queue.added, written))
        try:
            async with asyncio.timeout(timeout_s):
                await written
        except TimeoutError:
            raise StoreUnavailable(f"what was reported before is not written after {timeout_s:g} s") from None
        finally:
            queue.waiters = [waiter for waiter in queue.waiters if waiter[1] is not written]

    async def settle_all(self, owner: str, timeout_s: float | None = None) -> None:
        """Wait for the items of all sessions of an owner. A session that cannot be written does not delay others."""
        timeout_s = ALL_SETTLED_TIMEOUT_S if timeout_s is None else timeout_s
        keys = [key for key in self._queues if key.owner == owner]
        if keys:
            await asyncio.gather(*(self.settle(key, timeout_s) for key in keys), return_exceptions=True)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Accept no more items and write those that wait. The rest after the timeout is reported as lost."""
        self._closed = True
        queues = list(self._queues.values())
        for queue in queues:
            queue.hurry.set()
        tasks = [queue.task for queue in queues if queue.task]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for key, queue in self._queues.items():
            if queue.items:
                self.lose(key, [item for item, _ in queue.items], None)

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

    async def _work(self, key: SessionKey, queue: _Queue[Item]) -> None:
        while queue.items:
            if not queue.is_full:
                await self.pause(queue.hurry, random.uniform(*PAUSE_S))  # noqa: S311 - no secret
            batch = _next_batch(queue.items)
            await self._deliver(key, [item for item, _ in batch], queue)
            for _ in batch:
                queue.items.popleft()
            size_bytes = sum(item_bytes for _, item_bytes in batch)
            queue.bytes -= size_bytes
            self._count(key.owner, -len(batch), -size_bytes)
            queue.done += len(batch)
            for ticket, written in queue.waiters:
                if ticket <= queue.done and not written.done():
                    written.set_result(None)
            if not self._closed and all(written.done() for _, written in queue.waiters):
                queue.hurry.clear()
        # There was no `await` since the last check, so no item can have been added meanwhile.
        del self._queues[key]

    async def _deliver(self, key: SessionKey, items: Sequence[Item], queue: _Queue[Item]) -> None:
        """Write a batch. If it is refused, write its items one by one, so that only a bad item is lost."""
        batch_id, is_retry, pause_s = os.urandom(16).hex(), False, RETRY_FIRST_S
        while True:
            queue.awaited.clear()
            try:
                await self.write(key, batch_id, items)
            except StoreUnavailable as problem:
                # After two failures a waiting caller gets the error. The next caller causes the next attempt.
                for _, written in queue.waiters if is_retry else ():
                    if not written.done():
                        written.set_exception(problem)
                self._count_retrying(1)
                try:
                    await self.pause(queue.awaited, pause_s)
                finally:
                    self._count_retrying(-1)
                is_retry, pause_s = True, min(2 * pause_s, RETRY_MAX_S)
                continue
            except Exception as problem:
                # A retry would not help, for example if a text cannot be scrubbed.
                if len(items) == 1:
                    self.lose(key, items, problem)
                else:
                    for item in items:
                        await self._deliver(key, [item], queue)
            return

    async def pause(self, event: asyncio.Event, pause_s: float) -> None:
        """Wait for an event, at most this long."""
        try:
            async with asyncio.timeout(pause_s):
                await event.wait()
        except TimeoutError:
            pass

    def _count_retrying(self, more: int) -> None:
        was_unavailable = self.is_unavailable
        self._retrying += more
        if self.is_unavailable != was_unavailable:
            self.note_unavailable(self.is_unavailable)


def _next_batch(items: deque[tuple[Item, int]]) -> list[tuple[Item, int]]:
    """The items of the next batch."""
    chosen: list[tuple[Item, int]] = []
    size_bytes = 0
    for item, item_bytes in items:
        size_bytes += item_bytes
        if chosen and (len(chosen) >= BATCH_ITEMS or size_bytes > BATCH_BYTES):
            break
        chosen.append((item, item_bytes))
    return chosen
