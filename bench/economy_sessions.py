"""The costs of real sessions of Claude Code, by what is left out of them: recorded shapes through the real code.

    python -m bench.economy_sessions [USAGE.jsonl.xz] [EVERY] [WAY …]

A shape has the sizes, times, tools, files (as hashes) and the provider's usage of each request, and no text. Texts are
generated, requests are folded as the proxy folds them, and a simulated prompt cache, which sees only what is sent,
gives the cost. It knows nothing of our estimates: a token has 3.0 bytes of a tool's result, 3.3 of a call, 3.6 of
prose, as was measured on these sessions, where we estimate 4. Marks for the cache are on the last two messages of the
user, as Claude Code sets them.

The beginning of the prompt that other sessions share stays cached; the rest lives for five minutes or an hour, as the
record says. Where the record shows that the provider read much less than it could have, although the cache was alive,
the host had changed its system prompt or tools: the replay changes them there, too.

With `advice` the model has context_fold and folds whenever a line of advice tells it to, in the next response, and only
then. With `fork` the session goes on under a new name from its middle on, and only that half is counted: the ledger of
the new one does not know what was left out before. EVERY replays every Nth session only.
"""

from __future__ import annotations

import json
import lzma
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.economy import LEDGER_OFF_MAX, PREFIX, SHORT_RESULTS, SIGN_FROM
from bench.figures import Figure, print_table, report_progress, show
from contextfold.common.tokens import BYTES_PER_TOKEN, tokens_of
from contextfold.fold.events import Event, ResultLeftOut, SessionStarted, WorkFolded, timestamp
from contextfold.fold.ledger import ledger_of
from contextfold.fold.messages import (
    BodyProjection,
    CallOutcome,
    ColdSettings,
    ParsedRequest,
    Remembered,
    by_call,
    merged_outcomes,
    project_request,
)
from contextfold.fold.messages.batches import choose_batch, pays_if_undone
from contextfold.fold.messages.cold_results import AFTER_A_PAUSE, AUTO, BATCHES
from contextfold.fold.messages.sent_prefix import SentPrefix, count_warm_messages, find_other_models, read_prefix
from contextfold.fold.model_catalog import RELATIVE_PRICES
from contextfold.fold.policy import FoldPolicy, GivenAdvice, choose_advice
from contextfold.fold.sent_request import RequestReport, Share, Usage, record_request
from contextfold.fold.session import EMPTY, replay
from contextfold.fold.store import LeftOutDecision
from contextfold.scrub.scrubber import ScrubResult
from contextfold.serve.mcp.fold_tools import AFTERWARDS_TOOLS

VARIABLE = "CONTEXTFOLD_USAGE"
USAGE = Path(__file__).parents[2] / "shared" / "trajectories" / "claude-code-usage.jsonl.xz"
# Bytes per token by the type of a block, and the tokens around each block: fitted to the recorded counts.
BYTES_OF_TOKEN = {"tool_result": 3.0, "tool_use": 3.3, "text": 3.6, "thinking": 7.2}
BLOCK_TOKENS = 20
LIFE_S = {False: 300, True: 3_600}
LOOKBACK_BLOCKS = 20
# A request that reads so much less than it could from a living cache has lost its prefix.
LOST_SHARE, LOST_TOKENS = 0.1, 1_000
PREFIXES_MAX = 8
SUMMARY_BYTES = 900
Message = dict[str, Any]


class Way(NamedTuple):
    name: str
    settings: ColdSettings | None = None
    has_tools: bool = False
    # The model follows every Nth line of advice.
    follows_every: int = 1
    # Whether the session is forked in its middle.
    is_forked: bool = False
    # The limits for the cost of all sessions, and for that of the dearest.
    cost_max: float = 1.0
    dearest_max: float = 1.0


OFF = Way("off")
WAYS = (
    Way("cold", ColdSettings(), cost_max=0.935),
    Way("auto", AUTO, cost_max=0.84),
    Way("batches", BATCHES, cost_max=0.80, dearest_max=1.03),
    Way("advice", AUTO, has_tools=True, cost_max=0.75, dearest_max=1.04),
    Way("fork", AUTO, has_tools=True, is_forked=True, dearest_max=1.05),
    Way("advice, one in three followed", AUTO, has_tools=True, follows_every=3, cost_max=0.80, dearest_max=1.04),
)


