"""The costs of real sessions of Claude Code, by which old results are left out: recorded shapes through the real code.

    python -m bench.economy_sessions [USAGE.jsonl.xz] [EVERY]

A shape has the sizes, times, tools, files (as hashes) and the provider's usage of each request, and no text. Texts are
generated, requests are folded as the proxy does it, and a simulated prompt cache, which sees only the sent bytes, gives
the cost. Where the provider read much less than it could have, although the cache was alive and the model the same, the
host had changed the beginning of its prompt; the replay changes the system prompt there. Thinking is not replayed.
EVERY replays every Nth session only.
"""

from __future__ import annotations

import json
import lzma
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.economy import ProviderCache
from bench.figures import Figure, report_progress, show
from contextfold.fold.messages import ColdSettings, Remembered, by_call, project_body
from contextfold.fold.messages.cold_results import AFTER_A_PAUSE, AUTO
from contextfold.fold.messages.sent_prefix import SentPrefix, count_warm_messages, read_prefix
from contextfold.fold.store import LeftOutDecision

VARIABLE = "CONTEXTFOLD_USAGE"
USAGE = Path(__file__).parents[2] / "shared" / "trajectories" / "claude-code-usage.jsonl.xz"
WAYS: Mapping[str, ColdSettings | None] = {"off": None, "cold": ColdSettings(), "auto": AUTO}
# A request that reads less than this part of the last prompt from a living cache has lost its prefix.
LOST_BELOW = 0.5
PREFIXES_MAX = 8
DEAREST_MAX, COST_MAX = 1.0, 1.0
Message = dict[str, Any]


def sessions_in(path: Path) -> Iterator[Mapping[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


class ReplayedRequest(NamedTuple):
    at_s: float
    body: bytes
    output: int
    is_1h: bool


def requests_of(session: Mapping[str, Any]) -> Iterator[ReplayedRequest]:
    """The requests of a session as the host sent them, with generated texts."""
    messages: list[Message] = []
    waiting: list[Message] = []
    calls, head, last = 0, 0, None
    for number, request in enumerate(session["requests"]):
        usage = request["usage"]
        is_1h = usage["write_1h"] > usage["write_5m"]
        if request.get("after_compaction"):
            messages, waiting = [], []
        blocks = [*waiting, *(_text_block(f"user {number} {n}", size) for n, size in enumerate(request["user"]))]
        messages.append({"role": "user", "content": blocks or [_text_block(f"user {number}", 20)]})
        prompt = usage["input"] + usage["read"] + usage["write_5m"] + usage["write_1h"]
        if last is not None:
            is_alive = request["at"] - last["end"] <= (3_600 if is_1h else 300)
            has_lost = usage["read"] < LOST_BELOW * last["prompt"] and not request.get("after_compaction")
            head += is_alive and has_lost and request["model"] == last["model"]
        system_bytes = max(0, 4 * prompt - sum(len(json.dumps(message)) for message in messages))
        system = [_text_block(f"system {head}", system_bytes if last is None else last["system"])]
        members = {"model": request["model"], "system": system, "messages": messages}
        if is_1h:
            members["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
        last = {
            "end": request["end"],
            "prompt": prompt,
            "model": request["model"],
            "system": system_bytes if last is None else last["system"],
        }
        yield ReplayedRequest(request["at"], json.dumps(members).encode(), usage["output"], is_1h)
        answer, waiting = [], []
        asked = [block for block in request["assistant"] if block["kind"] == "call"]
        answer += [
            _text_block(f"said {number} {n}", block["bytes"])
            for n, block in enumerate(request["assistant"])
            if block["kind"] == "text"
        ]
        for block, result in zip(asked, request["results"], strict=False):
            calls += 1
            arguments = {"file_path": block.get("file", ""), "new_string": _text(f"input {calls}", block["bytes"])}
            answer.append({"type": "tool_use", "id": f"toolu_{calls}", "name": result["tool"], "input": arguments})
            content = _text(result["content"], result["bytes"])
            outcome = {"type": "tool_result", "tool_use_id": f"toolu_{calls}", "content": content}
            waiting.append({**outcome, **({"is_error": True} if result.get("error") else {})})
        messages.append({"role": "assistant", "content": answer or [_text_block(f"said {number}", 20)]})


def _text(name: str, size: int) -> str:
    return f"{name} ".ljust(max(1, size), ".")[: max(1, size)]


def _text_block(name: str, size: int) -> Message:
    return {"type": "text", "text": _text(name, size)}


def cost_of(session: Mapping[str, Any], settings: ColdSettings | None) -> int:
    """The cost of a session if such results are left out whenever the cache no longer holds them."""
    caches: dict[str, ProviderCache] = {}
    decisions: tuple[LeftOutDecision, ...] = ()
    sent: list[tuple[SentPrefix, float]] = []
    cost, last_s = 0, None
    for request in requests_of(session):
        projection = project_body(request.body, "anthropic", remembered=Remembered(results=by_call(decisions)))
        if settings is not None and last_s is not None:
            life_s = projection.cache_life_s()
            place: int | None = 0 if request.at_s - last_s > life_s else None
            if place is None and settings is AUTO:
                held = [prefix for prefix, at_s in sent if request.at_s - at_s <= life_s]
                place = projection.place_of_sent(count_warm_messages(read_prefix(projection), held))
            if place is not None:
                cold = projection.cold_results(salt="", settings=settings, first_place=place, when=AFTER_A_PAUSE)
                decisions += tuple(each.decision for each in cold)
                remembered = Remembered(results=by_call(decisions))
                projection = project_body(request.body, "anthropic", remembered=remembered)
        if settings is AUTO:
            sent = [*sent, (read_prefix(projection), request.at_s)][-PREFIXES_MAX:]
        cache = caches.setdefault(projection.model, ProviderCache(request.is_1h))
        cost += cache.ask(projection.body, request.at_s, request.output).cost
        last_s = request.at_s
    return cost


def main(argv: Sequence[str] = ()) -> bool:
    path = Path(argv[0] if argv else os.environ.get(VARIABLE, USAGE))
    if not path.exists():
        print(f"bench: {path} does not exist; name a file of recorded sessions, or set {VARIABLE}", file=sys.stderr)
        return True
    sessions = list(sessions_in(path))[:: int(argv[1]) if len(argv) > 1 else 1]
    report_progress(f"replaying {len(sessions)} sessions, {len(WAYS)} times each")
    costs = [{name: cost_of(session, settings) for name, settings in WAYS.items()} for session in sessions]
    figures = []
    for name in ("cold", "auto"):
        ratio = sum(each[name] for each in costs) / sum(each["off"] for each in costs)
        dearest = max(each[name] / each["off"] for each in costs)
        figures.append(Figure(f"{name}: cost of all", f"{ratio:.3f}", "off", ratio, COST_MAX))
        figures.append(Figure(f"{name}: dearest session", f"{dearest:.3f}", "off", round(dearest, 3), DEAREST_MAX))
    return show(f"Economy of {len(sessions)} recorded sessions", figures)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
