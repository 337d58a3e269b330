"""Adds up the replay of all transcripts: what was spent, on what, and what the proxy would have saved or cost."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

from contextfold.audit.claude_code import read_claude_code
from contextfold.audit.codex import read_codex
from contextfold.audit.conversation import Conversation, RecordedRequest
from contextfold.audit.replay import (
    LIVES,
    RULES,
    CarriedResult,
    ConversationReplay,
    Part,
    ReplayedRequest,
)
from contextfold.audit.transcripts import CLAUDE_CODE, CODEX, THREAD_ID_CHARS, Skipped, Transcript, read_forked_lines
from contextfold.fold.model_catalog import PRICE_UNITS_PER_DOLLAR, ModelCatalog

FORMAT = 1
RESULTS_SHOWN = 10
CONVERSATIONS_SHOWN = 500
# A conversation counts as dearer from this share of its cost on; less is rounding.
DEARER_FROM = 0.001
PERCENT = 100

READERS = {CLAUDE_CODE: read_claude_code, CODEX: read_codex}
# Takes the bytes that are done and the bytes of all transcripts.
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Sums:
    """Sums over requests, in dollars, as of one request."""

    requests: int = 0
    spent: float = 0.0
    from_times: float = 0.0
    simulated: float = 0.0
    with_rules: list[float] = field(default_factory=lambda: [0.0] * len(RULES))
    without: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LIVES, 0.0))
    with_proxy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LIVES, 0.0))

    def add(self, request: ReplayedRequest) -> None:
        self.requests += 1
        self.spent += request.recorded / PRICE_UNITS_PER_DOLLAR
        self.from_times += request.from_times / PRICE_UNITS_PER_DOLLAR
        self.simulated += request.simulated / PRICE_UNITS_PER_DOLLAR
        for life in LIVES:
            self.without[life] += request.without[life] / PRICE_UNITS_PER_DOLLAR
            self.with_proxy[life] += request.with_proxy[life] / PRICE_UNITS_PER_DOLLAR
        for number, cost in enumerate(request.with_rules):
            self.with_rules[number] += cost / PRICE_UNITS_PER_DOLLAR

    @property
    def saved_by_rule(self) -> list[float]:
        """What each rule would have saved in addition to those before it; negative if it would have cost more."""
        return [before - cost for before, cost in pairwise([self.spent, *self.with_rules])]

    @property
    def saved(self) -> float:
        """What the proxy would have saved of the recorded bill; negative if it would have cost more."""
        return self.spent - self.with_rules[-1]


@dataclass(slots=True)
class ConversationRow:
    conversation: Conversation
    day: str
    sums: Sums = field(default_factory=Sums)


class Result(NamedTuple):
    """A tool's result that was expensive to carry along."""

    dollars: float
    carried: CarriedResult
    project: str


class Rewrites(NamedTuple):
    events: int = 0
    tokens: int = 0
    dollars: float = 0.0


@dataclass(slots=True)
class AuditReport:
    skipped: Skipped
    transcripts: int = 0
    bytes: int = 0
    total: Sums = field(default_factory=Sums)
    parts: dict[Part, float] = field(default_factory=lambda: dict.fromkeys(Part, 0.0))
    # Rewrites while the cache was alive, by likely cause.
    rewrites: dict[str, Rewrites] = field(default_factory=dict)
    projects: dict[str, Sums] = field(default_factory=dict)
    models: dict[str, Sums] = field(default_factory=dict)
    days: dict[str, Sums] = field(default_factory=dict)
    conversations: dict[tuple[str, str], ConversationRow] = field(default_factory=dict)
    # The most expensive results.
    results: list[Result] = field(default_factory=list)

    def largest_conversations(self) -> list[ConversationRow]:
        return sorted(self.conversations.values(), key=lambda row: -row.sums.spent)

    def dearer(self) -> list[ConversationRow]:
        """The conversations that the proxy would have made more expensive, the worst first."""
        rows = [row for row in self.conversations.values() if -row.sums.saved > DEARER_FROM * row.sums.spent]
        return sorted(rows, key=lambda row: row.sums.saved / row.sums.spent)

    def simulation_errors(self) -> list[float]:
        """How far the simulation without the proxy is from each conversation's bill, as shares of it, in order."""
        sums = [row.sums for row in self.conversations.values() if row.sums.spent]
        return sorted(abs(each.simulated / each.spent - 1) for each in sums)


