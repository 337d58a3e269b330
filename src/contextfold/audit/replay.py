"""Replays a recorded conversation through the real folding and a simulated prompt cache. Pure.

A transcript has texts and the provider's counts, but no count for a single message. So each message gets the tokens by
which the prompt grew when it was added, and the rest of the prompt, the host's system prompt and tools, is the `head`.

What the provider read from its cache is recorded, too. It says how much of a prompt was still cached, which no
simulation can know: another machine may have dropped it, or the host may have changed its tools. A run of the same
conversation with the proxy in between reads the same part of the prompt, less what had been left out of that part, and
at most up to the first message that is changed just now. So both costs have the same prefix, the same pauses and the
same output; only what is left out differs.

For a cache with another life than the recorded one, nothing is recorded, and what it would have read is simulated: all
of the request before, unless the pause was longer than the life or the record shows that the prefix was broken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import mul
from typing import NamedTuple
from urllib.parse import urlsplit

from contextfold.audit.conversation import Conversation, Message, RecordedRequest, RecordedUsage
from contextfold.fold.messages import ColdSettings, Remembered, by_call, project
from contextfold.fold.messages.apis import api_of, read_facts
from contextfold.fold.messages.cache_life import HOUR_S, SHORTEST_S, find_cache_life_s, find_life_in_usage
from contextfold.fold.messages.cold_results import AUTO
from contextfold.fold.messages.weight import encode_json, encode_message, weigh_message
from contextfold.fold.model_catalog import TokenPrices
from contextfold.fold.store import LeftOutDecision

# A part of the prompt that was read before and is not read now counts as lost from this share and this size on.
LOST_SHARE, LOST_TOKENS = 0.1, 1_000
# If a prompt grew by less or more than its new messages can explain, something else changed, and they are estimated.
GROWTH_MIN, GROWTH_MAX = 0.4, 2.5
BYTES_PER_TOKEN = 3.4

# The likely causes of a rewrite while the cache was alive.
OTHER_MODEL = "another model"
REWOUND = "earlier messages changed or taken back"
UPDATED = "another version of the agent"
HEAD_CHANGED = "system prompt or tools changed"
UNKNOWN = "not in the transcript: an early message, or the provider"
# The proxy sees these before it sends the request, and then leaves out what the cache does not hold any more. It sees
# another model, too, but leaves little out for it: the cache of the model before still holds everything.
SEEN_BY_PROXY = (REWOUND, UPDATED, HEAD_CHANGED)


class Part(StrEnum):
    """Where the money of a request goes."""

    READS = "reads"
    NEW_TEXT = "new_text"
    FIRST = "first_request"
    AFTER_PAUSE = "rewritten_after_pause"
    WHILE_ALIVE = "rewritten_while_alive"
    AFTER_COMPACTION = "rewritten_after_compaction"
    OUTPUT = "output"


class Rule(NamedTuple):
    """One thing that the proxy does, in addition to the rules before it."""

    name: str
    settings: ColdSettings
    # Whether it acts when the prefix is broken, or only after a pause.
    sees_breaks: bool


# Together they are what the proxy does by default.
RULES = (
    Rule("results_after_a_pause", ColdSettings(), sees_breaks=False),
    Rule("results_behind_a_broken_prefix", ColdSettings(), sees_breaks=True),
    Rule("small_results_edits_and_thinking", AUTO, sees_breaks=True),
)

# Lives of a cache, in seconds, for which the conversations are simulated.
LIVES = {"5m": SHORTEST_S, "1h": HOUR_S}


class CarriedResult(NamedTuple):
    """A result of a tool, the requests that carried it, and what that cost."""

    tool: str
    subject: str
    tokens: int
    requests: int
    cost: float


class ReplayedRequest(NamedTuple):
    """The costs of a request, in the units of its prices."""

    recorded: int
    parts: Mapping[Part, float]
    # Simulated from times and texts alone, and also with the broken prefixes that the record shows.
    from_times: float
    simulated: float
    # With the first rule of the proxy, with the first two, and so on.
    with_rules: Sequence[float]
    # By the cache's life.
    without: Mapping[str, float]
    with_proxy: Mapping[str, float]
    # The likely cause if the prompt was written again while its cache was alive, and the tokens.
    cause: str = ""
    tokens_rewritten: int = 0


@dataclass(slots=True)
class _Sent:
    """What one way of sending a conversation has sent: the share of each message that is not left out."""

    rule: Rule
    # The life of the cache in seconds; None for the recorded one.
    life_s: float | None = None
    # Empty as long as nothing is left out.
    shares: list[float] = field(default_factory=list)
    results: tuple[LeftOutDecision, ...] = ()


class _LeftOut(NamedTuple):
    results: tuple[LeftOutDecision, ...]
    sent_weights: Sequence[int]


@dataclass(slots=True)
class _OpenResult:
    tool: str
    subject: str
    tokens: float
    # Where it ends in the prompt, behind the head.
    end: float
    message: int
    begun: int
    # The sum of read prices before it was added, and the extra cost of requests that wrote it.
    rates_before: float
    extra: float = 0.0


class ConversationReplay:
    def __init__(self, conversation: Conversation) -> None:
        self._format = conversation.format
        self._api = api_of(conversation.format)
        self._last: RecordedRequest | None = None
        # The life of the provider's cache, as far as the requests until now show it.
        self._life_s = 0.0
        # The tokens and the weight of each message of the last request, and the tokens of the head.
        self._tokens: list[float] = []
        self._weights: list[int] = []
        self._head = 0.0
        self._shared_read = 0
        self._by_rule = [_Sent(rule) for rule in RULES]
        self._by_life = {life: _Sent(RULES[-1], life_s) for life, life_s in LIVES.items()}
        # What is left out of the request at hand, by what was left out before, the settings and the first message.
        self._left_out: dict[tuple[int, ColdSettings, int], _LeftOut | None] = {}
        # Calls by id: the tool, and what the call was about.
        self._calls: dict[str, tuple[str, str]] = {}
        self._open: list[_OpenResult] = []
        self._rates = 0.0
        self._requests = 0
        self.carried: list[CarriedResult] = []

    def add(self, request: RecordedRequest, prices: TokenPrices) -> ReplayedRequest:
        last, usage = self._last, request.usage
        shown_s = find_life_in_usage(usage.cache_write_1h, 0.0)
        self._life_s = max(self._life_s, shown_s, find_cache_life_s(self._format, request.model, {}))
        self._estimate_tokens(request)
        self._left_out.clear()
        cause, lost = self._find_loss(request)
        pause_s = _pause_before(request, last)
        parts = self._split(request, prices, cause, pause_s)
        from_times = self._as_written(usage, self._simulate_read(request, self._life_s, is_broken=False))
        simulated = self._as_written(usage, self._simulate_read(request, self._life_s, bool(cause)))
        with_rules = [self._send(way, request, usage.cache_read, cause, prices) for way in self._by_rule]
        without, with_proxy = {}, {}
        for life, way in self._by_life.items():
            read = self._simulate_read(request, LIVES[life], bool(cause))
            without[life] = self._as_written(usage, read, life_s=LIVES[life]).cost(prices)
            with_proxy[life] = self._send(way, request, read, cause, prices)
        if not request.is_copy:
            self._carry(request, prices)
        self._last = request
        return ReplayedRequest(
            usage.cost(prices),
            parts,
            from_times.cost(prices),
            simulated.cost(prices),
            with_rules,
            without,
            with_proxy,
            cause if pause_s <= self._life_s else "",
            lost,
        )

    def _send(self, way: _Sent, request: RecordedRequest, read: int, cause: str, prices: TokenPrices) -> float:
        """The cost of a request in this way, if the provider had `read` this much of the recorded prompt."""
        life_s = way.life_s or self._life_s
        cold_from: int | None = None
        if self._last is not None and _pause_before(request, self._last) > life_s:
            cold_from = 0
        elif way.rule.sees_breaks and cause in SEEN_BY_PROXY:
            cold_from = self._count_warm(request.usage.cache_read)
        first_changed = self._advance(way, request, cold_from)
        return self._make_usage(way, request.usage, read, first_changed).cost(prices)

    def finish(self) -> None:
        """The conversation has ended: count what its last results cost."""
        self._close_results(0)

    # ---- tokens

    def _estimate_tokens(self, request: RecordedRequest) -> None:
        last, kept = self._last, min(request.unchanged, len(self._tokens))
        is_appended = last is not None and kept == len(self._tokens) and not request.is_after_compaction
        self._close_results(kept)
        del self._tokens[kept:], self._weights[kept:]
        new = request.history[kept:]
        weights = [weigh_message(message, encode_message(message)) or 1 for message in new]
        estimated = sum(weights) / BYTES_PER_TOKEN
        grown = request.usage.prompt - last.usage.prompt if last else 0
        is_plausible = is_appended and GROWTH_MIN <= (grown / estimated if estimated else 0.0) <= GROWTH_MAX
        scale = grown / sum(weights) if is_plausible else 1 / BYTES_PER_TOKEN
        self._weights += weights
        self._tokens += [weight * scale for weight in weights]
        self._head = max(0.0, request.usage.prompt - sum(self._tokens))
        if self._head == 0.0 and self._tokens:
            # The estimates are too high for this prompt.
            share = request.usage.prompt / sum(self._tokens)
            self._tokens = [tokens * share for tokens in self._tokens]
        self._note_results(new, kept)

    # ---- the cache

    def _simulate_read(self, request: RecordedRequest, life_s: float, is_broken: bool) -> int:
        """The tokens that a cache of this life would have read. `is_broken` if the record shows a broken prefix."""
        last, usage = self._last, request.usage
        if last is None:
            self._shared_read = usage.cache_read
            return usage.cache_read
        if request.model != last.model or request.is_after_compaction or _pause_before(request, last) > life_s:
            # The beginning may be shared with other conversations of the host.
            return min(self._shared_read, usage.prompt)
        return min(usage.cache_read if is_broken else last.usage.prompt, usage.prompt)

    def _find_loss(self, request: RecordedRequest) -> tuple[str, int]:
        """The likely cause if the provider read less than it could have, and the tokens that were lost."""
        last, read = self._last, request.usage.cache_read
        if last is None or request.is_after_compaction or _pause_before(request, last) > self._life_s:
            return "", 0
        lost = min(last.usage.prompt, request.usage.prompt) - read
        if lost < max(LOST_TOKENS, LOST_SHARE * last.usage.prompt):
            return "", 0
        if request.model != last.model:
            return OTHER_MODEL, lost
        if request.unchanged < len(last.history):
            return REWOUND, lost
        if request.version != last.version:
            return UPDATED, lost
        return (HEAD_CHANGED if read < self._head else UNKNOWN), lost

    def _count_warm(self, read: int) -> int:
        """The number of the first messages that the cache still held when it read this much."""
        left = read - self._head
        for place, tokens in enumerate(self._tokens):
            left -= tokens
            if left < 0:
                return place
        return len(self._tokens)

    def _advance(self, way: _Sent, request: RecordedRequest, cold_from: int | None) -> int | None:
        """Send the request in this way. The first message that is changed just now, if one is.

        The cache does not hold the messages from `cold_from` on any more; None if it holds all of them.
        """
        if way.shares:
            kept = min(request.unchanged, len(way.shares))
            way.shares = [*way.shares[:kept], *[1.0] * (len(self._tokens) - kept)]
            if kept == 0:
                way.results = ()
        if cold_from is None:
            return None
        # Several ways often do the same.
        key = (id(way.results), way.rule.settings, cold_from)
        if key not in self._left_out:
            self._left_out[key] = self._leave_out(way, request, cold_from)
        left_out = self._left_out[key]
        if left_out is None:
            return None
        way.results, sent_weights = left_out
        way.shares = way.shares or [1.0] * len(self._tokens)
        changed = []
        for place, sent_weight in enumerate(sent_weights):
            # The separator before a message counts in its weight as it is sent.
            share = min(1.0, sent_weight / (self._weights[place] + 1))
            if share < way.shares[place]:
                way.shares[place] = share
                changed.append(place)
        return changed[0] if changed else None

    def _leave_out(self, way: _Sent, request: RecordedRequest, cold_from: int) -> _LeftOut | None:
        """All results that are left out from now on, and the weights of the messages as they are sent then."""
        remembered = Remembered(results=by_call(way.results))
        projection = project(request.history, self._format, model=request.model, remembered=remembered)
        chosen = projection.cold_results(salt="audit", settings=way.rule.settings, first_place=cold_from)
        if not chosen:
            return None
        results = (*way.results, *(each.decision for each in chosen))
        remembered = Remembered(results=by_call(results))
        projection = project(request.history, self._format, model=request.model, remembered=remembered)
        return _LeftOut(results, projection.details.sent_weights) if projection.changed else None

    def _make_usage(self, way: _Sent, usage: RecordedUsage, read: int, first_changed: int | None) -> RecordedUsage:
        """The usage of the request in this way, if the provider had `read` this much of the recorded prompt."""
        if not way.shares:
            return self._as_written(usage, read, life_s=way.life_s)
        left = read - self._head
        sent_read = min(float(read), self._head)
        for place, (tokens, share) in enumerate(zip(self._tokens, way.shares, strict=True)):
            if left <= 0 or place == first_changed:
                break
            sent_read += share * min(tokens, left)
            left -= tokens
        total = self._head + self._sent_tokens(way)
        return self._as_written(usage, round(min(sent_read, total)), round(total), way.life_s)

    def _sent_tokens(self, way: _Sent) -> float:
        if not way.shares:
            return sum(self._tokens)
        return float(sum(map(mul, self._tokens, way.shares)))

    def _as_written(
        self, usage: RecordedUsage, read: int, total: int | None = None, life_s: float | None = None
    ) -> RecordedUsage:
        """A usage that reads this much and writes the rest, in the way of the recorded one."""
        total = usage.prompt if total is None else total
        is_cached = bool(usage.cache_write_5m or usage.cache_write_1h or self._format == "anthropic")
        uncached = min(usage.input, total - read) if is_cached else total - read
        written = total - read - uncached
        writes_1h = self._format == "anthropic" and (life_s or self._life_s) >= HOUR_S
        return RecordedUsage(uncached, read, 0 if writes_1h else written, written if writes_1h else 0, usage.output)

    # ---- where the money went

    def _split(self, request: RecordedRequest, prices: TokenPrices, cause: str, pause_s: float) -> dict[Part, float]:
        usage, last = request.usage, self._last
        parts = dict.fromkeys(Part, 0.0)
        parts[Part.READS] = usage.cache_read * prices.cache_read
        parts[Part.OUTPUT] = usage.output * prices.output
        paid = usage.cost(prices) - parts[Part.READS] - parts[Part.OUTPUT]
        tokens = usage.prompt - usage.cache_read
        if last is None:
            parts[Part.FIRST] = paid
            return parts
        new = min(tokens, max(0, usage.prompt - last.usage.prompt))
        rewritten = paid * (tokens - new) / tokens if tokens else 0.0
        parts[Part.NEW_TEXT] = paid - rewritten
        if request.is_after_compaction:
            parts[Part.AFTER_COMPACTION] = rewritten
        elif pause_s > self._life_s:
            parts[Part.AFTER_PAUSE] = rewritten
        elif cause:
            parts[Part.WHILE_ALIVE] = rewritten
        else:
            # Small losses at the end of a prompt are how providers' caches work.
            parts[Part.NEW_TEXT] += rewritten
        return parts

    # ---- the results that cost most

    def _note_results(self, new: Sequence[Message], first: int) -> None:
        facts = read_facts(new, self._api)
        position = sum(self._tokens[:first])
        for at, fact in enumerate(facts, first):
            self._calls.update((call.id, (call.name, _subject_of(call.arguments))) for call in fact.calls)
            for result in fact.results:
                tool, subject = self._calls.get(result.id, ("a tool", ""))
                share = min(1.0, len(encode_json(result.part)) / self._weights[at])
                tokens = self._tokens[at] * share
                end = position + self._tokens[at]
                self._open.append(_OpenResult(tool, subject, tokens, end, at, self._requests, self._rates))
            position += self._tokens[at]

    def _carry(self, request: RecordedRequest, prices: TokenPrices) -> None:
        """Add the cost of this request to the results in it. Most requests read all of them from the cache."""
        usage = request.usage
        written = usage.prompt - usage.cache_read
        paid = usage.cost(prices) - usage.cache_read * prices.cache_read - usage.output * prices.output
        write_price = paid / written if written else 0.0
        self._rates += prices.cache_read
        self._requests += 1
        read_end = usage.cache_read - self._head
        for result in reversed(self._open):
            if result.end <= read_end:
                break
            result.extra += min(result.tokens, result.end - read_end) * (write_price - prices.cache_read)

    def _close_results(self, kept: int) -> None:
        """The results of messages from `kept` on are no longer in the history."""
        while self._open and self._open[-1].message >= kept:
            done = self._open.pop()
            cost = done.tokens * (self._rates - done.rates_before) + done.extra
            requests = self._requests - done.begun
            if not requests:
                # Only copies of requests had it, which are counted elsewhere.
                continue
            self.carried.append(CarriedResult(done.tool, done.subject, round(done.tokens), requests, cost))


def _pause_before(request: RecordedRequest, last: RecordedRequest | None) -> float:
    """The seconds since the response before ended. Providers keep a prefix at least this long after using it."""
    return request.at - last.ended if last else 0.0


def _subject_of(arguments: object) -> str:
    """What a call was about, in a few words that carry no secret: the end of a path, a command's first word, a host."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return ""
    if not isinstance(arguments, Mapping):
        return ""
    for name in ("file_path", "path", "filePath", "notebook_path"):
        if isinstance(path := arguments.get(name), str):
            return "/".join(path.replace("\\", "/").rstrip("/").split("/")[-2:])
    command, url = arguments.get("command"), arguments.get("url")
    if isinstance(command, list):
        command = " ".join(map(str, command))
    if isinstance(command, str) and command.split():
        first = command.split(maxsplit=1)[0]
        # What is set for a command is often a secret, and may have spaces.
        return "" if "=" in first else first.rpartition("/")[2]
    try:
        return urlsplit(url).hostname or "" if isinstance(url, str) else ""
    except ValueError:
        return ""
