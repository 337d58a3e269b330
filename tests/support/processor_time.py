"""A pytest plugin that writes the processor time of each test: `pytest -p tests.support.processor_time`.

One line per phase of a test: user and system time of this process, that of the children which ended meanwhile, the
name. A process that several tests share is counted where it ends. CONTEXTFOLD_PROCESSOR_TIME names the file.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Generator

import pytest

FILE = os.environ.get("CONTEXTFOLD_PROCESSOR_TIME", "processor-time.tsv")


def _seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _measure(item: pytest.Item, phase: str) -> Generator[None, object, object]:
    own, children = _seconds(resource.RUSAGE_SELF), _seconds(resource.RUSAGE_CHILDREN)
    try:
        return (yield)
    finally:
        own, children = _seconds(resource.RUSAGE_SELF) - own, _seconds(resource.RUSAGE_CHILDREN) - children
        with open(FILE, "a", encoding="utf-8") as file:
            file.write(f"{own:.3f}\t{children:.3f}\t{phase}\t{item.nodeid}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _measure(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _measure(item, "call"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _measure(item, "teardown"))
