"""Coroutines with an event loop, and without one.

A daemon runs its calls in an event loop. A command makes one call after another, on a store that answers in the calling
thread: nothing ever waits, and importing `asyncio` would take longer than the rest of the command. So `asyncio` is
imported when it is first used, and what only matters beside other calls (locks, timeouts, threads) is left out where no
event loop runs.
"""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from typing import TypeVar

    Result = TypeVar("Result")
else:

    class _DeferredAsyncio:
        """Has the attributes of `asyncio`, which it imports for the first of them."""

        def __getattr__(self, name: str) -> object:
            import asyncio

            value = getattr(asyncio, name)
            setattr(self, name, value)
            return value

    asyncio = _DeferredAsyncio()


def is_running() -> bool:
    """Whether an event loop runs in this thread."""
    if "asyncio" not in sys.modules:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_at_once(work: Awaitable[Result]) -> Result:
    """The result of work that never waits, without an event loop."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: Result = done.value
        return result
    raise AssertionError("the work waits, so it needs an event loop")


async def pause(pause_s: float) -> None:
    if is_running():
        await asyncio.sleep(pause_s)
    else:
        time.sleep(pause_s)


async def in_thread(work: Callable[[], Result]) -> Result:
    """Do work that takes long, in a thread if there are other calls to answer meanwhile."""
    return await asyncio.to_thread(work) if is_running() else work()


def timeout(timeout_s: float) -> AbstractAsyncContextManager[object]:
    """A timeout for waiting. Without an event loop nothing waits."""
    return asyncio.timeout(timeout_s) if is_running() else _Untimed()


class _Untimed:
    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


class CallLock:
    """Lets one call at a time pass. Without an event loop there is only one."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock: asyncio.Lock | None = None

    async def acquire(self) -> None:
        if is_running():
            self._lock = self._lock or asyncio.Lock()
            await self._lock.acquire()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


__all__ = ["CallLock", "asyncio", "in_thread", "is_running", "pause", "run_at_once", "timeout"]
