"""Coroutines that never wait run without an event loop, and behave as usual in one."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from contextfold.common.event_loop import CallLock, in_thread, is_running, pause, run_at_once, timeout


async def work() -> str:
    async with CallLock(), timeout(0):
        await pause(0)
        return await in_thread(lambda: f"{is_running()}")


def test_work_that_never_waits_needs_no_event_loop() -> None:
    assert run_at_once(work()) == "False"


def test_an_error_reaches_the_caller() -> None:
    async def failing() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        run_at_once(failing())


def test_work_that_waits_is_refused() -> None:
    async def waiting() -> None:
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="event loop"):
        run_at_once(waiting())


def test_the_module_does_not_import_asyncio() -> None:
    script = (
        "import sys; from contextfold.common.event_loop import *\n"
        "async def work():\n"
        "    async with CallLock(), timeout(1): await pause(0); return await in_thread(lambda: 1)\n"
        "assert run_at_once(work()) == 1 and 'asyncio' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_timeouts_and_locks_work_in_an_event_loop() -> None:
    async def take_turns() -> list[str]:
        lock, order = CallLock(), []

        async def turn(name: str) -> None:
            async with lock:
                order.append(f"{name} in")
                await pause(0)
                order.append(f"{name} out")

        await asyncio.gather(turn("a"), turn("b"))
        with pytest.raises(TimeoutError):
            async with timeout(0.001):
                await asyncio.Event().wait()
        return order

    assert asyncio.run(take_turns()) == ["a in", "a out", "b in", "b out"]
