"""The costs and savings of folding: recorded shapes of conversations, replayed through the real code.

    python -m bench.economy [SHAPES]

A shape has sizes and times and no text. Each conversation gets generated text and is sent request by request, three
times: without us, with cold results left out, and also with `context_fold`, called as the advice says. Requests are
folded by `project_body`, cold results are chosen by the projection, responses are read by the proxy's reader, and the
events that the ledger reads are made from the receipts. The cost of a request comes from a simulated prompt cache that
sees only the sent bytes: prefixes live for five minutes or an hour after their last use, and a lookup goes back at most
20 blocks. The simulation uses no calculation of the ledger. Without a file of shapes, shapes are generated.

Shapes do not say which file a call reads or edits. By default every call has another file, so that no read is
protected because its file was edited later. A separate row shows the other extreme: every edit changes the file that
was read last.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.cache_simulation import LIFE_S, LOOKBACK_BLOCKS, TURN_S
from bench.figures import Figure, print_table, report_progress, show
from contextfold.common.tokens import BYTES_PER_TOKEN, tokens_of
from contextfold.fold.events import RequestSent, ResultLeftOut, SessionStarted
from contextfold.fold.ledger import ledger_of
from contextfold.fold.messages import (
    BodyProjection,
    CallOutcome,
    ColdSettings,
    Remembered,
    by_call,
    merged_outcomes,
    project_body,
)
from contextfold.fold.model_catalog import RELATIVE_PRICES
from contextfold.fold.policy import pays
from contextfold.fold.sent_request import RequestReport, record_request
from contextfold.fold.session import EMPTY, replay
from contextfold.fold.store import LeftOutDecision
from contextfold.scrub.scrubber import ScrubResult
from contextfold.serve.mcp.fold_tools import AFTERWARDS_TOOLS, FOLD_TOOLS
from contextfold.serve.mcp.tools import FoldTool
from contextfold.serve.proxy.response_reader import ResponseFacts, ResponseReader

SHAPES = Path(__file__).parents[2] / "shared" / "trajectories" / "shapes.jsonl"
MADE_UP = 24
PREFIX = "mcp__contextfold__"
MODEL = "claude-sonnet-4-5"
# Four bytes a token overestimate the provider's count by this factor.
ESTIMATE_OFF = 1.04
CALL_TOKENS = 20
# Tools whose results are known to be short before the call.
SHORT_RESULTS = re.compile(r"(?i)edit|write|patch|replace|bash|todo|task(create|update)|plan")
# The size of a summary. With the call around it, this is what a model writes for a fold.
SUMMARY_BYTES = 4 * 250
LONG_TOKENS, SHORT_TOKENS = 100_000, 20_000
COLD_MAX, COLD_PROTECTED_MAX, BOTH_MAX, WORST_MAX, LEDGER_OFF_MAX = 0.78, 0.82, 0.66, 1.05, 0.03
# Below this part of the cost, the sign of a difference does not matter.
SIGN_FROM = 0.0005
WORDS = ("session", "branch", "token", "request", "reader", "cache", "limit", "writer", "ledger", "store", "cursor")


# ---- shapes


class ShapeTurn(NamedTuple):
    at_s: float
    user: int
    compacted: bool
    out: int
    # Tool and tokens.
    results: tuple[tuple[str, int], ...]


class ShapedConversation(NamedTuple):
    id: str
    # True for a person with an agent, with real pauses; false for a run of one prompt.
    is_session: bool
    tokens: int
    system: int
    turns: tuple[ShapeTurn, ...]


def shapes_in(path: Path) -> Iterator[ShapedConversation]:
    for line in path.read_text(encoding="utf-8").splitlines():
        shape: Mapping[str, Any] = json.loads(line)
        now, turns = 0.0, []
        last_s = shape["turns"][0]["at_s"]
        for number, turn in enumerate(shape["turns"]):
            # A time before the previous one means no pause.
            at_s = turn["at_s"]
            if number:
                now += TURN_S if at_s is None or last_s is None else max(0.0, at_s - last_s)
            last_s = at_s
            results = tuple((str(tool), int(size)) for tool, size in turn["results"])
            turns.append(ShapeTurn(now, turn["user"], bool(turn["compacted"]), turn["out"], results))
        yield ShapedConversation(
            str(shape["id"]), shape["kind"] == "session", shape["tokens"], shape["system"], tuple(turns)
        )


def made_up_shape(seed: int) -> ShapedConversation:
    """A random shape with sizes and pauses as in recordings: most results are short, some pauses are long."""
    rng = random.Random(seed)
    is_session = seed % 3 > 0
    now, turns = 0.0, []
    for number in range(rng.choice([8, 20, 60, 120])):
        user_speaks = number == 0 or (is_session and rng.random() < 0.12)
        now += rng.choice([30, 90, 400, 900, 4_000]) if user_speaks and number else rng.randrange(4, 30)
        tools = [rng.choice(["Read", "Bash", "Grep", "Edit"]) for _ in range(rng.choice([0, 1, 1, 1, 1, 2]))]
        results = tuple((tool, int(min(9_000, 60 + rng.paretovariate(0.9) * 120))) for tool in tools)
        turns.append(
            ShapeTurn(now, rng.randrange(10, 300) if user_speaks else 0, False, rng.randrange(40, 500), results)
        )
    system = 20_000 if is_session else 1_500
    tokens = system + sum(turn.user + turn.out + sum(size for _, size in turn.results) for turn in turns)
    return ShapedConversation(f"made up {seed}", is_session, tokens, system, tuple(turns))


# ---- generated text


# One word repeated, because only the length of a text matters.
_TEXT = " ".join([random.Random(7).choice(WORDS)] * 200_000)


def _text(name: str, tokens: int) -> str:
    size = max(0, tokens * BYTES_PER_TOKEN - len(name) - 1)
    begin = random.Random(name).randrange(len(_TEXT) // 2)
    text = _TEXT[begin : begin + size]
    return f"{name} {text.ljust(size, '.')}"


Message = dict[str, Any]
_FOLD_RESULT = {
    "folded_at": "2026-01-01T12:00:00Z",
    "branch_id": "",
    "parent_branch_id": None,
    "summary": {
        "tokens_folded": 12_345,
        "tokens_saved": 12_095,
        "operations_count": 12,
        "secrets_scrubbed": 0,
        "summary_redacted": False,
    },
    "context_state": {
        "active_branch_id": None,
        "branch_depth": 0,
        "total_tokens": 23_456,
        "main_thread_tokens": 23_456,
    },
    "context_health": {"warning": "none", "main_thread_usage": 0.12},
}


def _json(value: object) -> str:
    """Compact JSON, as clients send it."""
    return json.dumps(value, separators=(",", ":"))


# ---- the provider


class ProviderUsage(NamedTuple):
    read: int
    written: int
    output: int
    is_1h: bool

    @property
    def cost(self) -> int:
        prices = RELATIVE_PRICES
        write = prices.cache_write_1h if self.is_1h else prices.cache_write_5m
        return self.read * prices.cache_read + self.written * write + self.output * prices.output


@dataclass(slots=True)
class ProviderCache:
    """A simulated prompt cache. Cached are the prefixes up to the end of the system prompt and of each request."""

    is_1h: bool
    _until: dict[int, float] = field(default_factory=dict)

    def ask(self, body: bytes, at_s: float, output: int) -> ProviderUsage:
        request = json.loads(body)
        blocks = [_json([request.get("tools"), request["system"]])]
        for message in request["messages"]:
            blocks += [message["role"] + _block_text(block) for block in message["content"]]
        prefixes, sizes, prefix = [], [], 0
        for block in blocks:
            prefix = hash((prefix, block))
            prefixes.append(prefix)
            sizes.append(round(len(block) / BYTES_PER_TOKEN / ESTIMATE_OFF))
        ends = [*range(len(blocks), max(0, len(blocks) - LOOKBACK_BLOCKS - 1), -1), 1]
        cached_blocks = next((end for end in ends if self._until.get(prefixes[end - 1], -1) >= at_s), 0)
        for end in {1, cached_blocks, len(blocks)} - {0}:
            self._until[prefixes[end - 1]] = at_s + LIFE_S[self.is_1h]
        read = sum(sizes[:cached_blocks])
        return ProviderUsage(read, sum(sizes) - read, output, self.is_1h)


def _block_text(block: Mapping[str, Any]) -> str:
    """The text of a block without the JSON around it, which hardly counts for the provider."""
    if block["type"] == "text":
        return str(block["text"])
    if block["type"] == "tool_use":
        return f"{block['id']} {block['name']} {_json(block['input'])}"
    return f"{block['tool_use_id']} {block['content']}"


# ---- one conversation


class Way(NamedTuple):
    name: str
    tools: tuple[FoldTool, ...] = ()
    leaves_out: bool = False


WITHOUT = Way("without us")
COLD = Way("cold results", leaves_out=True)
BOTH = Way("cold results and context_fold", AFTERWARDS_TOOLS, leaves_out=True)
ALL_TOOLS = Way("the same, with all folding tools offered", FOLD_TOOLS, leaves_out=True)


def _definitions(way: Way) -> list[Message]:
    """The definitions of the tools, as clients name and send them."""
    return [
        {"name": PREFIX + tool.name, "description": tool.description, "input_schema": tool.schema} for tool in way.tools
    ]


@dataclass(slots=True)
class ReplayedRun:
    events: list[RequestSent] = field(default_factory=list)
    cost: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


class ConversationReplay:
    """Sends the requests of a conversation in one of the ways. With `edits_last_read` every edit changes the file that
    was read last; otherwise every call has another file."""

    def __init__(self, shape: ShapedConversation, way: Way, *, is_1h: bool, edits_last_read: bool = False) -> None:
        self._shape, self._way, self._edits_last_read = shape, way, edits_last_read
        self._cache = ProviderCache(is_1h)
        mark = {"type": "ephemeral", **({"ttl": "1h"} if is_1h else {})}
        system = [{"type": "text", "text": _text(f"{shape.id} system", shape.system), "cache_control": mark}]
        head = {"model": MODEL, "system": system, **({"tools": _definitions(way)} if way.tools else {})}
        self._head = _json(head)[:-1].encode() + b',"messages":['
        self._results: tuple[LeftOutDecision, ...] = ()
        self._outcomes: Mapping[str, CallOutcome] = {}
        self._last_s: float | None = None
        self._calls = 0
        self._folds = 0
        self._read_path = ""
        self._blocks = 0
        started = SessionStarted(1, _moment(0), "sess_1", "/home/me/project", None)
        self._state = replay([started], EMPTY)
        self._reset_messages()
        self.run = ReplayedRun()

    def _reset_messages(self) -> None:
        self._messages: list[bytes] = []
        self._user: list[Message] = []
        # The estimated tokens of the tool turns that a fold would replace.
        self._work = 0

    def play(self) -> ReplayedRun:
        for number, turn in enumerate(self._shape.turns):
            if turn.compacted and number:
                # The next message of the user is the host's summary.
                self._reset_messages()
            if turn.user or not self._user:
                self._user.append({"type": "text", "text": _text(f"{self._shape.id} user {number}", max(1, turn.user))})
                self._work = 0
            self._put("user", self._user)
            self._turn(number, turn)
        return self.run

    def _put(self, role: str, blocks: list[Message]) -> int:
        """Appends a message and gives its size in tokens."""
        self._messages.append(_json({"role": role, "content": blocks}).encode())
        return tokens_of(len(self._messages[-1]))

    def _turn(self, number: int, turn: ShapeTurn) -> None:
        projection = self._project(turn.at_s)
        answer, results = self._answer(number, turn)
        # The advice is to fold in a message with a call whose result is short, otherwise in a separate message.
        is_shared = bool(results) and all(SHORT_RESULTS.search(tool) for tool, _ in turn.results)
        is_fold = bool(self._way.tools) and pays(
            projection.receipt.tokens_after - self._work,
            self._work,
            RELATIVE_PRICES,
            requests=len(self.run.events),
            is_shared=is_shared,
        )
        if is_fold:
            call, result = self._fold_call()
            if is_shared:
                answer, results = [*answer, call], [*results, result]
            else:
                self._send(projection, turn.at_s, [call], 0)
                self._put("assistant", [call])
                self._put("user", [result])
                projection = self._project(turn.at_s)
            self._work = 0
        self._send(projection, turn.at_s, answer, turn.out)
        work = self._put("assistant", answer) + sum(tokens_of(len(_json(each))) for each in results)
        if not (is_fold and is_shared):
            self._work += work
        self._user = results

    def _project(self, at_s: float) -> BodyProjection:
        """Folds as the proxy does. If the cache has lapsed, chooses cold results and folds again."""
        body = self._head + b",".join(self._messages) + b"]}"
        projection = project_body(body, "anthropic", remembered=Remembered(self._outcomes, by_call(self._results)))
        self._outcomes = merged_outcomes(self._outcomes, projection.outcomes)
        if not self._way.leaves_out or self._last_s is None or at_s - self._last_s <= projection.cache_life_s():
            return projection
        cold = projection.cold_results(salt=self._shape.id, settings=ColdSettings())
        if not cold:
            return projection
        self._results += tuple(each.decision for each in cold)
        return project_body(body, "anthropic", remembered=Remembered(self._outcomes, by_call(self._results)))

    def _answer(self, number: int, turn: ShapeTurn) -> tuple[list[Message], list[Message]]:
        text = _text(f"{self._shape.id} out {number}", max(1, turn.out - CALL_TOKENS * len(turn.results)))
        answer: list[Message] = [{"type": "text", "text": text}]
        results: list[Message] = []
        for tool, size in turn.results:
            self._calls += 1
            call_id = f"toolu_{self._calls:08}"
            path = f"src/module_{self._calls}.py"
            if self._edits_last_read:
                self._read_path = path if tool == "Read" or not self._read_path else self._read_path
                path = self._read_path
            answer.append({"type": "tool_use", "id": call_id, "name": tool, "input": {"file_path": path}})
            content = _text(f"{self._shape.id} {call_id}", size)
            results.append({"type": "tool_result", "tool_use_id": call_id, "content": content})
        return answer, results

    def _fold_call(self) -> tuple[Message, Message]:
        self._folds += 1
        call_id = f"toolu_fold_{self._folds:08}"
        summary = _text(f"{self._shape.id} summary {self._folds}", SUMMARY_BYTES // BYTES_PER_TOKEN)
        arguments = {"project_path": "/home/me/project", "message": summary}
        call = {"type": "tool_use", "id": call_id, "name": f"{PREFIX}context_fold", "input": arguments}
        result = _json({**_FOLD_RESULT, "branch_id": f"br_{self._folds:016x}"})
        return call, {"type": "tool_result", "tool_use_id": call_id, "content": result}

    def _send(self, projection: BodyProjection, at_s: float, answer: list[Message], out: int) -> None:
        ours = sum(len(_json(block)) for block in answer if block.get("name") == f"{PREFIX}context_fold")
        output = round((out + ours / BYTES_PER_TOKEN) / ESTIMATE_OFF)
        usage = self._cache.ask(projection.body, at_s, output)
        self.run.cost += usage.cost
        receipt, response = projection.receipt, _response(projection, usage, answer)
        if receipt.reason:
            self.run.reasons[receipt.reason] += 1
        report = RequestReport(
            id=f"req_{len(self.run.events)}",
            api="anthropic",
            model="some-model",
            receipt=receipt,
            usage=response.usage,
            our_tokens=projection.our_tokens,
            our_output_tokens=response.our_output_tokens,
            only_ours=response.only_ours,
            left_out=tuple(ResultLeftOut(each.result_id, each.tokens) for each in projection.left_out),
            new_blocks=max(0, projection.blocks - self._blocks) if self._blocks else 0,
        )
        recorded = record_request(self._state, _moment(at_s), report, [ScrubResult(report.model, 0, ())])
        self._state = replay(recorded.events, self._state)
        self.run.events += [event for event in recorded.events if isinstance(event, RequestSent)]
        self._blocks, self._last_s = projection.blocks, at_s


def _response(projection: BodyProjection, usage: ProviderUsage, answer: list[Message]) -> ResponseFacts:
    """The facts that the proxy reads from the provider's response."""
    counts = {
        "input_tokens": 0,
        "cache_read_input_tokens": usage.read,
        "cache_creation_input_tokens": usage.written,
        "cache_creation": {"ephemeral_1h_input_tokens": usage.written if usage.is_1h else 0},
        "output_tokens": usage.output,
    }
    reader = ResponseReader("anthropic", "application/json", "identity", projection.our_tools)
    reader.feed(_json({"type": "message", "role": "assistant", "content": answer, "usage": counts}).encode())
    return reader.facts()


