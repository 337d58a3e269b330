"""Taking figures and laying them out: each beside its yardstick, with the ratio, the limit and the verdict."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

Command = Sequence[str | os.PathLike[str]]


class Run(NamedTuple):
    seconds: float
    peak_mb: float


class Figure(NamedTuple):
    name: str
    measured: str
    yardstick: str
    ratio: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.ratio <= self.limit


def run(command: Command) -> Run:
    """One run of a command: wall time and peak memory. Its output is thrown away; it must succeed."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    # The unit of `ru_maxrss` is the byte on macOS and the KiB elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(seconds, usage.ru_maxrss * unit / 2**20)


# What a command's own memory came to. The system's figure for a finished child counts its parent's memory too.
_PEAK = """
import sys
from contextfold.cli.main import main
main(sys.argv[1:])
sys.stderr.write(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


def peak_mb(command: Command) -> float:
    """The peak memory of a `context` command, from one more run, where the system reports it."""
    if not os.path.exists("/proc/self/status"):
        return run(command).peak_mb
    argv = [sys.executable, "-c", _PEAK, *command[1:]]
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    return int(done.stderr) / 1024


def side_by_side(times: int, *commands: Command) -> list[Run]:
    """The median run of each command, taken in turns, so that a busy moment of the machine hits all of them."""
    taken = [[run(command) for command in commands] for _ in range(times)]
    return [median(column) for column in zip(*taken, strict=True)]


def median(runs: Sequence[Run]) -> Run:
    return Run(statistics.median(r.seconds for r in runs), max(r.peak_mb for r in runs))


def in_turns(
    times: int, *actions: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """The seconds of each action, taken in turns."""
    taken: list[list[float]] = [[] for _ in actions]
    for _ in range(times):
        for action, seconds in zip(actions, taken, strict=True):
            begin = clock()
            action()
            seconds.append(clock() - begin)
    return taken


def ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def tell(text: str) -> None:
    """Reports progress to the person who waits; it is not part of the figures."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


def show(title: str, figures: Sequence[Figure]) -> bool:
    """Prints the figures and returns whether all of them are within their limits."""
    print(f"\n{title}")
    rows = [("figure", "measured", "yardstick", "ratio", "limit", "")]
    for f in figures:
        rows.append((f.name, f.measured, f.yardstick, f"{f.ratio:.2f}", f"{f.limit:.2f}", "ok" if f.holds else "OVER"))
    print_table(rows)
    return all(figure.holds for figure in figures)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
