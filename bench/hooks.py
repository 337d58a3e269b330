"""How long an agent waits for its hook. A report is answered before it is written, and writes must not delay others.

Sixteen agents report at the same moment, each in its own session, repeatedly, every 20 to 120 ms: far more often than
busy agents do. The yardstick is a bare handler on the same server under the same load, measured in turns.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable

from bench.daemon import (
    CallTimes,
    RawHttpClient,
    ServerProcess,
    bare_server,
    combined,
    daemon,
    precise_ms,
    run_concurrently,
)
from bench.figures import Figure, report_progress, show
from bench.stdio import median, p99

AGENTS = 16
LIMIT = 2.0
ROUNDS = 60
# The pause before each round is random, so that background writes can fall into any of the pauses.
PAUSES_S = (0.02, 0.12)
OUTPUT = "".join(f"src/app/login_{number}.py:{number}: def check(session, user):\n" for number in range(40))  # 2 KB


def report(path: str, agent: str, number: int) -> bytes:
    payload = {
        "session_id": agent,
        "transcript_path": f"/home/me/.claude/projects/{agent}.jsonl",
        "cwd": f"/home/me/{agent}",
        "permission_mode": "default",
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "grep -rn check src", "description": "Find the check"},
        "tool_response": {"stdout": OUTPUT, "stderr": "", "interrupted": False, "isImage": False},
        "tool_use_id": f"toolu_{agent}_{number}",
        "duration_ms": 12,
    }
    body = json.dumps(payload).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def reporting_worker(port: int, requests: list[bytes], rounds_s: list[float]) -> Callable[[list[float]], None]:
    """Sends one report in each round. A late answer delays the next report, and no report is left out."""

    def work(seconds: list[float]) -> None:
        client = RawHttpClient(port)
        for sent, at_s in zip(requests, rounds_s, strict=True):
            time.sleep(max(0.0, at_s - time.perf_counter()))
            begin = time.perf_counter()
            client.call(sent)
            seconds.append(time.perf_counter() - begin)
        client.close()

    return work


def _load(port: int, requests: list[list[bytes]]) -> CallTimes:
    rng = random.Random(1)
    rounds_s = [time.perf_counter()]
    for _ in requests[0]:
        rounds_s.append(rounds_s[-1] + rng.uniform(*PAUSES_S))
    return run_concurrently([reporting_worker(port, agent_requests, rounds_s[1:]) for agent_requests in requests])


def hook_figure(our_daemon: ServerProcess, bare: ServerProcess, *, turns: int, rounds: int = ROUNDS) -> Figure:
    blocks: list[tuple[CallTimes, CallTimes]] = []
    for turn in range(turns + 1):
        agents = [f"agent{number}" for number in range(AGENTS)]
        numbers = range(turn * rounds, (turn + 1) * rounds)
        ours, handler = (
            _load(port, [[report(path, agent, number) for number in numbers] for agent in agents])
            for port, path in ((our_daemon.port, "/hooks/claude-code"), (bare.port, "/mcp"))
        )
        blocks.append((ours, handler))
    # The first turn is a warm-up, so it is left out.
    ours, handler = (combined(list(column)) for column in zip(*blocks[1:], strict=True))
    return Figure(
        f"a hook's answer, p99, {AGENTS} agents at once",
        f"p99 {precise_ms(p99(ours.seconds))}, p50 {precise_ms(median(ours.seconds))}, {ours.per_second:,.0f}/s",
        f"bare handler p99 {precise_ms(p99(handler.seconds))}, p50 {precise_ms(median(handler.seconds))}",
        p99(ours.seconds) / p99(handler.seconds),
        LIMIT,
    )


def main(turns: int = 9, rounds: int = ROUNDS) -> bool:
    report_progress("hooks")
    with tempfile.TemporaryDirectory() as folder:
        our_daemon, bare = daemon(folder), bare_server()
        try:
            figures = [hook_figure(our_daemon, bare, turns=turns, rounds=rounds)]
        finally:
            our_daemon.stop()
            bare.stop()
    return show("hooks", figures)