def _moment(at_s: float) -> str:
    days, rest = divmod(int(at_s), 86_400)
    return f"2026-01-{1 + days % 28:02}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}Z"


# ---- all of them


class Comparison(NamedTuple):
    shape: ShapedConversation
    way: Way
    is_1h: bool
    cost: int
    without: int
    ledger_sent: int
    ledger_without: int

    @property
    def ratio(self) -> float:
        return self.cost / self.without

    @property
    def off(self) -> float:
        return abs(self.ledger_without - self.without) / self.without

    @property
    def has_wrong_sign(self) -> bool:
        saved, ledger_saved = self.without - self.cost, self.ledger_without - self.ledger_sent
        return abs(saved) >= SIGN_FROM * self.without and (saved > 0) != (ledger_saved > 0)


def compared(shape: ShapedConversation, *, is_1h: bool) -> list[Comparison]:
    without = ConversationReplay(shape, WITHOUT, is_1h=is_1h).play().cost
    rows = []
    for way in (COLD, BOTH):
        run = ConversationReplay(shape, way, is_1h=is_1h).play()
        sums = ledger_of(run.events).sums
        rows.append(Comparison(shape, way, is_1h, run.cost, without, sums.cost_sent, sums.cost_without))
    return rows


def is_long_session(row: Comparison) -> bool:
    return row.shape.is_session and row.shape.tokens >= SHORT_TOKENS


