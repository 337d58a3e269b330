"""Runs coroutines at once, within a bound, and ends tasks. Knows nothing of NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def in_batches(work: Callable[[Item], Awaitable[Result]], items: Sequence[Item], at_once: int) -> list[Result]:
    """Work on some items at a time. The first failure is raised when nothing is in progress any more."""
    results: list[Result] = []
    for start in range(0, len(items), at_once):
        batch = await asyncio.gather(*map(work, items[start : start + at_once]), return_exceptions=True)
        for result in batch:
            if isinstance(result, BaseException):
                raise result
            results.append(result)
    return results


async def end_tasks(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel the tasks and wait for them, ignoring their exceptions."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
