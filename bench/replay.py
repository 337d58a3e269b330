"""Folding of agents' runs: the size of the requests, their cost with a prompt cache, and the time of folding.

Each run is replayed request by request, once unchanged and once with branches added by a policy (`bench.trajectories`),
folded as the proxy folds. The unit of cost is the price of an input token: the longest common prefix of a request and
the request before, in bytes, is read from the cache, and the rest is written to it. The folding agent pays for the
definitions of its tools, for its calls and their results, and for the two extra requests that each branch takes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from bench.daemon import precise_ms
from bench.figures import Figure, in_turns, print_table, report_progress, show
from bench.stdio import median, p99
from bench.trajectories import (
    HERE,
    MOST,
    POLICIES,
    SIX,
    SUBTASKS,
    Policy,
    TrajectoryRun,
    branched,
    generated,
    rendered,
    sets,
)
from contextfold.common.tokens import BYTES_PER_TOKEN, tokens_of
from contextfold.fold.messages import FORMATS, ColdSettings, Format, Remembered, by_call, project, project_body

# Multiples of the price of an input token.
CACHE_READ, CACHE_WRITE = 0.1, 1.25
# Nothing measured here waits, and processor time excludes other programs of the machine.
CLOCK = time.process_time
# The limit for a long history. A model takes seconds for it.
LIMIT_S = 0.06
# The limit for a short history is a multiple of the time of `json.loads`, which is a small part of the time.
REPLAY_LIMIT = 6.0
MEMORY_LIMIT = 1.5  # times `json.loads`
LONG_BYTES = 2 << 20
# The limit is a multiple of the time for the same request with no result left out, which is not encoded again.
STUBS, STUBS_LIMIT = 500, 1.6
# This range of lines gives about 1,900 tokens, the measured size of results that are left out.
STUB_LINES = (40, 120)
# Subtasks differ in length, so the run is made longer than the sample suggests.
LONGER = 1.1
# Each projection is timed under this policy.
TIMED = SIX
LIST = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input", "gemini": "contents"}

Result = TypeVar("Result")


# ---- what is sent


class RunFigures(NamedTuple):
    """The figures of the requests of one run."""

    requests: int
    # Tokens of the largest request.
    peak: int
    # Tokens of the request that would come next.
    end: int
    # Tokens of all requests.
    tokens: int
    cost: float


def figures_of_run(bodies: Sequence[bytes]) -> RunFigures:
    """Computes the figures of a run. The last body was not sent: it shows the size of the next request."""
    sizes = [tokens_of(len(body)) for body in bodies]
    cost, before = 0.0, b""
    for body in bodies[:-1]:
        cached = common_prefix(before, body)
        cost += (CACHE_READ * cached + CACHE_WRITE * (len(body) - cached)) / BYTES_PER_TOKEN
        before = body
    return RunFigures(len(bodies) - 1, max(sizes[:-1]), sizes[-1], sum(sizes[:-1]), cost)


def common_prefix(one: bytes, other: bytes) -> int:
    """The length in bytes of the common prefix."""
    same, differs = 0, min(len(one), len(other)) + 1
    while differs - same > 1:
        middle = (same + differs) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            differs = middle
    return same


class Times(NamedTuple):
    proxy: list[float]
    library: list[float]
    loads: list[float]


def timed(durations: list[float], action: Callable[[], Result]) -> Result:
    begin = CLOCK()
    result = action()
    durations.append(CLOCK() - begin)
    return result


def folded(bodies: Sequence[bytes], format: Format, times: Times) -> list[bytes]:
    """Folds each body as the proxy does, and checks that the library gives the same messages."""
    results: list[bytes] = []
    for body in bodies:
        projected = timed(times.proxy, partial(project_body, body, format))
        parsed = timed(times.loads, partial(json.loads, body))
        library_projection = timed(times.library, partial(project, parsed[LIST[format]], format))
        if json.loads(projected.body)[LIST[format]] != library_projection.messages:
            raise SystemExit(f"the library and the proxy fold differently: {format}")
        results.append(projected.body)
    return results


class Compared(NamedTuple):
    """The runs of a set under a policy, in one format, run by run."""

    never: list[RunFigures]
    # Branch and return are called, but every request is sent unfolded.
    calls_only: list[RunFigures]
    folding: list[RunFigures]


async def compared(runs: Sequence[TrajectoryRun], policy: Policy, times: dict[Format, Times]) -> dict[Format, Compared]:
    results = {format: Compared([], [], []) for format in FORMATS}
    skipped: Counter[str] = Counter()
    for run in runs:
        with_branches = await branched(run, policy)
        for format, result in results.items():
            bodies = rendered(with_branches, format, with_tools=True).bodies()
            if policy is TIMED:
                folded_bodies = folded(bodies, format, times[format])
            else:
                folded_bodies = [project_body(body, format).body for body in bodies]
            skipped.update(pair.reason for pair in project_body(bodies[-1], format).receipt.skipped)
            result.never.append(figures_of_run(rendered(run, format, with_tools=False).bodies()))
            result.calls_only.append(figures_of_run(bodies))
            result.folding.append(figures_of_run(folded_bodies))
    if skipped:
        report_progress(f"not folded under {policy.name}: {dict(skipped)}")
    return results


# ---- the table

COLUMNS = ("runs", "a branch for", "requests", "largest", "at the end", "all tokens", "cost", "more in")


def row(name: str, policy: Policy, results: dict[Format, Compared]) -> tuple[str, ...]:
    chat = results["openai-chat"]
    costs = " ".join(f"{_ratio('cost', result.folding, result.never):.2f}" for result in results.values())
    unfolded = _ratio("cost", chat.calls_only, chat.never)
    ratios = [ours.cost / plain.cost for ours, plain in zip(chat.folding, chat.never, strict=True)]
    more = [ratio for ratio in ratios if ratio > 1]
    return (
        name,
        policy.name,
        _change("requests", chat),
        _change("peak", chat),
        _change("end", chat),
        f"{_ratio('tokens', chat.folding, chat.never):.2f}",
        f"{costs}, unfolded {unfolded:.2f}",
        f"{len(more)} of {len(ratios)}" + (f", to {max(more):.2f}" if more else ""),
    )


def _change(member: str, result: Compared) -> str:
    before, after = _mean(member, result.never), _mean(member, result.folding)
    return f"{before:,.0f} → {after:,.0f}"


def _mean(member: str, each: Sequence[RunFigures]) -> float:
    return float(sum(getattr(one, member) for one in each)) / len(each)


def _ratio(member: str, ours: Sequence[RunFigures], plain: Sequence[RunFigures]) -> float:
    return _mean(member, ours) / _mean(member, plain)


def replayed(folder: Path, most: int) -> list[Figure]:
    """Prints the table and returns the times of the projections."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    times: dict[Format, Times] = {format: Times([], [], []) for format in FORMATS}
    for name, runs in sets(folder, most=most).items():
        report_progress(f"replay of {len(runs)} runs, {name}")
        rows += [row(name, policy, asyncio.run(compared(runs, policy, times))) for policy in POLICIES]
    print(f"\nreplay: means of the runs, never branching → folding; cost in {', '.join(FORMATS)}")
    print_table(rows)
    return [
        figure
        for format, format_times in times.items()
        for figure in (
            _time_figure(f"folding a request of the replay, {format}", format_times.proxy, format_times.loads),
            _time_figure(f"the same, in the agent's own loop, {format}", format_times.library, format_times.loads),
        )
    ]