def total_ratio(rows: Sequence[Comparison]) -> float:
    return sum(row.cost for row in rows) / sum(row.without for row in rows) if rows else 0.0


def figures_of(rows: Sequence[Comparison], *, is_1h: bool) -> list[Figure]:
    life = "1 h" if is_1h else "5 min"
    cold = [row for row in rows if row.way is COLD and row.is_1h == is_1h]
    both = [row for row in rows if row.way is BOTH and row.is_1h == is_1h]
    dearer = sum(row.cost > row.without for row in cold)
    worst = max(both, key=lambda row: row.ratio)
    off = max((*cold, *both), key=lambda row: row.off)
    wrong = sum(row.has_wrong_sign for row in (*cold, *both))
    # One-hour caches seldom lapse, so the cost is limited only for five-minute caches.
    limits = (None, None) if is_1h else (COLD_MAX, BOTH_MAX)
    return [
        Figure(f"cold results, {life}: dearer conversations", f"{dearer} of {len(cold)}", "0", dearer, 0),
        _cost_of_sessions(f"cold results, {life}", cold, limits[0]),
        _cost_of_sessions(f"with context_fold, {life}", both, limits[1]),
        Figure(
            f"with context_fold, {life}: dearest conversation",
            f"{worst.ratio:.3f} ({worst.shape.id})",
            "without us",
            worst.ratio,
            WORST_MAX,
        ),
        Figure(
            f"ledger, {life}: furthest from the simulation",
            f"{off.off:.2%} ({off.shape.id}, {off.way.name})",
            "3 %",
            off.off,
            LEDGER_OFF_MAX,
        ),
        Figure(f"ledger, {life}: wrong signs", f"{wrong} of {len(cold) + len(both)}", "0", wrong, 0),
    ]


