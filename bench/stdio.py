"""The figures of the stdio server: cold start, trivial calls, warm resolves, memory. Needs bench.resolve's caches."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.corpora import HERE
from bench.figures import Figure, in_turns, ms, report_progress, show
from bench.resolve import BUDGET, INTERPRETER, QUERY, SIZES

SERVER = Path(sys.executable).parent / "mcp-context-server"
TRIVIAL_LIMIT_S = 0.0002
# Our own limit for the server and its worker together, with small caches.
SERVER_MEMORY_MB = 40


class StdioClient:
    """A minimal client: it writes a line and waits for the answer."""

    def __init__(self) -> None:
        env = os.environ | {"CONTEXT_CACHE_ROOT": str(HERE)}
        self.process = subprocess.Popen([SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.call("initialize", {})

    def call(self, method: str, params: object) -> bytes:
        assert self.process.stdin
        assert self.process.stdout
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if b'"isError":true' in answer or b'"error":{"code":-' in answer:
            raise SystemExit(f"{method} failed: {answer[:200]!r}")
        return answer

    def resolve(self, cache: str) -> bytes:
        return self.call(
            "tools/call", {"name": "context.resolve", "arguments": {"cache": cache, "query": QUERY, "budget": BUDGET}}
        )

    def memory_mb(self) -> float:
        """The memory of the server and its worker."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in (self.process.pid, *children)]
        return sum(int(status.split("VmHWM:")[1].split()[0]) for status in statuses) / 1024

    def close(self) -> None:
        self.process.communicate()


def cold_start() -> None:
    StdioClient().close()


def cold_resolve() -> None:
    client = StdioClient()
    client.resolve("cache-3")
    client.close()


def python_start() -> None:
    subprocess.run(INTERPRETER, check=True)


def median(seconds: list[float]) -> float:
    return statistics.median(seconds)


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


def cold_figures(turns: int) -> list[Figure]:
    start, resolve, python = in_turns(3 * turns, cold_start, cold_resolve, python_start)
    yardstick = f"python -I {ms(median(python))}"
    return [
        Figure("cold start to first answer and end", ms(median(start)), yardstick, median(start) / median(python), 5.0),
        Figure(
            "the same with a resolve, 3 documents",
            ms(median(resolve)),
            yardstick,
            median(resolve) / median(python),
            5.0,
        ),
    ]


def trivial_figure(client: StdioClient, name: str, method: str, params: object, turns: int) -> Figure:
    (seconds,) = in_turns(200 * turns, lambda: client.call(method, params))
    measured = f"p50 {precise_ms(median(seconds))}, p99 {precise_ms(p99(seconds))}"
    return Figure(name, measured, f"p50 {precise_ms(TRIVIAL_LIMIT_S)}", median(seconds) / TRIVIAL_LIMIT_S, 1.0)


def precise_ms(seconds: float) -> str:
    return f"{seconds * 1000:.3f} ms"


def warm_figure(client: StdioClient, count: int, turns: int) -> Figure:
    cache = f"cache-{count}"
    names = [os.fsencode(path) for path in (HERE / cache / "documents").iterdir()]
    client.resolve(cache)
    warm, sweep = in_turns(3 * turns, lambda: client.resolve(cache), lambda: [os.lstat(name) for name in names])
    limit = 1.5 * median(sweep) + 0.005
    measured = f"p50 {ms(median(warm))}, p99 {ms(p99(warm))}"
    return Figure(
        f"warm resolve, {count:,} documents",
        measured,
        f"1.5 × stat sweep + 5 ms {ms(limit)}",
        median(warm) / limit,
        1.0,
    )


def main(sizes: tuple[int, ...] = SIZES, turns: int = 9) -> bool:
    report_progress("stdio server")
    figures = cold_figures(turns)
    client = StdioClient()
    begin = time.perf_counter()
    figures.append(trivial_figure(client, "ping", "ping", {}, turns))
    figures.append(trivial_figure(client, "tools/list", "tools/list", {}, turns))
    client.resolve("cache-3")
    memory = client.memory_mb()
    figures.append(
        Figure(
            "memory, server and worker", f"{memory:.0f} MB", f"{SERVER_MEMORY_MB} MB", memory / SERVER_MEMORY_MB, 1.0
        )
    )
    figures += [warm_figure(client, count, turns) for count in sizes]
    largest = client.memory_mb()
    client.close()
    is_within = show("stdio server", figures)
    print(f"  memory after {max(sizes):,} documents: {largest:.0f} MB; {time.perf_counter() - begin:.0f} s of calls")
    return is_within