def _time_figure(name: str, ours: list[float], loads: list[float]) -> Figure:
    return Figure(
        name, _percentiles(ours), f"json.loads {_percentiles(loads)}", median(ours) / median(loads), REPLAY_LIMIT
    )


def _percentiles(durations: list[float]) -> str:
    return f"p50 {precise_ms(median(durations))}, p99 {precise_ms(p99(durations))}"


# ---- a long history


class Kind(NamedTuple):
    name: str
    policy: Policy | None
    # The smallest and the largest number of lines in a tool's output.
    lines: tuple[int, int]


KINDS = (
    Kind("folded", SIX, (5, 120)),
    Kind("nothing to fold", None, (5, 120)),
    Kind("short messages", SIX, (0, 1)),
)


def long_run(kind: Kind, at_least: int) -> TrajectoryRun:
    """A generated run that has at least this many bytes in each format."""

    def make_run(subtasks: int) -> TrajectoryRun:
        run = generated(0, subtasks=subtasks, lines=kind.lines)
        return asyncio.run(branched(run, kind.policy)) if kind.policy else run

    few = make_run(SUBTASKS)
    each = min(len(rendered(few, format, with_tools=False).last_body()) for format in FORMATS) / SUBTASKS
    return make_run(1 + int(at_least * LONGER / each))


