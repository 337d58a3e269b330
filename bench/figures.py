"""Measures figures and prints them as a table: each next to its yardstick, with ratio, limit and verdict."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

Command = Sequence[str | os.PathLike[str]]
SAMPLE_EVERY_S = 0.05


class CommandRun(NamedTuple):
    seconds: float
    peak_mb: float
    processor_s: float = 0.0


class Figure(NamedTuple):
    name: str
    measured: str
    yardstick: str
    ratio: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.ratio <= self.limit


def run(command: Command) -> CommandRun:
    """Runs a command once and measures its wall time and peak memory. It must succeed; its output is discarded."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    # The unit of `ru_maxrss` is the byte on macOS and the KiB elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    return CommandRun(seconds, usage.ru_maxrss * unit / 2**20, usage.ru_utime + usage.ru_stime)


# Prints the peak memory of the command itself. The system's figure for a child includes memory of its parent.
_PEAK = """
import sys
from contextfold.cli.main import main
main(sys.argv[1:])
sys.stderr.write(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


def peak_mb(command: Command) -> float:
    """Runs a `context` command and gives its peak memory, as exactly as the system reports it."""
    if not os.path.exists("/proc/self/status"):
        return run(command).peak_mb
    argv = [sys.executable, "-c", _PEAK, *command[1:]]
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    return int(done.stderr) / 1024


def peak_with_children_mb(command: Command) -> float:
    """Runs a command and gives the highest sum of the memory of its processes. Shared pages are counted once."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    highest = 0
    while process.poll() is None:
        try:
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
                pids = [str(process.pid), *children.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            pids = []
        highest = max(highest, sum(map(_proportional_kb, pids)))
        time.sleep(SAMPLE_EVERY_S)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return highest / 1024


def _proportional_kb(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return int(rollup.read().split("Pss:")[1].split()[0])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        # The process has ended.
        return 0


def side_by_side(times: int, *commands: Command) -> list[CommandRun]:
    """The median run of each command. They run in turns, so that a busy moment of the machine affects all of them."""
    rounds = [[run(command) for command in commands] for _ in range(times)]
    return [median(column) for column in zip(*rounds, strict=True)]


def median(runs: Sequence[CommandRun]) -> CommandRun:
    return CommandRun(statistics.median(one.seconds for one in runs), max(one.peak_mb for one in runs))


def in_turns(
    times: int, *actions: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """The durations of each action in seconds. The actions run in turns."""
    durations: list[list[float]] = [[] for _ in actions]
    for _ in range(times):
        for action, seconds in zip(actions, durations, strict=True):
            begin = clock()
            action()
            seconds.append(clock() - begin)
    return durations


def ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def report_progress(text: str) -> None:
    """Reports progress on stderr; it is not part of the figures."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


def show(title: str, figures: Sequence[Figure]) -> bool:
    """Prints the figures and returns whether all of them are within their limits."""
    print(f"\n{title}")
    rows = [("figure", "measured", "yardstick", "ratio", "limit", "")]
    for figure in figures:
        rows.append(
            (
                figure.name,
                figure.measured,
                figure.yardstick,
                f"{figure.ratio:.2f}",
                f"{figure.limit:.2f}",
                "ok" if figure.holds else "OVER",
            )
        )
    print_table(rows)
    return all(figure.holds for figure in figures)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
