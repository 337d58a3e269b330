"""An independent simulation of the cost of conversations, to check the ledger.

A conversation is given by its shape: sizes and times, no text. It is run twice, with and without folding, against a
simulated prompt cache: prefixes live for five minutes or an hour after their last use, and a lookup goes back at most
20 blocks. The run with folding gives the events that the ledger reads, and its real cost; the other run gives the cost
without folding. No calculation of the ledger is used.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contextfold.fold.events import FoldSeen, RequestSent
from contextfold.fold.model_catalog import TokenPrices

LOOKBACK_BLOCKS = 20
LIFE_S = {False: 300, True: 3_600}
TURN_S = 10
DEFINITIONS_TOKENS = 850
BRANCH_TOKENS, RETURN_TOKENS = 160, 250
FOLD_OUTPUT_TOKENS, FOLD_RESULT_TOKENS = 290, 170
BRANCH_RESULT_TOKENS, RETURN_RESULT_TOKENS = 120, 170
FOLD_FROM_TOKENS = 5_000
BRANCH_TURNS = 8
COLD_RESULT_TOKENS, STUB_TOKENS, RECENT_TURNS = 400, 50, 2


@dataclass(frozen=True, slots=True)
class SimulatedTurn:
    at_s: float
    user: int
    compacted: bool
    out: int
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SimulatedConversation:
    id: str
    system: int
    turns: tuple[SimulatedTurn, ...]


def read_shapes(path: Path) -> Iterator[SimulatedConversation]:
    for line in path.read_text(encoding="utf-8").splitlines():
        shape: Mapping[str, Any] = json.loads(line)
        now, turns = 0.0, []
        for turn in shape["turns"]:
            at_s = turn["at_s"]
            now = now + TURN_S if at_s is None else max(now, float(at_s))
            results = tuple(size for _, size in turn["results"])
            turns.append(SimulatedTurn(now, turn["user"], bool(turn["compacted"]), turn["out"], results))
        yield SimulatedConversation(str(shape["id"]), shape["system"], tuple(turns))


def random_shape(seed: int) -> SimulatedConversation:
    rng = random.Random(seed)
    now, turns = 0.0, []
    for number in range(rng.randrange(3, 90)):
        now += rng.choice([5, 10, 20, 40, 200, 900, 5_000]) if number % 7 == 0 else rng.randrange(4, 30)
        user = rng.randrange(5, 400) if number == 0 or rng.random() < 0.12 else 0
        results = tuple(rng.randrange(10, 6_000) for _ in range(rng.choice([0, 1, 1, 1, 2])))
        turns.append(SimulatedTurn(now, user, False, rng.randrange(20, 800), results))
    return SimulatedConversation(f"random {seed}", rng.choice([2_000, 20_000]), tuple(turns))


@dataclass(frozen=True, slots=True)
class _SimulatedBlock:
    """A block of a request. `own` marks calls and results of our tools; `result_of` is the turn of a tool result."""

    name: str
    tokens: int
    own: bool = False
    result_of: int = -1


@dataclass(frozen=True, slots=True)
class SimulatedUsage:
    read: int
    written: int
    output: int
    writes_1h: bool = False

    def cost(self, prices: TokenPrices) -> int:
        write = prices.cache_write_1h if self.writes_1h else prices.cache_write_5m
        return self.read * prices.cache_read + self.written * write + self.output * prices.output


@dataclass(slots=True)
class SimulatedCache:
    writes_1h: bool = False
    _until: dict[tuple[str, ...], float] = field(default_factory=dict)

    def ask(self, blocks: Sequence[_SimulatedBlock], at_s: float, output: int) -> SimulatedUsage:
        """Sends a request whose first and last block are marked for the cache."""
        names = tuple(block.name for block in blocks)
        ends = [*range(len(names), max(0, len(names) - LOOKBACK_BLOCKS - 1), -1), 1]
        cached_blocks = next((end for end in ends if self._until.get(_key(names, end), -1) >= at_s), 0)
        life_s = LIFE_S[self.writes_1h]
        for end in {1, cached_blocks, len(names)} - {0}:
            self._until[_key(names, end)] = at_s + life_s
        read = sum(block.tokens for block in blocks[:cached_blocks])
        return SimulatedUsage(read, sum(block.tokens for block in blocks) - read, output, self.writes_1h)


def _key(names: tuple[str, ...], end: int) -> tuple[str, ...]:
    return (str(end), str(hash(names[:end])))


@dataclass(slots=True)
class SimulatedRun:
    events: list[RequestSent] = field(default_factory=list)
    usages: list[SimulatedUsage] = field(default_factory=list)

    def cost(self, prices: TokenPrices) -> int:
        return sum(usage.cost(prices) for usage in self.usages)


def run_without(conversation: SimulatedConversation, *, writes_1h: bool = False) -> SimulatedRun:
    """Runs the conversation without folding."""
    run, cache = SimulatedRun(), SimulatedCache(writes_1h)
    history = [_SimulatedBlock("system", conversation.system)]
    for number, turn in enumerate(conversation.turns):
        history = _with_user_message(history, number, turn)
        run.usages.append(cache.ask(history, turn.at_s, turn.out))
        history += _turn_blocks(number, turn)
    return run


def _with_user_message(history: list[_SimulatedBlock], number: int, turn: SimulatedTurn) -> list[_SimulatedBlock]:
    if turn.compacted:
        history = [*history[:1], _SimulatedBlock(f"compacted {number}", 2_000)]
    return [*history, _SimulatedBlock(f"user {number}", turn.user)] if turn.user else history


def _turn_blocks(number: int, turn: SimulatedTurn) -> list[_SimulatedBlock]:
    results = [_SimulatedBlock(f"result {number}.{k}", size, result_of=number) for k, size in enumerate(turn.results)]
    return [_SimulatedBlock(f"out {number}", turn.out), *results]


class FoldingModel:
    """Runs a conversation with folding, by one of several strategies:

    fold        one call of `context_fold` in a separate turn, when there is enough work
    beside      the same call in a message with other calls
    branch      `context_branch` before tool turns and `context_return` after eight of them
    cold        results are left out after a pause longer than the life of the cache; the model does nothing
    both        beside and cold
    idle        our tools are offered and never used
    """

    def __init__(self, conversation: SimulatedConversation, strategy: str, *, writes_1h: bool, estimate: float) -> None:
        self._conversation, self._strategy, self._estimate = conversation, strategy, estimate
        self._cache = SimulatedCache(writes_1h)
        self._has_tools = strategy != "cold"
        definitions = DEFINITIONS_TOKENS if self._has_tools else 0
        # The history of the agent, the names of blocks that are dropped, and the names of blocks replaced by a stub.
        self._history = [_SimulatedBlock("system + tools", conversation.system + definitions)]
        self._dropped: set[str] = set()
        self._stubs: set[str] = set()
        self._since = 1
        self._opened: int | None = None
        self._turns_open = 0
        self._new_folds: list[FoldSeen] = []
        self._kept_tokens: int | None = None
        self._last_s = 0.0
        self._folds = 0
        self._blocks_sent = 0
        self.run = SimulatedRun()

    def play(self) -> SimulatedRun:
        for number, turn in enumerate(self._conversation.turns):
            before = len(self._history)
            self._history = _with_user_message(self._history, number, turn)
            if turn.compacted or turn.user:
                self._since, self._opened = len(self._history), None
            if turn.compacted and len(self._history) < before:
                self._dropped.clear()
                self._stubs.clear()
            if self._strategy in ("cold", "both"):
                self._leave_out_cold(number, turn.at_s)
            at_s, has_tool_calls = turn.at_s, bool(turn.results)
            if self._strategy == "fold" and self._work() >= FOLD_FROM_TOKENS:
                at_s = self._fold_alone(at_s)
            if self._strategy == "branch":
                at_s = self._branch_or_return(number, at_s, has_tool_calls)
            beside = self._strategy in ("beside", "both") and has_tool_calls and self._work() >= FOLD_FROM_TOKENS
            self._ask(at_s, turn.out + (FOLD_OUTPUT_TOKENS if beside else 0), FOLD_OUTPUT_TOKENS if beside else 0)
            since = len(self._history)
            self._history += _turn_blocks(number, turn)
            if beside:
                self._put_own(FOLD_OUTPUT_TOKENS, FOLD_RESULT_TOKENS)
                self._drop(self._since, since)
                self._since = len(self._history)
        return self.run

    def _work(self) -> int:
        return sum(block.tokens for block in self._history[self._since :] if block.name not in self._dropped)

    def _fold_alone(self, at_s: float) -> float:
        self._ask(at_s, FOLD_OUTPUT_TOKENS, FOLD_OUTPUT_TOKENS, only_ours=True)
        end = len(self._history)
        self._put_own(FOLD_OUTPUT_TOKENS, FOLD_RESULT_TOKENS)
        self._drop(self._since, end)
        self._since = len(self._history)
        return at_s + 1

    def _branch_or_return(self, number: int, at_s: float, has_tool_calls: bool) -> float:
        is_over = not has_tool_calls or self._turns_open >= BRANCH_TURNS or number == len(self._conversation.turns) - 1
        if self._opened is not None and is_over:
            self._ask(at_s, RETURN_TOKENS, RETURN_TOKENS, only_ours=True)
            end = len(self._history)
            self._put_own(RETURN_TOKENS, RETURN_RESULT_TOKENS)
            self._drop(self._opened, end)
            self._opened, at_s = None, at_s + 1
        if self._opened is None and has_tool_calls:
            self._ask(at_s, BRANCH_TOKENS, BRANCH_TOKENS, only_ours=True)
            self._put_own(BRANCH_TOKENS, BRANCH_RESULT_TOKENS)
            self._opened, self._turns_open, at_s = len(self._history), 0, at_s + 1
        self._turns_open += 1
        return at_s

    def _put_own(self, call: int, result: int) -> None:
        self._folds += 1
        self._history += [
            _SimulatedBlock(f"our call {self._folds}", call, own=True),
            _SimulatedBlock(f"our result {self._folds}", result, own=True),
        ]

    def _drop(self, start: int, end: int) -> None:
        dropped = [block for block in self._history[start:end] if not block.own]
        tokens_before = self._sent_tokens(self._history[:start])
        tokens = self._sent_tokens(dropped)
        self._dropped |= {block.name for block in dropped}
        if tokens:
            self._new_folds.append(
                FoldSeen(f"br_{self._folds:016x}", self._estimated(tokens), self._estimated(tokens_before))
            )

    def _leave_out_cold(self, number: int, at_s: float) -> None:
        if not self.run.usages or at_s - self._last_s <= LIFE_S[self._cache.writes_1h]:
            return
        for position, block in enumerate(self._history):
            is_old = 0 <= block.result_of < number - RECENT_TURNS
            if is_old and block.tokens >= COLD_RESULT_TOKENS and block.name not in self._stubs | self._dropped:
                if self._kept_tokens is None:
                    self._kept_tokens = self._estimated(self._sent_tokens(self._history[:position]))
                self._stubs.add(block.name)

    def _sent(self, blocks: Sequence[_SimulatedBlock]) -> list[_SimulatedBlock]:
        return [
            _SimulatedBlock(f"stub of {block.name}", STUB_TOKENS) if block.name in self._stubs else block
            for block in blocks
            if block.name not in self._dropped
        ]

    def _sent_tokens(self, blocks: Sequence[_SimulatedBlock]) -> int:
        return sum(block.tokens for block in self._sent(blocks))

    def _estimated(self, tokens: int) -> int:
        return round(tokens * self._estimate)

    def _ask(self, at_s: float, output: int, our_output: int, *, only_ours: bool = False) -> None:
        sent = self._sent(self._history)
        blocks = sum(not block.own for block in self._history)
        usage = self._cache.ask(sent, at_s, output)
        ours = sum(block.tokens for block in self._history if block.own)
        ours += DEFINITIONS_TOKENS if self._has_tools else 0
        self.run.usages.append(usage)
        self.run.events.append(
            RequestSent(
                len(self.run.events) + 1,
                _moment(at_s),
                "anthropic",
                "some-model",
                self._estimated(sum(block.tokens for block in self._history)),
                self._estimated(sum(block.tokens for block in sent)),
                0,
                None,
                "",
                0,
                usage.read,
                usage.written,
                output,
                f"c{len(self.run.events)}",
                tuple(self._new_folds),
                cache_write_1h_tokens=usage.written if usage.writes_1h else 0,
                our_tokens=self._estimated(ours),
                our_output_tokens=our_output,
                only_ours=only_ours,
                kept_tokens=self._kept_tokens,
                new_blocks=blocks - self._blocks_sent,
            )
        )
        self._new_folds, self._kept_tokens, self._last_s, self._blocks_sent = [], None, at_s, blocks


def _moment(at_s: float) -> str:
    seconds = int(at_s)
    days, rest = divmod(seconds, 86_400)
    return f"2026-01-{1 + days % 28:02}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}Z"