def audit_transcripts(
    transcripts: Sequence[Transcript],
    models: ModelCatalog,
    progress: Progress,
    skipped: Skipped,
) -> AuditReport:
    """Audit transcripts. `skipped` has what could not even be listed."""
    report = AuditReport(skipped=skipped)
    seen: set[int] = set()
    total = sum(transcript.size for transcript in transcripts)
    others = {transcript.path.stem[-THREAD_ID_CHARS:]: transcript.path for transcript in transcripts}
    for transcript in transcripts:
        lines = read_forked_lines(
            transcript.path, report.skipped, lambda position: progress(report.bytes + position, total), others
        )
        requests = READERS[transcript.host](lines, transcript.path.stem, seen, report.skipped)
        _add_transcript(report, requests, models)
        report.transcripts += 1
        report.bytes += transcript.size
    return report


def _add_transcript(
    report: AuditReport,
    requests: Iterable[tuple[Conversation, RecordedRequest]],
    models: ModelCatalog,
) -> None:
    replays: dict[str, tuple[Conversation, ConversationReplay]] = {}
    has_requests = False
    for conversation, request in requests:
        has_requests = True
        facts = models.find(request.model)
        if facts is None or facts.prices is None:
            report.skipped.requests_of_unknown_models += not request.is_copy
            continue
        if conversation.id not in replays:
            replays[conversation.id] = conversation, ConversationReplay(conversation)
        replayed = replays[conversation.id][1].add(request, facts.prices)
        if not request.is_copy:
            # The catalog's name of the model: what a gateway adds may have the number of an account.
            _add_request(report, conversation, request._replace(model=facts.name), replayed)
    report.skipped.transcripts_without_requests += not has_requests
    results = report.results
    for conversation, replay in replays.values():
        replay.finish()
        results += [
            Result(carried.cost / PRICE_UNITS_PER_DOLLAR, carried, conversation.project) for carried in replay.carried
        ]
    report.results = heapq.nlargest(RESULTS_SHOWN, results, key=lambda each: each.dollars)


def _add_request(
    report: AuditReport, conversation: Conversation, request: RecordedRequest, replayed: ReplayedRequest
) -> None:
    day = datetime.fromtimestamp(request.at, UTC).date().isoformat()
    row = report.conversations.setdefault((conversation.host, conversation.id), ConversationRow(conversation, day))
    groups = (
        report.projects.setdefault(conversation.project, Sums()),
        report.models.setdefault(request.model, Sums()),
        report.days.setdefault(day, Sums()),
    )
    for sums in (report.total, row.sums, *groups):
        sums.add(replayed)
    for part, cost in replayed.parts.items():
        report.parts[part] += cost / PRICE_UNITS_PER_DOLLAR
    if replayed.cause:
        before = report.rewrites.get(replayed.cause, Rewrites())
        cost = sum(replayed.parts[part] for part in Part if part.startswith("rewritten"))
        report.rewrites[replayed.cause] = Rewrites(
            before.events + 1, before.tokens + replayed.tokens_rewritten, before.dollars + cost / PRICE_UNITS_PER_DOLLAR
        )


# ---- the report as values


