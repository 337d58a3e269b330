"""Random bytes: each request gets one valid answer, in order, and the server keeps running.

A seeded sample in `make test`; at least 100,000 messages in `make soak`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.serve.stdio_client import ASK, GET, INITIALIZE, MODERN_META, RESOLVE, Server, call, modern, request
from tests.support.daemon import RPC, Daemon, Http
from tests.support.jsonrpc_rules import due_answers, faults_in
from tests.support.machine import times

MESSAGES = times(900, 120_000)
BATCH = 200
SEED = 20260728

TOOLS = ["context.resolve", "context.list_caches", "context.inspect_cache", "context.ask", "context.get"]
WORDS = ["docs", "", "..", "a", "\ud800", "é", *TOOLS, "deployment.md", "1-2", "ping"]
METHODS = ["initialize", "ping", "tools/list", "tools/call", "server/discover", "notifications/initialized", "nope", ""]
MEMBERS = ["jsonrpc", "id", "method", "params"]
ARGUMENTS = ["name", "arguments", "cache", "query", "budget", "unit", "id", "section", "lines", "around"]
KEYS = [*MEMBERS, *ARGUMENTS, "_meta", "protocolVersion"]
SEEDS = [
    INITIALIZE,
    request("ping"),
    request("tools/list", {}),
    call("context.resolve", RESOLVE),
    call("context.list_caches"),
    call("context.inspect_cache", {"cache": "docs"}),
    call("context.ask", {**ASK, "unit": "section", "budget": 400}),
    call("context.get", {**GET, "lines": "1", "around": 1, "budget": 400}),
    modern("server/discover"),
    modern("tools/call", {"name": "context.resolve", "arguments": RESOLVE}),
]


def value(rng: random.Random, depth: int = 0) -> Any:  # noqa: PLR0911 - one for each kind
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([0, 1, -1, 2**63, 2**63 - 1, 1.5, 1e300, 10**30])
    if kind in (2, 3):
        return rng.choice(WORDS)
    if kind == 4:
        return rng.choice(METHODS)
    if kind == 5:
        return MODERN_META
    if kind == 6:
        return "2.0"
    if kind == 7:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(KEYS): value(rng, depth + 1) for _ in range(rng.randrange(5))}


def structured(rng: random.Random) -> bytes:
    """A message whose parts are right or wrong at random."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": rng.randrange(1000), "method": rng.choice(METHODS)}
    if rng.random() < 0.7:
        message["params"] = {rng.choice(KEYS): value(rng) for _ in range(rng.randrange(5))}
    if rng.random() < 0.5:
        message["params"] = {"name": rng.choice(WORDS), "arguments": {**RESOLVE, rng.choice(KEYS): value(rng)}}
    for _ in range(rng.randrange(3)):
        key = rng.choice(MEMBERS)
        if rng.random() < 0.3:
            message.pop(key, None)
        else:
            message[key] = value(rng)
    return json.dumps(message).encode() + b"\n"


def damaged(rng: random.Random) -> bytes:
    """A good message with bytes changed, removed, repeated or inserted."""
    line = bytearray(rng.choice(SEEDS)[:-1])
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(line) + 1)
        match rng.randrange(4):
            case 0:
                line[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(5)))
            case 1:
                del line[at : at + rng.randrange(8)]
            case 2:
                line[at:at] = line[at : at + rng.randrange(20)]
            case _:
                line[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(line).replace(b"\n", b" ") + b"\n"


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(200)).replace(b"\n", b"") + b"\n"


def test_every_request_gets_one_valid_answer_in_order(root: Path) -> None:
    rng = random.Random(SEED)
    with Server(root) as server:
        server.ask(INITIALIZE)
        for _ in range(0, MESSAGES, BATCH):
            lines = [rng.choice((structured, structured, damaged, damaged, noise))(rng) for _ in range(BATCH)]
            expected = [expected_id for line in lines for expected_id in due_answers(line)]
            server.input.write(b"".join(lines) + request("ping", request_id="end of batch"))
            answers = []
            while (answer := server.answer()).get("id") != "end of batch":
                answers.append(answer)
            assert [faults_in(answer) for answer in answers] == [[]] * len(answers)
            assert [answer["id"] for answer in answers] == expected
        assert server.process.poll() is None


def test_every_request_before_the_handshake_gets_one_valid_answer(root: Path) -> None:
    rng = random.Random(SEED + 1)
    for _ in range(times(6, 200)):
        lines = [structured(rng) for _ in range(40)]
        with Server(root) as server:
            server.input.write(b"".join(lines))
            server.input.close()
            for request_id in (expected_id for line in lines for expected_id in due_answers(line)):
                answer = server.answer()
                assert faults_in(answer) == []
                assert answer["id"] == request_id
            assert server.process.wait(timeout=60) == 0


def test_every_request_over_http_gets_one_valid_answer(tmp_path: Path) -> None:
    rng = random.Random(SEED + 2)
    with Daemon(tmp_path) as daemon, Http(daemon.port) as http:
        for _ in range(times(400, 20_000)):
            line = rng.choice((structured, damaged, noise))(rng)[:-1]
            reply = http.ask("POST", "/mcp", line, RPC)
            expected_ids = due_answers(line + b"\n") if line.strip() else [None]
            if reply.status == 202:
                assert expected_ids == []
            else:
                assert faults_in(reply.json) == []
                assert [reply.json["id"]] == expected_ids
