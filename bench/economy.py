"""What folding costs and saves: recorded shapes of conversations, replayed through the real code.

    python -m bench.economy [SHAPES]

A shape has sizes and times and no text. Each conversation is written out with generated text and sent request by
request, three times: without us, with cold results left out, and with `context_fold` as well, called as the advice
says. Requests are folded by `project_body`, cold results are chosen by the projection, and the events that the ledger
reads are made from the receipts. What a request costs comes from a simulated prompt cache that sees only the bytes
that are sent: prefixes live for five minutes or an hour after their last use, and a lookup goes back at most 20
blocks. Nothing of the ledger's reasoning is used for that. Without a file of shapes, shapes are made up.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.cache_simulation import LIFE_S, LOOKBACK_BLOCKS, TURN_S
from bench.figures import Figure, print_table, show, tell
from bench.own_share import OwnShare, common_prefix, definitions_tokens, own_output
from contextfold.common.token_counter import BYTES_PER_TOKEN, tokens_of
from contextfold.fold.advice import pays
from contextfold.fold.events import RequestSent
from contextfold.fold.ledger.savings import ledger_of
from contextfold.fold.ledger.sent_request import FoldSeen
from contextfold.fold.messages import (
    BodyProjection,
    CallOutcome,
    ColdSettings,
    LeftOutResult,
    Remembered,
    by_call,
    merged_outcomes,
    project_body,
)
from contextfold.fold.model_catalog import RELATIVE_PRICES
from contextfold.serve.mcp.fold_tools import FOLD_TOOLS

SHAPES = Path(__file__).parents[2] / "shared" / "trajectories" / "shapes.jsonl"
MADE_UP = 24
PREFIX = "mcp__contextfold__"
MODEL = "claude-sonnet-4-5"
# The provider's count of a text is this much below four bytes a token.
ESTIMATE_OFF = 1.04
COMPACTED_TOKENS = 2_000
CALL_TOKENS = 20
# The words of a summary: with the call around it, what a model writes for a fold.
SUMMARY_BYTES = 4 * 250
LONG_TOKENS, SHORT_TOKENS = 100_000, 20_000
COLD_MAX, BOTH_MAX, WORST_MAX, LEDGER_OFF_MAX = 0.78, 0.66, 1.05, 0.03
# A difference of less than this part of the cost has no sign worth speaking of.
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
    # A person with an agent, with real pauses; or one prompt.
    is_session: bool
    tokens: int
    system: int
    turns: tuple[ShapeTurn, ...]


def shapes_in(path: Path) -> Iterator[ShapedConversation]:
    for line in path.read_text(encoding="utf-8").splitlines():
        shape: Mapping[str, Any] = json.loads(line)
        now, turns = 0.0, []
        for turn in shape["turns"]:
            now = now + TURN_S if turn["at_s"] is None else max(now, float(turn["at_s"]))
            results = tuple((str(tool), int(size)) for tool, size in turn["results"])
            turns.append(ShapeTurn(now, turn["user"], bool(turn["compacted"]), turn["out"], results))
        yield ShapedConversation(
            str(shape["id"]), shape["kind"] == "session", shape["tokens"], shape["system"], tuple(turns)
        )


def made_up_shape(seed: int) -> ShapedConversation:
    """Sizes and pauses as in recorded conversations: most results are short, some are files; people come back late."""
    dice = random.Random(seed)
    is_session = seed % 3 > 0
    now, turns = 0.0, []
    for number in range(dice.choice([8, 20, 60, 120])):
        speaks = number == 0 or (is_session and dice.random() < 0.12)
        now += dice.choice([30, 90, 400, 900, 4_000]) if speaks and number else dice.randrange(4, 30)
        tools = [dice.choice(["Read", "Bash", "Grep", "Edit"]) for _ in range(dice.choice([0, 1, 1, 1, 1, 2]))]
        results = tuple((tool, int(min(9_000, 60 + dice.paretovariate(0.9) * 120))) for tool in tools)
        turns.append(ShapeTurn(now, dice.randrange(10, 300) if speaks else 0, False, dice.randrange(40, 500), results))
    system = 20_000 if is_session else 1_500
    tokens = system + sum(turn.user + turn.out + sum(size for _, size in turn.results) for turn in turns)
    return ShapedConversation(f"made up {seed}", is_session, tokens, system, tuple(turns))


# ---- generated text


_TEXT = " ".join(random.Random(7).choice(WORDS) for _ in range(200_000))


def _text(name: str, tokens: int) -> str:
    size = max(0, tokens * BYTES_PER_TOKEN - len(name) - 1)
    begin = random.Random(name).randrange(len(_TEXT) // 2)
    text = _TEXT[begin : begin + size]
    return f"{name} {text.ljust(size, '.')}"


Message = dict[str, Any]
_DEFINITIONS = [
    {"name": PREFIX + tool.name, "description": tool.description, "input_schema": tool.schema} for tool in FOLD_TOOLS
]
_FOLD_RESULT = {
    "session_id": "sess_0123456789abcdef0123456789abcdef",
    "branch_id": "",
    "parent_branch_id": None,
    "folded_at": "2026-01-01T12:00:00Z",
    "tokens_folded": 12_345,
    "secrets_scrubbed": 0,
    "context_state": {
        "active_branch_id": None,
        "branch_depth": 0,
        "total_tokens": 23_456,
        "main_thread_tokens": 23_456,
    },
    "context_health": {"warning": "none", "main_thread_usage": 0.12},
}


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
    """Knows the prefixes that were marked for the cache: the end of the system prompt and of each request."""

    is_1h: bool
    _until: dict[int, float] = field(default_factory=dict)

    def ask(self, body: bytes, at_s: float, output: int) -> ProviderUsage:
        request = json.loads(body)
        blocks = [json.dumps([request.get("tools"), request["system"]])]
        for message in request["messages"]:
            blocks += [message["role"] + _block_text(block) for block in message["content"]]
        prefixes, sizes, known = [], [], 0
        for block in blocks:
            known = hash((known, block))
            prefixes.append(known)
            sizes.append(round(len(block) / BYTES_PER_TOKEN / ESTIMATE_OFF))
        ends = [*range(len(blocks), max(0, len(blocks) - LOOKBACK_BLOCKS - 1), -1), 1]
        found = next((end for end in ends if self._until.get(prefixes[end - 1], -1) >= at_s), 0)
        for end in {1, found, len(blocks)} - {0}:
            self._until[prefixes[end - 1]] = at_s + LIFE_S[self.is_1h]
        read = sum(sizes[:found])
        return ProviderUsage(read, sum(sizes) - read, output, self.is_1h)


def _block_text(block: Mapping[str, Any]) -> str:
    """What the provider reads of a block. It is sent as JSON with little around it."""
    if block["type"] == "text":
        return str(block["text"])
    if block["type"] == "tool_use":
        return f"{block['id']} {block['name']} {json.dumps(block['input'])}"
    return f"{block['tool_use_id']} {block['content']}"


# ---- one conversation


class Way(NamedTuple):
    name: str
    has_tools: bool = False
    leaves_out: bool = False


WITHOUT = Way("without us")
COLD = Way("cold results", leaves_out=True)
BOTH = Way("cold results and context_fold", has_tools=True, leaves_out=True)


@dataclass(slots=True)
class ReplayedRun:
    events: list[RequestSent] = field(default_factory=list)
    cost: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


class ConversationReplay:
    """Sends a conversation's requests in one of the ways."""

    def __init__(self, shape: ShapedConversation, way: Way, *, is_1h: bool) -> None:
        self._shape, self._way = shape, way
        self._cache = ProviderCache(is_1h)
        mark = {"type": "ephemeral", **({"ttl": "1h"} if is_1h else {})}
        system = [{"type": "text", "text": _text(f"{shape.id} system", shape.system), "cache_control": mark}]
        head: dict[str, Any] = {"model": MODEL, "system": system}
        self._definitions = _DEFINITIONS if way.has_tools else []
        if way.has_tools:
            head["tools"] = self._definitions
        self._head = json.dumps(head)[:-1].encode() + b', "messages": ['
        self._begin()
        self._results: tuple[LeftOutResult, ...] = ()
        self._outcomes: Mapping[str, CallOutcome] = {}
        self._last_s: float | None = None
        self._listed: set[str] = set()
        self._calls = 0
        self._folds = 0
        self._read_path = ""
        self.run = ReplayedRun()

    def _begin(self) -> None:
        self._messages: list[bytes] = []
        self._share = OwnShare("anthropic")
        self._user: list[Message] = []
        self._blocks_before = 0
        # The estimated tokens of the tool turns that a fold would take, and of everything that is sent.
        self._work = 0

    def play(self) -> ReplayedRun:
        for number, turn in enumerate(self._shape.turns):
            if turn.compacted and number:
                self._begin()
                self._say(_text(f"{self._shape.id} compacted {number}", COMPACTED_TOKENS))
            if turn.user or not self._user:
                self._say(_text(f"{self._shape.id} user {number}", max(1, turn.user)))
            self._put("user", self._user)
            self._user = []
            self._send(number, turn)
        return self.run

    def _say(self, text: str) -> None:
        self._user.append({"type": "text", "text": text})
        self._work = 0

    def _put(self, role: str, blocks: list[Message]) -> int:
        """Append a message; its size in tokens."""
        message = {"role": role, "content": blocks}
        self._share.take(message)
        self._messages.append(json.dumps(message).encode())
        return tokens_of(len(self._messages[-1]))

    def _send(self, number: int, turn: ShapeTurn) -> None:
        body = self._head + b", ".join(self._messages) + b"]}"
        projection, kept_tokens = self._projected(body, turn.at_s)
        sent_tokens = projection.receipt.tokens_after
        answer, results = self._answer(number, turn)
        # The work so far is folded by a call beside the calls of this turn, as the advice says.
        may_fold = self._way.has_tools and bool(results)
        is_fold = may_fold and pays(sent_tokens - self._work, self._work, RELATIVE_PRICES)
        if is_fold:
            self._add_fold(answer, results)
        ours = own_output("anthropic", [{"role": "assistant", "content": answer}])
        # The provider counts the whole response; our part of it is estimated by us.
        usage = self._cache.ask(projection.body, turn.at_s, turn.out + round(ours.tokens / ESTIMATE_OFF))
        self.run.cost += usage.cost
        self._note(projection, usage, turn, kept_tokens, ours.tokens)
        work = self._put("assistant", answer)
        self._user = results
        work += sum(tokens_of(len(json.dumps(each))) for each in results)
        self._work = 0 if is_fold else self._work + (work if results else 0)
        self._last_s = turn.at_s

    def _projected(self, body: bytes, at_s: float) -> tuple[BodyProjection, int | None]:
        """As the proxy does it: fold, and once the cache has lapsed decide about cold results and fold again."""
        projection = project_body(body, "anthropic", remembered=Remembered(self._outcomes, by_call(self._results)))
        self._outcomes = merged_outcomes(self._outcomes, projection.outcomes)
        if not self._way.leaves_out or self._last_s is None or at_s - self._last_s <= projection.cache_life_s():
            return projection, None
        cold = projection.cold_results(salt=self._shape.id, settings=ColdSettings())
        if not cold:
            return projection, None
        self._results += tuple(each.result for each in cold)
        again = project_body(body, "anthropic", remembered=Remembered(self._outcomes, by_call(self._results)))
        return again, tokens_of(common_prefix(projection.body, again.body))

    def _answer(self, number: int, turn: ShapeTurn) -> tuple[list[Message], list[Message]]:
        text = _text(f"{self._shape.id} out {number}", max(1, turn.out - CALL_TOKENS * len(turn.results)))
        answer: list[Message] = [{"type": "text", "text": text}]
        results: list[Message] = []
        for tool, size in turn.results:
            self._calls += 1
            call_id = f"toolu_{self._calls:08}"
            # An edit changes the file that was read last.
            if tool == "Read" or not self._read_path:
                self._read_path = f"src/module_{self._calls}.py"
            answer.append({"type": "tool_use", "id": call_id, "name": tool, "input": {"file_path": self._read_path}})
            content = _text(f"{self._shape.id} {call_id}", size)
            results.append({"type": "tool_result", "tool_use_id": call_id, "content": content})
        return answer, results

    def _add_fold(self, answer: list[Message], results: list[Message]) -> None:
        self._folds += 1
        call_id = f"toolu_fold_{self._folds:08}"
        summary = _text(f"{self._shape.id} summary {self._folds}", SUMMARY_BYTES // BYTES_PER_TOKEN)
        arguments = {"project_path": "/home/me/project", "message": summary}
        answer.append({"type": "tool_use", "id": call_id, "name": f"{PREFIX}context_fold", "input": arguments})
        result = json.dumps({**_FOLD_RESULT, "branch_id": f"br_{self._folds:032x}"})
        results.append({"type": "tool_result", "tool_use_id": call_id, "content": result})

    def _note(
        self, projection: BodyProjection, usage: ProviderUsage, turn: ShapeTurn, kept: int | None, our_output: int
    ) -> None:
        receipt = projection.receipt
        if receipt.reason:
            self.run.reasons[receipt.reason] += 1
        new = [fold for fold in receipt.folds if fold.branch_id not in self._listed]
        self._listed |= {fold.branch_id for fold in new}
        self.run.events.append(
            RequestSent(
                len(self.run.events) + 1,
                _moment(turn.at_s),
                "anthropic",
                "some-model",
                receipt.tokens_before,
                receipt.tokens_after,
                receipt.turns_dropped,
                receipt.first_changed,
                receipt.reason,
                0,
                usage.read,
                usage.written,
                usage.output,
                folds=tuple(FoldSeen(fold.branch_id, fold.tokens, fold.kept_tokens) for fold in new),
                cache_write_1h_tokens=usage.written if usage.is_1h else 0,
                our_tokens=self._share.tokens + definitions_tokens(self._definitions),
                our_output_tokens=our_output,
                results_dropped=receipt.results_left_out,
                kept_tokens=kept,
                new_blocks=max(0, self._share.blocks - self._blocks_before),
            )
        )
        self._blocks_before = self._share.blocks


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
        saved, said = self.without - self.cost, self.ledger_without - self.ledger_sent
        return abs(saved) >= SIGN_FROM * self.without and (saved > 0) != (said > 0)


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
    figures = []
    dearer = sum(row.cost > row.without for row in cold)
    figures.append(Figure(f"cold results, {life}: dearer conversations", f"{dearer} of {len(cold)}", "0", dearer, 0))
    for name, is_short, most in (("20k tokens and more", False, WORST_MAX), ("fewer tokens", True, WORST_MAX)):
        some = [row for row in both if (row.shape.tokens < SHORT_TOKENS) == is_short]
        worst = max(some, key=lambda row: row.ratio)
        where = f"{worst.ratio:.3f} ({worst.shape.id})"
        title = f"with context_fold, {life}: dearest of {name}"
        figures.append(Figure(title, where, "without us", worst.ratio, most))
    if not is_1h:
        for name, some, most in ((COLD.name, cold, COLD_MAX), (BOTH.name, both, BOTH_MAX)):
            ratio = total_ratio([row for row in some if is_long_session(row)])
            figures.append(Figure(f"{name}, {life}: cost of sessions", f"{ratio:.3f}", "without us", ratio, most))
    off = max((*cold, *both), key=lambda row: row.off)
    text = f"{off.off:.2%} ({off.shape.id}, {off.way.name})"
    figures.append(Figure(f"ledger, {life}: furthest from the simulation", text, "3 %", off.off, LEDGER_OFF_MAX))
    wrong = sum(row.has_wrong_sign for row in (*cold, *both))
    figures.append(Figure(f"ledger, {life}: wrong signs", f"{wrong} of {len(cold) + len(both)}", "0", wrong, 0))
    return figures


def print_by_length(rows: Sequence[Comparison]) -> None:
    print("\nWhat folding costs and saves by length (cost relative to not using it, output included; 5-minute cache)")
    table = [("conversations", "number", "cold results", "dearer", "and context_fold", "dearest", "dearer")]
    for kind, is_session in (("sessions with pauses", True), ("one-prompt runs", False)):
        for name, least, most in (
            ("< 20k tokens", 0, SHORT_TOKENS),
            ("20k-100k tokens", SHORT_TOKENS, LONG_TOKENS),
            ("> 100k tokens", LONG_TOKENS, sys.maxsize),
        ):
            some = [
                row
                for row in rows
                if not row.is_1h and row.shape.is_session == is_session and least <= row.shape.tokens < most
            ]
            cold, both = ([row for row in some if row.way is way] for way in (COLD, BOTH))
            if some:
                table.append(
                    (
                        f"{kind}, {name}",
                        str(len(cold)),
                        f"{total_ratio(cold):.2f}",
                        str(sum(row.cost > row.without for row in cold)),
                        f"{total_ratio(both):.2f}",
                        f"{max(row.ratio for row in both):.2f}",
                        str(sum(row.cost > row.without for row in both)),
                    )
                )
    print_table(table)


def main(argv: Sequence[str] = ()) -> bool:
    path = Path(argv[0]) if argv else SHAPES
    shapes = list(shapes_in(path)) if path.exists() else [made_up_shape(seed) for seed in range(MADE_UP)]
    tell(f"replaying {len(shapes)} conversations, six times each")
    rows = [row for is_1h in (False, True) for shape in shapes for row in compared(shape, is_1h=is_1h)]
    source = "recorded shapes" if path.exists() else "made-up shapes"
    figures = [figure for is_1h in (False, True) for figure in figures_of(rows, is_1h=is_1h)]
    is_within = show(f"Economy, {len(shapes)} {source}", figures)
    print_by_length(rows)
    return is_within


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
