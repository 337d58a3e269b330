"""The stdio server's figures: cold start, trivial calls, warm resolves, memory. Uses the caches of bench.resolve."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.corpora import HERE
from bench.figures import Figure, in_turns, ms, show, tell
from bench.resolve import BUDGET, INTERPRETER, QUERY, SIZES

SERVER = Path(sys.executable).parent / "mcp-context-server"
TRIVIAL_LIMIT_S = 0.0002
# This is our own bound for the server and its worker together, with small caches.
SERVER_MEMORY_MB = 40


class StdioClient:
    """A client that only writes a line and waits for the answer."""

    def __init__(self) -> None:
        env = os.environ | {"CONTEXT_CACHE_ROOT": str(HERE)}
        self.process = subprocess.Popen([SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.ask("initialize", {})

    def ask(self, method: str, params: object) -> bytes:
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
        return self.ask(
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
        Figure("cold start to first answer and end", ms(median(start)), yardstick, median(start) / median(python), 2.0),
        Figure(
            "the same with a resolve, 3 documents",
            ms(median(resolve)),
            yardstick,
            median(resolve) / median(python),
            2.0,
        ),
    ]


def trivial_figure(client: StdioClient, name: str, method: str, params: object, turns: int) -> Figure:
    (taken,) = in_turns(200 * turns, lambda: client.ask(method, params))
    measured = f"p50 {taken_ms(median(taken))}, p99 {taken_ms(p99(taken))}"
    return Figure(name, measured, f"p50 {taken_ms(TRIVIAL_LIMIT_S)}", median(taken) / TRIVIAL_LIMIT_S, 1.0)


def taken_ms(seconds: float) -> str:
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
    tell("stdio server")
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
    held = show("stdio server", figures)
    print(f"  memory after {max(sizes):,} documents: {largest:.0f} MB; {time.perf_counter() - begin:.0f} s of calls")
    return held