def describe(report: AuditReport, models: ModelCatalog, *, with_names: bool) -> dict[str, Any]:
    """The report as JSON. Without names it has no path, no text and no name of another program's tool."""
    names = _Names(with_names)
    total, errors = report.total, report.simulation_errors()
    days = sorted(report.days)
    dearer = report.dearer()
    return {
        "format": FORMAT,
        "from": days[0] if days else None,
        "to": days[-1] if days else None,
        "transcripts": report.transcripts,
        "bytes": report.bytes,
        "conversations": len(report.conversations),
        "requests": total.requests,
        "spent_dollars": _dollars(total.spent),
        "parts_dollars": {part: _dollars(cost) for part, cost in report.parts.items()},
        "rewritten_while_alive": [
            {"likely_cause": cause, "events": each.events, "tokens": each.tokens, "dollars": _dollars(each.dollars)}
            for cause, each in sorted(report.rewrites.items(), key=lambda item: -item[1].dollars)
        ],
        "rules": [
            {"rule": rule.name, "saved_dollars": _dollars(saved), "saved_percent": _percent(saved, total.spent)}
            for rule, saved in zip(RULES, total.saved_by_rule, strict=True)
        ],
        "with_proxy": {
            "dollars": _dollars(total.with_rules[-1]),
            "saved_dollars": _dollars(total.saved),
            "saved_percent": _percent(total.saved, total.spent),
            "conversations_dearer": len(dearer),
            "worst_percent": _percent(-dearer[0].sums.saved, dearer[0].sums.spent) if dearer else 0.0,
        },
        "by_cache_life": {
            life: {
                "without_dollars": _dollars(total.without[life]),
                "with_dollars": _dollars(total.with_proxy[life]),
                "saved_percent": _percent(total.without[life] - total.with_proxy[life], total.without[life]),
            }
            for life in LIVES
        },
        "simulation": {
            "from_times_and_texts_percent": _percent(total.from_times, total.spent),
            "with_recorded_breaks_percent": _percent(total.simulated, total.spent),
            "median_error_percent": _percent(errors[len(errors) // 2], 1) if errors else 0.0,
            "p90_error_percent": _percent(errors[len(errors) * 9 // 10], 1) if errors else 0.0,
        },
        "projects": [
            {"project": names.project(name), **_describe_sums(sums)} for name, sums in by_spent(report.projects)
        ],
        "models": [{"model": name, **_describe_sums(sums)} for name, sums in by_spent(report.models)],
        "days": [{"day": day, **_describe_sums(report.days[day])} for day in days],
        "results": [
            {
                "tool": names.tool(each.carried.tool),
                "subject": names.text(each.carried.subject),
                "project": names.project(each.project),
                "tokens": each.carried.tokens,
                "requests": each.carried.requests,
                "dollars": _dollars(each.dollars),
            }
            for each in report.results
        ],
        "largest_conversations": [
            _describe_conversation(row, names) for row in report.largest_conversations()[:CONVERSATIONS_SHOWN]
        ],
        "dearer_conversations": [_describe_conversation(row, names) for row in dearer[:CONVERSATIONS_SHOWN]],
        "left_out": asdict(report.skipped),
        "prices": [
            {"model": name, "source": facts.source, "read_on": facts.read_on}
            for name in sorted(report.models)
            if (facts := models.find(name)) is not None
        ],
    }


def by_spent(groups: Mapping[str, Sums]) -> list[tuple[str, Sums]]:
    return sorted(groups.items(), key=lambda item: -item[1].spent)


def _describe_conversation(row: ConversationRow, names: _Names) -> dict[str, Any]:
    return {
        "id": names.text(row.conversation.id),
        "host": row.conversation.host,
        "project": names.project(row.conversation.project),
        "subagent": row.conversation.is_subagent,
        "day": row.day,
        **_describe_sums(row.sums),
    }


def _describe_sums(sums: Sums) -> dict[str, Any]:
    return {
        "requests": sums.requests,
        "spent_dollars": _dollars(sums.spent),
        "saved_dollars": _dollars(sums.saved),
        "saved_percent": _percent(sums.saved, sums.spent),
        "saved_dollars_by_rule": _by_rule(sums),
    }


def _by_rule(sums: Sums) -> dict[str, float]:
    return {rule.name: _dollars(saved) for rule, saved in zip(RULES, sums.saved_by_rule, strict=True)}


class _Names:
    """Names for the report: the real ones, or numbers for projects and general words for tools."""

    def __init__(self, with_names: bool) -> None:
        self.with_names = with_names
        self._numbers: dict[str, int] = {}

    def text(self, text: str) -> str | None:
        """A text of a transcript, or None. Half of a character in it, as cutting leaves them, is a question mark."""
        return text.encode("utf-8", "replace").decode() if self.with_names else None

    def project(self, path: str) -> str | None:
        if self.with_names:
            return self.text(path)
        return f"project {self._numbers.setdefault(path, len(self._numbers) + 1)}"

    def tool(self, name: str) -> str | None:
        if name in KNOWN_TOOLS:
            return name
        if self.with_names:
            return self.text(name)
        return "a tool of an MCP server" if name.startswith("mcp__") else "another tool"


# Tools of the hosts themselves, whose names tell nothing about a user.
KNOWN_TOOLS = (
    *("Agent", "Bash", "BashOutput", "Edit", "Glob", "Grep", "LS", "MultiEdit", "NotebookEdit", "NotebookRead", "Read"),
    *("Skill", "Task", "TodoWrite", "WebFetch", "WebSearch", "Write", "apply_patch", "exec_command", "local_shell"),
    *("read_file", "shell", "update_plan", "view_image", "write_stdin"),
)


def _dollars(amount: float) -> float:
    """To the hundredth of a cent."""
    return round(amount, 4)


def _percent(part: float, whole: float) -> float:
    return round(PERCENT * part / whole, 2) if whole else 0.0
