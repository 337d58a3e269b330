"""Runs coroutines at once, within a bound, and ends tasks. Knows nothing of NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from itertools import islice
from typing import Any, TypeVar

Result = TypeVar("Result")


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