def _cost_of_sessions(name: str, rows: Sequence[Comparison], limit: float | None) -> Figure:
    """The cost of the sessions of at least 20,000 tokens. It is rounded to two decimals, as the limits are."""
    ratio = total_ratio([row for row in rows if is_long_session(row)])
    return Figure(
        f"{name}: cost of sessions", f"{ratio:.3f}", "without us", round(ratio, 2), 1.0 if limit is None else limit
    )


def print_by_length(rows: Sequence[Comparison]) -> None:
    """The table of the README: each cost for a five-minute cache and for one of an hour."""
    print("\nWhat folding costs and saves by length (cost relative to not using it, output included)")
    head = ("conversations", "number", "cold results", "dearer", "and context_fold", "dearest", "dearer")
    table = [head[:2] + tuple(f"{name}, {life}" for life in ("5 min", "1 h") for name in head[2:])]
    for kind, is_session in (("sessions with pauses", True), ("one-prompt runs", False)):
        for name, least, most in (
            ("< 20k tokens", 0, SHORT_TOKENS),
            ("20k-100k tokens", SHORT_TOKENS, LONG_TOKENS),
            ("> 100k tokens", LONG_TOKENS, sys.maxsize),
        ):
            group = [row for row in rows if row.shape.is_session == is_session and least <= row.shape.tokens < most]
            if group:
                of_5m, of_1h = ([row for row in group if row.is_1h == is_1h] for is_1h in (False, True))
                number = str(sum(row.way is COLD for row in of_5m))
                table.append((f"{kind}, {name}", number, *_costs_by_way(of_5m), *_costs_by_way(of_1h)))
    print_table(table)


