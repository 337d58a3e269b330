"""The figures of resolve: one-shot, warm, build, growth, memory."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from pathlib import Path

from bench import yardsticks
from bench.corpora import HERE, corpus
from bench.figures import (
    CommandRun,
    Figure,
    in_turns,
    median,
    ms,
    peak_mb,
    peak_with_children_mb,
    print_table,
    report_progress,
    run,
    show,
    side_by_side,
)
from contextfold import open_cache

CONTEXT = Path(sys.executable).parent / "context"
INTERPRETER = [sys.executable, "-I", "-c", "import json, hashlib"]
READ = [sys.executable, "-I", yardsticks.__file__, "read"]
WRITE = [sys.executable, "-I", yardsticks.__file__, "write"]
# What a build may take: so many plain loops for the documents, and the time to index their text.
PLAIN_LOOPS, BUILD_MB_PER_S = 2, 1.5
QUERY, BUDGET = "deployment guide", 4000
MEMORY_LIMIT_MB = 150
SIZES = (1_000, 10_000, 100_000)
# What a resolve may take of the time to open, parse and hash each document, by their number.
READ_SHARES = (0.5, 0.3)


def resolve_command(cache: Path) -> list[str | Path]:
    return [CONTEXT, "resolve", "--cache", cache, "--query", QUERY, "--budget", str(BUDGET)]


def build_command(sources: Path, cache: Path) -> list[str | Path]:
    return [CONTEXT, "build", "--sources", sources, "--cache", cache, "--force"]


def built(count: int) -> tuple[Path, CommandRun]:
    """Builds a cache of this many documents. Its memory is the sum over all processes of the build."""
    cache = HERE / f"cache-{count}"
    shutil.rmtree(cache, ignore_errors=True)
    sources = corpus(count)
    report_progress(f"building {count:,} documents")
    begin = time.perf_counter()
    peak_mb = peak_with_children_mb(build_command(sources, cache))
    return cache, CommandRun(time.perf_counter() - begin, peak_mb)


def small_cache() -> Path:
    sources, cache = HERE / "corpus-3", HERE / "cache-3"
    shutil.rmtree(cache, ignore_errors=True)
    sources.mkdir(parents=True, exist_ok=True)
    for name in ("deployment", "guide", "other"):
        (sources / f"{name}.md").write_text(f"The {name} document of three.")
    run(build_command(sources, cache))
    return cache


def build_against_plain_writing(count: int, times: int) -> Figure:
    sources = corpus(count)
    ours, plain = [], []
    for turn in range(times):
        report_progress(f"build against plain writing, turn {turn + 1} of {times}")
        out, cache = HERE / "plain", HERE / "cache-turn"
        for path in (out, cache):
            shutil.rmtree(path, ignore_errors=True)
        # After this, neither of the two waits for unwritten data of the other.
        os.sync()
        plain.append(run([*WRITE, sources, out]))
        shutil.rmtree(out)
        os.sync()
        ours.append(run(build_command(sources, cache)))
        shutil.rmtree(cache)
    ours_s, plain_s = median(ours).seconds, median(plain).seconds
    text_mb = sum(path.stat().st_size for path in sources.rglob("*.md")) / 1e6
    allowed_s = PLAIN_LOOPS * plain_s + text_mb / BUILD_MB_PER_S
    return Figure(
        f"build, {count:,} documents",
        ms(ours_s),
        f"{PLAIN_LOOPS} × write+hash+fsync loop {ms(plain_s)} + {text_mb:.0f} MB at {BUILD_MB_PER_S} MB/s",
        ours_s / allowed_s,
        1.0,
    )


def warm_against_stat_sweep(cache: Path, turns: int) -> Figure:
    opened = open_cache(cache)
    names = [os.fsencode(path) for path in (cache / "documents").iterdir()]
    opened.resolve(QUERY, BUDGET)
    warm, sweep = in_turns(turns, lambda: opened.resolve(QUERY, BUDGET), lambda: [os.lstat(name) for name in names])
    ours_s, plain_s = statistics.median(warm), 1.5 * statistics.median(sweep) + 0.005
    return Figure(
        f"warm call, {len(names):,} documents (library)",
        ms(ours_s),
        f"1.5 × stat sweep + 5 ms {ms(plain_s)}",
        ours_s / plain_s,
        1.0,
    )


def main(sizes: tuple[int, int, int] = SIZES, turns: int = 9) -> bool:
    small = small_cache()
    caches, builds = zip(*(built(count) for count in sizes), strict=True)
    report_progress("one-shot resolves")
    tiny, interpreter = side_by_side(3 * turns, resolve_command(small), INTERPRETER)
    resolves = side_by_side(turns, *(resolve_command(cache) for cache in caches))
    against_reading = [
        side_by_side(times, resolve_command(cache), [*READ, cache])
        for times, cache in zip((turns, max(1, turns // 3)), caches[1:], strict=True)
    ]
    peaks = [peak_mb(resolve_command(cache)) for cache in caches]
    figures = [
        Figure(
            "one-shot resolve, 3 documents",
            ms(tiny.seconds),
            f"python -I {ms(interpreter.seconds)}",
            tiny.seconds / interpreter.seconds,
            5.0,
        ),
        *(
            Figure(
                f"one-shot resolve, {size:,} documents",
                ms(ours.seconds),
                f"open+json+sha256 loop {ms(plain.seconds)}",
                ours.seconds / plain.seconds,
                share,
            )
            for size, (ours, plain), share in zip(sizes[1:], against_reading, READ_SHARES, strict=True)
        ),
        Figure(
            "its peak memory, budget 4000",
            f"{peaks[2]:.0f} MB",
            f"{MEMORY_LIMIT_MB} MB",
            peaks[2] / MEMORY_LIMIT_MB,
            1.0,
        ),
        warm_against_stat_sweep(caches[1], 3 * turns),
        build_against_plain_writing(sizes[1], max(1, turns // 3)),
    ]
    is_within = show("resolve", figures)
    print("\ngrowth")
    rows = [("documents", "build", "build memory", "resolve", "resolve memory", "packed index")]
    for count, cache, build, resolve, peak in zip(sizes, caches, builds, resolves, peaks, strict=True):
        packed = sum(path.stat().st_size for path in (cache / "pack").iterdir()) / 2**20
        rows.append(
            (
                f"{count:,}",
                f"{build.seconds:.1f} s",
                f"{build.peak_mb:.0f} MB",
                ms(resolve.seconds),
                f"{peak:.0f} MB",
                f"{packed:.1f} MB",
            )
        )
    print_table(rows)
    return is_within
