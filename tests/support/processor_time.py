"""A pytest plugin that writes the processor time of each test: `pytest -p tests.support.processor_time`.

Each phase of a test has one line: user and system time of this process, that of the children which ended meanwhile,
the phase, the name. One more line, "running", has the time of its running descendants. It is negative if one of them
has ended, because then its whole time is in another line. Sums over tests are right. CONTEXTFOLD_PROCESSOR_TIME names
the file.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from pathlib import Path

import pytest

FILE = os.environ.get("CONTEXTFOLD_PROCESSOR_TIME", "processor-time.tsv")

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# In /proc/PID/stat after the name of the program: the parent; time of the process and of its children that have ended.
PARENT, TIMES = 1, slice(11, 15)


def _seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _running_s() -> float:
    """What the running descendants of this process have used, and those that ended before them."""
    children: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            # It has just ended, so it is not running.
            continue
        pid = int(path.parent.name)
        children.setdefault(int(fields[PARENT]), []).append(pid)
        seconds[pid] = sum(map(int, fields[TIMES])) / TICKS_PER_S
    total, parents = 0.0, [os.getpid()]
    while parents:
        below = children.get(parents.pop(), [])
        total += sum(seconds[pid] for pid in below)
        parents += below
    return total


def _write(own: float, children: float, phase: str, item: pytest.Item) -> None:
    with open(FILE, "a", encoding="utf-8") as file:
        file.write(f"{own:.3f}\t{children:.3f}\t{phase}\t{item.nodeid}\n")


def _measure(item: pytest.Item, phase: str) -> Generator[None, object, object]:
    own, children = _seconds(resource.RUSAGE_SELF), _seconds(resource.RUSAGE_CHILDREN)
    try:
        return (yield)
    finally:
        own, children = _seconds(resource.RUSAGE_SELF) - own, _seconds(resource.RUSAGE_CHILDREN) - children
        _write(own, children, phase, item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before = _running_s()
    try:
        return (yield)
    finally:
        _write(0, _running_s() - before, "running", item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _measure(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _measure(item, "call"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _measure(item, "teardown"))
