"""What was received and is not yet written: a bounded queue for each session. Knows no text, no verb and no store.

Whoever puts something in is answered at once; it is written behind, in order, several at a time, however often the
store has to be asked again. A verb on the same session waits for what was put in before it, and makes it hurry.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.fold.store import SessionKey

ITEMS_MAX = 20_000  # of all sessions together
BYTES_MAX = 64 << 20
BATCH_ITEMS = 64  # written with one commit
BATCH_BYTES = 1 << 20
LINGER_S = (0.05, 0.1)  # for more of the same session to come; at random, so that not all begin to write at once
QUIET_S = 0.01  # without anything coming in before writing begins: who reports is served first
LINGERS_MOST = 4
AGAIN_FIRST_S, AGAIN_MOST_S = 0.1, 2.0  # between tries while the store is away
SETTLED_S = 5.0  # that a verb waits at most

Item = TypeVar("Item")


class InboxFull(Exception):
    """Nothing more can be taken until the store has caught up."""


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
        write: Callable[[SessionKey, Sequence[Item]], Awaitable[None]],
        *,
        lost: Callable[[Sequence[Item], Exception | None], None],
    ) -> None:
        self._write = write
        self._lost = lost  # told of what could not be written, and why
        self._lanes: dict[SessionKey, _Lane[Item]] = {}
        self._closed = False
        self._last_put_s = 0.0
        self.waiting = 0
        self.waiting_bytes = 0

    def put(self, key: SessionKey, item: Item, size_bytes: int) -> None:
        """Take it, or refuse with InboxFull. What was taken is written, unless the process is killed before."""
        if self._closed or self.waiting >= ITEMS_MAX or self.waiting_bytes + size_bytes > BYTES_MAX:
            raise InboxFull
        loop = asyncio.get_running_loop()
        self._last_put_s = loop.time()
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        lane.items.append((item, size_bytes))
        lane.taken += 1
        self.waiting += 1
        self.waiting_bytes += size_bytes
        if lane.task is None:
            lane.task = loop.create_task(self._work(key, lane))

    async def settled(self, key: SessionKey) -> None:
        """Wait until everything that was put in for this session by now is written."""
        lane = self._lanes.get(key)
        if lane is None:
            return
        lane.hurry.set()
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.waiters.append((lane.taken, written))
        try:
            async with asyncio.timeout(SETTLED_S):
                await written
        except TimeoutError:
            raise StoreUnavailable(f"what was reported before is not written after {SETTLED_S:g} s") from None
        finally:
            lane.waiters = [waiter for waiter in lane.waiters if waiter[1] is not written]

    async def all_settled(self, owner: str) -> None:
        """Wait for what was put in for any session of an owner's."""
        await asyncio.gather(*(self.settled(key) for key in list(self._lanes) if key.owner == owner))

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

    async def _work(self, key: SessionKey, lane: _Lane[Item]) -> None:
        while lane.items:
            await self._linger(lane.hurry)
            batch = _batch(lane.items)
            await self._deliver(key, [item for item, _ in batch])
            for _ in batch:
                _, size_bytes = lane.items.popleft()
                self.waiting -= 1
                self.waiting_bytes -= size_bytes
            lane.done += len(batch)
            for ticket, written in lane.waiters:
                if ticket <= lane.done and not written.done():
                    written.set_result(None)
            if all(written.done() for _, written in lane.waiters):
                lane.hurry.clear()
        del self._lanes[key]  # with no await since the last look, nothing can have come

    async def _linger(self, hurry: asyncio.Event) -> None:
        """Until a quiet moment, or for as long as can be afforded."""
        loop = asyncio.get_running_loop()
        for _ in range(LINGERS_MOST):
            await _wait(hurry, random.uniform(*LINGER_S))  # noqa: S311 - no secret
            if hurry.is_set() or loop.time() - self._last_put_s > QUIET_S:
                return

    async def _deliver(self, key: SessionKey, items: Sequence[Item]) -> None:
        """Write them together; if that cannot be done, one by one, so that one bad apple spoils nothing."""
        pause_s = AGAIN_FIRST_S
        while True:
            try:
                await self._write(key, items)
            except (StoreUnavailable, StoreInvalid):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, AGAIN_MOST_S)
                continue
            except Exception as problem:  # a text that cannot be scrubbed, or a bug: it will not get better
                if len(items) == 1:
                    self._lost(items, problem)
                else:
                    for item in items:
                        await self._deliver(key, [item])
            return


def _batch(items: deque[tuple[Item, int]]) -> list[tuple[Item, int]]:
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