def sessions_in(path: Path) -> Iterator[Mapping[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


# ---- the provider


class Answered(NamedTuple):
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
    """Cached are the prefixes up to each mark. A lookup goes back at most 20 blocks from each mark."""

    # The tokens at the beginning of the prompt that other sessions keep in the cache.
    shared: int
    _until: dict[int, float] = field(default_factory=dict)
    # The blocks of messages that were sent before, by the message's identity.
    _known: dict[int, tuple[Message, list[tuple[int, int]]]] = field(default_factory=dict)

    def ask(self, request: Message, at_s: float, output: int, *, is_1h: bool) -> Answered:
        head = json.dumps([request["model"], request.get("tools"), request["system"]])
        prefix = hash(head)
        head_tokens = round(len(head) / BYTES_OF_TOKEN["text"])
        prefixes, ends, marks = [prefix], [head_tokens], [0]
        for message in request["messages"]:
            for block, size in self._blocks_of(message):
                prefix = hash((prefix, block))
                prefixes.append(prefix)
                ends.append(ends[-1] + size)
            if "cache_control" in message["content"][-1]:
                marks.append(len(prefixes) - 1)
        places = [mark - back for mark in reversed(marks) for back in range(min(mark, LOOKBACK_BLOCKS) + 1)]
        cached = next((place for place in places if self._until.get(prefixes[place], -1.0) >= at_s), None)
        read = min(self.shared, head_tokens) if cached is None else max(ends[cached], min(self.shared, head_tokens))
        for place in {*marks, *([] if cached is None else [cached])}:
            self._until[prefixes[place]] = at_s + LIFE_S[is_1h]
        return Answered(read, ends[-1] - read, output, is_1h)

    def _blocks_of(self, message: Message) -> list[tuple[int, int]]:
        known = self._known.get(id(message))
        if known is not None and known[0] is message:
            return known[1]
        blocks = []
        for block in message["content"]:
            plain = {name: value for name, value in block.items() if name != "cache_control"}
            blocks.append((hash(json.dumps([message["role"], plain])), tokens_of_block(plain)))
        self._known[id(message)] = (message, blocks)
        return blocks


def tokens_of_block(block: Mapping[str, Any]) -> int:
    """The tokens that the provider counts. The JSON around a text hardly counts."""
    kind = block["type"]
    if kind == "tool_use":
        text = block["name"] + json.dumps(block["input"])
    elif kind == "thinking":
        text = block["thinking"] + block["signature"]
    else:
        text = str(block["content"] if kind == "tool_result" else block["text"])
    return BLOCK_TOKENS + round(len(text.encode()) / BYTES_OF_TOKEN[kind])


# ---- generated texts


def text_of(name: str, size: int) -> str:
    return f"{name} ".ljust(max(1, size), ".")[: max(1, size)]


def _text_block(name: str, size: int) -> Message:
    return {"type": "text", "text": text_of(name, size)}


def _arguments(name: str, call: Mapping[str, Any]) -> Message:
    """Arguments as Claude Code's tools have them, of the recorded size."""
    arguments = {"file_path": f"/home/me/project/{call['file']}"} if call.get("file") else {}
    left = max(0, call["bytes"] - len(json.dumps(arguments)))
    if call["tool"] in ("Edit", "MultiEdit"):
        return {**arguments, "old_string": text_of(f"{name} old", left // 2), "new_string": text_of(name, left // 2)}
    rest = "content" if call["tool"] in ("Write", "NotebookEdit") else "query"
    return {**arguments, rest: text_of(name, left)} if left else arguments


def _result(call_id: str, result: Mapping[str, Any]) -> Message:
    # A failure that began like nothing a program writes would be taken for what the user said.
    text = text_of(f"Error: {result['content']}" if result.get("error") else result["content"], result["bytes"])
    if result.get("users_words"):
        text = f"The user said:\n{text}"[: max(15, result["bytes"])]
    failed = {"is_error": True} if result.get("error") else {}
    return {"type": "tool_result", "tool_use_id": call_id, "content": text, **failed}


def _marked(messages: Sequence[Message]) -> list[Message]:
    """The messages with marks for the cache on the last two of the user."""
    marked = list(messages)
    for place in [n for n, message in enumerate(messages) if message["role"] == "user"][-2:]:
        *blocks, last = marked[place]["content"]
        content = [*blocks, {**last, "cache_control": {"type": "ephemeral"}}]
        marked[place] = {"role": "user", "content": content}
    return marked


# ---- one session


@dataclass(slots=True)
class PlayedSession:
    cost: int = 0
    # The cost of the first half.
    cost_before: int = 0
    folds: int = 0
    advice: int = 0
    tokens: int = 0
    events: list[Event] = field(default_factory=list)


class SessionReplay:
    """Sends the requests of a session in one of the ways."""

    def __init__(self, session: Mapping[str, Any], way: Way) -> None:
        self._session, self._way = session, way
        self._id = str(session["id"])
        first = session["requests"][0]
        self._cache = ProviderCache(first["usage"]["read"])
        opening = BLOCK_TOKENS + sum(first["user"]) / BYTES_OF_TOKEN["text"]
        self._head_bytes = round(max(1_000, _prompt_of(first) - opening) * BYTES_OF_TOKEN["text"])
        self._messages: list[Message] = []
        self._head = 0
        self._calls = 0
        self._left_out: tuple[LeftOutDecision, ...] = ()
        self._outcomes: Mapping[str, CallOutcome] = {}
        self._sent: list[tuple[SentPrefix, float]] = []
        self._last_s: dict[str, float] = {}
        self._is_1h = False
        self._blocks = 0
        self._policy, self._given = FoldPolicy(), GivenAdvice()
        self._advised = False
        # The results of a batch that this request leaves out first.
        self._batch_from: set[str] | None = None
        self.played = PlayedSession()
        self._start("sess_1")

    def _start(self, session_id: str) -> None:
        started = SessionStarted(1, _moment(0), session_id, "/home/me/project", None)
        self._state = replay([started], EMPTY)
        self.played.events = [started]

    def play(self) -> PlayedSession:
        waiting: list[Message] = []
        last: Mapping[str, Any] | None = None
        requests = self._session["requests"]
        for number, request in enumerate(requests):
            if number == len(requests) // 2:
                self.played.cost_before = self.played.cost
                if self._way.is_forked:
                    self._start("sess_2")
                    self._blocks = 0
            usage = request["usage"]
            if usage["write_1h"] or usage["write_5m"]:
                self._is_1h = usage["write_1h"] > usage["write_5m"]
            if request.get("after_compaction"):
                self._messages, waiting = [], []
            if last is not None and self._has_lost(request, last):
                self._head += 1
            user = [_text_block(f"{self._id} user {number} {n}", size) for n, size in enumerate(request["user"])]
            self._messages.append({"role": "user", "content": [*waiting, *user] or [_text_block("go on", 20)]})
            waiting = self._take_turn(number, request)
            last = request
        return self.played

    def _has_lost(self, request: Mapping[str, Any], last: Mapping[str, Any]) -> bool:
        is_alive = request["at"] - last["end"] <= LIFE_S[self._is_1h] and request["model"] == last["model"]
        lost = min(_prompt_of(last), _prompt_of(request)) - request["usage"]["read"]
        is_much = lost > max(LOST_TOKENS, LOST_SHARE * _prompt_of(last))
        return is_alive and is_much and not request.get("after_compaction")

    def _take_turn(self, number: int, request: Mapping[str, Any]) -> list[Message]:
        """Send a request and take the model's recorded answer; return the results of its calls."""
        answer: list[Message] = []
        results: list[Message] = []
        recorded = iter(request["results"])
        for n, block in enumerate(request["assistant"]):
            name = f"{self._id} {number}.{n}"
            if block["kind"] == "call":
                result = next(recorded, None)
                if result is None:
                    continue
                self._calls += 1
                call_id = f"toolu_{self._calls:06}"
                arguments = _arguments(name, block)
                answer.append({"type": "tool_use", "id": call_id, "name": block["tool"], "input": arguments})
                results.append(_result(call_id, result))
            elif block["kind"] == "thinking":
                # A third of the recorded bytes is text, as in the transcripts that have it.
                text, signature = (
                    text_of(name, block["bytes"] // 3),
                    text_of(f"signature {name}", block["bytes"] * 2 // 3),
                )
                answer.append({"type": "thinking", "thinking": text, "signature": signature})
            else:
                answer.append(_text_block(name, block["bytes"]))
        answer = answer or [_text_block(f"{self._id} said {number}", 20)]
        is_advised, self._advised = self._advised and not request["user"], False
        is_shared = bool(results) and all(SHORT_RESULTS.search(each["tool"]) for each in request["results"])
        if is_advised and not is_shared:
            call, result = self._fold_call()
            self._send(request, [call], 0, only_ours=True)
            self._note_fold()
            self._messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        elif is_advised:
            call, result = self._fold_call()
            answer, results = [*answer, call], [*results, result]
        self._send(request, answer, request["usage"]["output"])
        if is_advised and is_shared:
            self._note_fold()
        self._messages.append({"role": "assistant", "content": answer})
        return self._advise(results) if self._way.has_tools and results else results

    # ---- what the proxy does

    def _project(self, request: Mapping[str, Any]) -> tuple[Message, BodyProjection]:
        system = [_text_block(f"{self._id} system {self._head}", self._head_bytes)]
        if self._is_1h:
            system[0]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
        members = {"model": request["model"], "system": system, "messages": _marked(self._messages)}
        if self._way.has_tools:
            members["tools"] = [
                {"name": PREFIX + tool.name, "description": tool.description, "input_schema": tool.schema}
                for tool in AFTERWARDS_TOOLS
            ]
        parsed = ParsedRequest(b"", "anthropic", members)
        if self._way.settings is None and not self._way.has_tools:
            return members, project_request(ParsedRequest(b"", "anthropic", {**members, "messages": []}))
        projection = self._project_with(parsed)
        self._outcomes = merged_outcomes(self._outcomes, projection.outcomes)
        place = self._find_cold_place(projection, request)
        if place is None:
            return members, projection
        assert self._way.settings is not None
        cold = projection.cold_results(salt="", settings=self._way.settings, first_place=place, when=AFTER_A_PAUSE)
        self._batch_from = None
        life_s = projection.cache_life_s()
        if cold:
            held = [prefix for prefix, at_s in self._sent if request["at"] - at_s <= life_s]
            others = find_other_models(projection, read_prefix(projection), held, min(each.place for each in cold))
            prices = [RELATIVE_PRICES for _ in others]
            cold = cold if pays_if_undone(projection, cold, RELATIVE_PRICES, prices, life_s=life_s) else []
        elif self._way.settings.has_batches:
            cold = choose_batch(projection, RELATIVE_PRICES, self._way.settings, salt="", life_s=life_s)
            self._batch_from = {each.decision.result_id for each in cold} or None
        if not cold:
            return members, projection
        self._left_out += tuple(each.decision for each in cold)
        return members, self._project_with(parsed)

    def _project_with(self, parsed: ParsedRequest) -> BodyProjection:
        return project_request(parsed, remembered=Remembered(self._outcomes, by_call(self._left_out)))

    def _find_cold_place(self, projection: BodyProjection, request: Mapping[str, Any]) -> int | None:
        """The first message that the cache does not hold, as the proxy finds it."""
        if self._way.settings is None:
            return None
        if self._has_lapsed(projection, request):
            return 0
        if not self._way.settings.has_inputs or not self._sent:
            return None
        life_s = projection.cache_life_s()
        held = [prefix for prefix, at_s in self._sent if request["at"] - at_s <= life_s]
        return projection.place_of_sent(count_warm_messages(read_prefix(projection), held))

    def _has_lapsed(self, projection: BodyProjection, request: Mapping[str, Any]) -> bool:
        last_s = self._last_s.get(projection.model)
        return last_s is not None and request["at"] - last_s > projection.cache_life_s()

    def _send(self, request: Mapping[str, Any], answer: list[Message], out: int, *, only_ours: bool = False) -> None:
        members, projection = self._project(request)
        if self._way != OFF:
            members = {**members, "messages": projection.messages}
        ours = [block for block in answer if str(block.get("name")).startswith(PREFIX)]
        output = out + sum(map(tokens_of_block, ours))
        answered = self._cache.ask(members, request["at"], output, is_1h=self._is_1h)
        self.played.cost += answered.cost
        self.played.tokens = answered.read + answered.written
        if self._way == OFF:
            return
        if self._way.settings is not None and self._way.settings.has_inputs:
            self._sent = [*self._sent, (read_prefix(projection), request["end"])][-PREFIXES_MAX:]
        self._last_s[projection.model] = request["end"]
        written_1h = answered.written if self._is_1h else 0
        main = projection.threads[0]
        report = RequestReport(
            id=f"req_{len(self.played.events)}",
            api="anthropic",
            model="some-model",
            receipt=projection.receipt,
            usage=Usage(0, answered.read, answered.written, output, written_1h),
            shares=(Share(None, max(0, main.tokens - projection.host_tokens), len(main.places)),),
            our_tokens=projection.our_tokens,
            our_output_tokens=tokens_of(sum(len(json.dumps(block)) for block in ours)),
            only_ours=only_ours,
            new_blocks=max(0, projection.blocks - self._blocks) if self._blocks else 0,
            host_tokens=projection.host_tokens,
            kept_tokens=projection.tokens_before_stubs(self._batch_from) if self._batch_from else None,
            left_out=tuple(ResultLeftOut(each.result_id, each.tokens) for each in projection.left_out),
            has_tools=True,
            work_tokens=projection.removable_tokens(),
        )
        self._blocks = projection.blocks
        recorded = record_request(self._state, _moment(request["end"]), report, [ScrubResult(report.model, 0, ())])
        self._add(recorded.events)

    def _add(self, events: Sequence[Event]) -> None:
        self._state = replay(events, self._state)
        self.played.events += events

    # ---- what the model does

    def _advise(self, results: list[Message]) -> list[Message]:
        """The results with a line of advice behind them, as a host adds what its hook says."""
        advice = choose_advice(self._state, self._policy)
        if advice is None or self._given.has(self._state, advice):
            return results
        self._given.add(self._state, advice)
        self._advised = self.played.advice % self._way.follows_every == 0
        self.played.advice += 1
        reminder = f"<system-reminder>\n{advice.line}\n</system-reminder>"
        return [*results, {"type": "text", "text": reminder}]

    def _fold_call(self) -> tuple[Message, Message]:
        self.played.folds += 1
        branch_id = f"br_{self.played.folds:016x}"
        call_id = f"toolu_fold_{self.played.folds:06}"
        arguments = {"project_path": "/home/me/project", "message": text_of(f"summary {branch_id}", SUMMARY_BYTES)}
        call = {"type": "tool_use", "id": call_id, "name": f"{PREFIX}context_fold", "input": arguments}
        result = {"folded_at": "2026-01-01T12:00:00Z", "branch_id": branch_id, "tokens_folded": 12_345}
        return call, {"type": "tool_result", "tool_use_id": call_id, "content": json.dumps(result)}

    def _note_fold(self) -> None:
        """The event that the fold tool records."""
        recent = self._state.main.recent
        summary_tokens = SUMMARY_BYTES // BYTES_PER_TOKEN
        branch_id = f"br_{self.played.folds:016x}"
        at, n = self._state.last_at, self._state.revision + 1
        fold = WorkFolded(n, at, branch_id, None, "work", "", summary_tokens, recent.tokens, 0, recent.since)
        self._add([fold])


def _prompt_of(request: Mapping[str, Any]) -> int:
    usage = request["usage"]
    return int(usage["input"] + usage["read"] + usage["write_5m"] + usage["write_1h"])


def _moment(at_s: float) -> str:
    return timestamp(datetime.fromtimestamp(1_770_000_000 + int(at_s), UTC))


# ---- all of them


class Row(NamedTuple):
    session: str
    way: str
    requests: int
    is_1h: bool
    cost: int
    off: int
    folds: int
    advice: int
    ledger_sent: int
    ledger_without: int
    wire_tokens: int

    @property
    def ratio(self) -> float:
        return self.cost / self.off

    @property
    def ledger_off(self) -> float:
        return abs(self.ledger_without - self.off) / self.off

    @property
    def has_wrong_sign(self) -> bool:
        saved, said = self.off - self.cost, self.ledger_without - self.ledger_sent
        return abs(saved) >= SIGN_FROM * self.off and (saved > 0) != (said > 0)


def compare(session: Mapping[str, Any], ways: Sequence[Way]) -> list[Row]:
    off = SessionReplay(session, OFF).play()
    requests = session["requests"]
    is_1h = sum(each["usage"]["write_1h"] for each in requests) > sum(each["usage"]["write_5m"] for each in requests)
    rows = []
    for way in ways:
        played = SessionReplay(session, way).play()
        sums = ledger_of(played.events).sums
        before = (played.cost_before, off.cost_before) if way.is_forked else (0, 0)
        rows.append(
            Row(
                str(session["id"]),
                way.name,
                len(requests),
                is_1h,
                played.cost - before[0],
                off.cost - before[1],
                played.folds,
                played.advice,
                sums.cost_sent,
                sums.cost_without,
                played.tokens,
            )
        )
    return rows


def total_ratio(rows: Sequence[Row]) -> float:
    return sum(row.cost for row in rows) / sum(row.off for row in rows) if rows else 0.0


def figures_of(way: Way, rows: Sequence[Row]) -> Iterator[Figure]:
    ratio, dearest = total_ratio(rows), max(rows, key=lambda row: row.ratio)
    yield Figure(f"{way.name}: cost of all", f"{ratio:.3f}", "off", round(ratio, 3), way.cost_max)
    name = f"{way.name}: dearest session"
    yield Figure(name, f"{dearest.ratio:.3f} ({dearest.session})", "off", round(dearest.ratio, 3), way.dearest_max)
    furthest = max(rows, key=lambda row: row.ledger_off)
    beyond, wrong = sum(row.ledger_off > LEDGER_OFF_MAX for row in rows), sum(row.has_wrong_sign for row in rows)
    name = f"{way.name}: ledger furthest from the simulation"
    measured = f"{furthest.ledger_off:.2%} ({furthest.session}); {beyond} beyond"
    yield Figure(name, measured, "3 %", furthest.ledger_off, LEDGER_OFF_MAX)
    yield Figure(f"{way.name}: wrong signs of the ledger", f"{wrong} of {len(rows)}", "0", wrong, 0)


def print_by_life(ways: Sequence[Way], rows: Sequence[Row]) -> None:
    table = [("way", "sessions", "5 min", "1 h", "cost more", "dearest", "advice", "folds")]
    for way in ways:
        own = [row for row in rows if row.way == way.name]
        of_5m, of_1h = ([row for row in own if row.is_1h == is_1h] for is_1h in (False, True))
        table.append(
            (
                way.name,
                f"{len(of_5m)} + {len(of_1h)}",
                f"{total_ratio(of_5m):.3f}",
                f"{total_ratio(of_1h):.3f}",
                str(sum(row.cost > row.off for row in own)),
                f"{max(row.ratio for row in own):.3f}",
                str(sum(row.advice for row in own)),
                str(sum(row.folds for row in own)),
            )
        )
    print_table(table)


def main(argv: Sequence[str] = ()) -> bool:
    path = Path(argv[0] if argv else os.environ.get(VARIABLE, USAGE))
    if not path.exists():
        print(f"bench: {path} does not exist; name a file of recorded sessions, or set {VARIABLE}", file=sys.stderr)
        return True
    sessions = list(sessions_in(path))[:: int(argv[1]) if len(argv) > 1 else 1]
    ways = [way for way in WAYS if way.name in argv[2:]] or list(WAYS)
    report_progress(f"replaying {len(sessions)} sessions, {len(ways) + 1} times each")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = [row for those in pool.map(compare, sessions, [ways] * len(sessions)) for row in those]
    if dump := os.environ.get("ROWS"):
        Path(dump).write_text(json.dumps([row._asdict() for row in rows]))
    figures = [each for way in ways for each in figures_of(way, [row for row in rows if row.way == way.name])]
    is_within = show(f"Economy of {len(sessions)} recorded sessions", figures)
    print_by_life(ways, rows)
    return is_within


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