def _costs_by_way(rows: Sequence[Comparison]) -> tuple[str, ...]:
    cold, both = ([row for row in rows if row.way is way] for way in (COLD, BOTH))
    return (
        f"{total_ratio(cold):.2f}",
        str(sum(row.cost > row.without for row in cold)),
        f"{total_ratio(both):.2f}",
        f"{max(row.ratio for row in both):.2f}",
        str(sum(row.cost > row.without for row in both)),
    )


def main(argv: Sequence[str] = ()) -> bool:
    path = Path(argv[0]) if argv else SHAPES
    shapes = list(shapes_in(path)) if path.exists() else [made_up_shape(seed) for seed in range(MADE_UP)]
    report_progress(f"replaying {len(shapes)} conversations, six times each")
    rows = [row for is_1h in (False, True) for shape in shapes for row in compared(shape, is_1h=is_1h)]
    source = "recorded shapes" if path.exists() else "made-up shapes"
    figures = [figure for is_1h in (False, True) for figure in figures_of(rows, is_1h=is_1h)]
    protected = [
        row._replace(cost=ConversationReplay(row.shape, COLD, is_1h=False, edits_last_read=True).play().cost)
        for row in rows
        if row.way is COLD and not row.is_1h and is_long_session(row)
    ]
    name = "cold results, 5 min, every edit of the file read last"
    figures.append(_cost_of_sessions(name, protected, COLD_PROTECTED_MAX))
    is_within = show(f"Economy, {len(shapes)} {source}", figures)
    print_by_length(rows)
    short = [row for row in rows if row.way is BOTH and not row.is_1h and row.shape.tokens < SHORT_TOKENS]
    dearest = max(ConversationReplay(row.shape, ALL_TOOLS, is_1h=False).play().cost / row.without for row in short)
    two, all_tools = (tokens_of(len(_json(_definitions(way)))) for way in (BOTH, ALL_TOOLS))
    print(f"\nOffered are context_fold and context_expand alone, {two} tokens of definitions. With all folding tools,")
    print(f"{all_tools} tokens, the dearest conversation of fewer than 20,000 tokens costs {dearest:.2f}.")
    return is_within


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