def long_figures(turns: int, at_least: int) -> list[Figure]:
    times: list[Figure] = []
    memory: list[Figure] = []
    for kind in KINDS:
        run = long_run(kind, at_least)
        for format in FORMATS:
            body = rendered(run, format, with_tools=True).last_body()
            if len(body) < at_least or project_body(body, format).changed != bool(kind.policy):
                raise SystemExit(f"not the history that was meant: {kind.name}, {format}, {len(body)} bytes")
            ours, loads = in_turns(turns, partial(project_body, body, format), partial(json.loads, body), clock=CLOCK)
            name = f"a history of {len(body) / 2**20:.1f} MB, {kind.name}, {format}"
            yardstick = f"{precise_ms(LIMIT_S)}; json.loads {precise_ms(median(loads))}"
            times.append(Figure(name, _percentiles(ours), yardstick, median(ours) / LIMIT_S, 1.0))
            ours_mb, loads_mb = peak_mb(partial(project_body, body, format)), peak_mb(partial(json.loads, body))
            yardstick = f"json.loads {loads_mb:.1f} MB"
            ratio = ours_mb / loads_mb
            memory.append(Figure(f"memory beside {name}", f"{ours_mb:.1f} MB", yardstick, ratio, MEMORY_LIMIT))
    return times + memory


# ---- many left-out results


def stub_figures(turns: int, number: int) -> list[Figure]:
    """A request with this many results left out, compared with the same request with none left out."""
    figures = []
    # Each has at least five results that are long enough.
    run = generated(0, subtasks=1 + number // 5, lines=STUB_LINES)
    for format in FORMATS:
        body = rendered(run, format, with_tools=False).last_body()
        cold = project_body(body, format).cold_results(salt="bench", settings=ColdSettings())[:number]
        if not cold:
            # Without ids for its calls, nothing of a conversation is left out.
            continue
        remembered = Remembered({}, by_call(tuple(each.decision for each in cold)))
        stubbed = partial(project_body, body, format, remembered=remembered)
        if stubbed().receipt.results_left_out != len(cold):
            raise SystemExit(f"not all results are left out: {format}")
        # Both are short, so more turns are needed for the same precision.
        ours, plain = in_turns(3 * turns, stubbed, partial(project_body, body, format), clock=CLOCK)
        name = f"a request with {len(cold)} results left out, {format}"
        ratio = median(ours) / median(plain)
        figures.append(
            Figure(name, _percentiles(ours), f"none left out {precise_ms(median(plain))}", ratio, STUBS_LIMIT)
        )
    return figures


def peak_mb(action: Callable[[], object]) -> float:
    """The peak of the memory that is allocated during the action, including its result."""
    gc.collect()
    tracemalloc.start()
    try:
        result = action()
        del result
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def main(turns: int = 9, folder: Path = HERE, most: int = MOST, at_least: int = LONG_BYTES, stubs: int = STUBS) -> bool:
    report_progress("replay")
    figures = replayed(folder, most)
    figures += long_figures(turns, at_least)
    figures += stub_figures(turns, stubs)
    return show("projection", figures)
