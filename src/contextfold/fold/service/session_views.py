"""Views of sessions for the dashboard and the terminal: figures, trees, savings, effects of a rollback. Pure.

The daemon and the commands load sessions in different ways and show the same views. The results of the tools are in
`fold.tool_calls`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from contextfold.common.answer_format import (
    MICROS_SHOWN_MIN,
    TOKENS_WORTH,
    format_count,
    format_dollars,
    format_share,
)
from contextfold.common.canonical import Encodable, Hundredths, JsonObject
from contextfold.fold.ended_session import ended_ledger, ended_state, plain_figures
from contextfold.fold.events import Event, RequestSent
from contextfold.fold.ledger import WORTH, LedgerSums, SavingsLedger, thin_points, tokens_without, total_of
from contextfold.fold.model_catalog import LedgerPrices, ModelCatalog, TokenPrices
from contextfold.fold.policy import FoldPolicy, percent
from contextfold.fold.project import Conversation, Target
from contextfold.fold.session import Branch, State, replay
from contextfold.fold.store import EndedSession, SessionKey, Summary
from contextfold.fold.tool_calls import discarded_by

# Only the latest folds are listed.
FOLDS_LISTED_MAX = 200
# A smaller difference than one in this many of the cost is not significant.
DIFFERENCE_SHARE = 2_000
NANODOLLARS_PER_MICRO = 1_000
# A branch is failing if at least half of its operations have failed.
FAILING_RATE = 0.5
# The words for how a session is doing, by the warning of its health.
HEALTH_WORDS = {"none": "good", "medium": "medium", "high": "high"}
FAILING = "failing"
SUMMARY_FIELDS = ("project_path", "session_id", "branch_id", "description", "summary", "tokens_folded", "folded_at")
# The figures of an ended session in a list.
ENDED_FIELDS = (
    "project_path",
    "name",
    "conversation",
    "agent",
    "started_at",
    "total_tokens",
    "main_thread_tokens",
    "folded_tokens",
    "total_branches",
    "folded_branches",
    "operations",
    "model",
    "host",
)


class FoundSession(NamedTuple):
    key: SessionKey
    state: State
    # Set if the session has ended; its state is then the last one, and its log is here.
    ended: EndedSession | None = None
    ended_log: Sequence[Event] = ()

    @classmethod
    def of_ended(cls, session: EndedSession, log: Sequence[Event]) -> FoundSession:
        return cls(session.key, ended_state(session, log), session, log)

    @property
    def target(self) -> Target:
        state = self.state
        conversation = Conversation(state.conversation, state.agent, state.is_named) if state.conversation else None
        return Target(self.key, state.project_path, state.name, conversation)


class BranchRow(NamedTuple):
    """A branch and its position in the tree."""

    branch: Branch
    depth: int


def session_view(state: State, policy: FoldPolicy) -> dict[str, Encodable]:
    branches = state.branches.values()
    total, limit = state.total_tokens, policy.context_limit(state)
    health = policy.health(state, state.active)
    return {
        "session_id": state.session_id,
        "project_path": state.project_path,
        "name": state.name,
        "conversation": state.conversation if state.is_named else None,
        "agent": state.agent or None,
        "started_at": state.started_at,
        "last_at": state.last_at,
        "revision": state.revision,
        "host": state.host or None,
        "model": state.model or None,
        "active_branch_id": state.active_id,
        "branch_depth": state.depth,
        "branch_path": ["main", *state.path],
        "total_tokens": total,
        "main_thread_tokens": state.main.tokens,
        # None if no request has shown it.
        "host_tokens": state.host_tokens if state.last_request_n else None,
        "context_tokens": state.context_tokens,
        "folded_tokens": state.folded_tokens,
        "folded_before_tokens": state.folded_before_tokens,
        "tokens_saved": sum(tokens_saved(state, branch) for branch in branches),
        "left_out_results": len(state.left_out),
        "left_out_tokens": state.left_out_tokens,
        "context_limit": limit,
        "usage_percent": percent(total, limit),
        "context_health": health,
        "health": health_word(health),
        "open_branch_operations": state.active.operations if state.active else 0,
        "operations": state.main.operations + sum(branch.operations for branch in branches),
        "failed_operations": state.main.failed + sum(branch.failed for branch in branches),
        "secrets_scrubbed": state.main.redactions + sum(branch.redactions for branch in branches),
        "total_branches": len(branches),
        **{
            f"{status}_branches": sum(branch.status == status for branch in branches)
            for status in ("active", "folded", "discarded")
        },
    }


def health_word(health: Mapping[str, Any]) -> str:
    """One word for how a session is doing, the same everywhere."""
    warning = str(health["warning"])
    is_failing = health.get("failure_rate", 0) >= FAILING_RATE
    return FAILING if warning == "none" and is_failing else HEALTH_WORDS[warning]


def session_row(found: FoundSession, policy: FoldPolicy, ledger: SavingsLedger | None) -> JsonObject:
    """The view with the session's savings, which are None if no request went through the proxy."""
    ended: JsonObject = {"ended_at": found.ended.ended_at} if found.ended else {}
    return {**session_view(found.state, policy), **ended, "savings": savings_result(ledger)}


def group_sessions(rows: Sequence[JsonObject]) -> Iterator[tuple[JsonObject, bool]]:
    """Sessions by project, and whether each is that of a subagent, which comes below its parent.

    The project whose session comes first is the first one; otherwise the order stays.
    """
    parents = {row["conversation"] for row in rows if not row["agent"]}
    below: dict[Encodable, list[JsonObject]] = {}
    projects: dict[Encodable, list[JsonObject]] = {}
    for row in rows:
        if row["agent"] and row["conversation"] in parents:
            below.setdefault(row["conversation"], []).append(row)
        else:
            projects.setdefault(row["project_path"], []).append(row)
    for sessions in projects.values():
        for row in sessions:
            yield row, False
            for subagent in () if row["agent"] else below.pop(row["conversation"], ()):
                yield subagent, True


def savings_view(found: FoundSession, ledger: SavingsLedger) -> JsonObject:
    """The savings or costs of folding in the session's requests."""
    return {"session_id": found.state.session_id or "", **ledger_result(ledger)}


class SessionSums(NamedTuple):
    """The sums of a session's requests by day and by model."""

    session_id: str
    project_path: str
    is_live: bool
    days: Mapping[str, LedgerSums]
    models: Mapping[str, LedgerSums]


def sums_of(state: State, ledger: SavingsLedger) -> SessionSums:
    return SessionSums(state.session_id or "", state.project_path, not state.expired, ledger.days, ledger.model_sums)


def ended_sums(session: EndedSession, log: Sequence[Event], prices: LedgerPrices) -> SessionSums:
    return sums_of(ended_state(session, log), ended_ledger(session, log, prices))


# The project of the demo session.
DEMO_PROJECT = "/demo/shop"


class SavingsTotals:
    """The savings of several sessions by session, project, day or model, without the made-up one of the page."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._sums: dict[str, LedgerSums] = {}
        self._paths: dict[str, str] = {}

    def add(self, session: SessionSums) -> None:
        if session.project_path == DEMO_PROJECT:
            return
        parts = session.models if self.group == "model" else session.days
        # A live session without requests is a group, too, unless the groups are days or models.
        if not parts and session.is_live and self.group not in ("day", "model"):
            parts = {"": LedgerSums()}
        for key, part in parts.items():
            name = {"day": key, "model": key, "project": session.project_path}.get(self.group, session.session_id)
            self._sums[name] = self._sums.get(name, LedgerSums()).plus(part)
            self._paths[name] = session.project_path

    def result(self) -> JsonObject:
        total = total_of(self._sums.values())
        rows = [
            {
                self.group: name,
                **({"project_path": self._paths[name]} if self.group == "session" else {}),
                **sums_result(part),
            }
            for name, part in sorted(self._sums.items())
        ]
        return {"by": self.group, "groups": rows, "total": {**sums_result(total), "verdict": verdict(total)}}


class RunTotals:
    """The sums over the requests of one run, of all its conversations."""

    def __init__(self, name: str, failed_requests: int) -> None:
        self.name, self.failed_requests = name, failed_requests
        self.conversations = 0
        self._sums = LedgerSums()
        self._fold_tokens = 0
        self._left_out: dict[str, int] = {}
        self._reasons: Counter[str] = Counter()
        self._last: State | None = None

    def add(self, state: State, ledger: SavingsLedger, events: Sequence[Event]) -> None:
        """Add a session of the run. The one that was active last comes first."""
        self.conversations += 1
        self._sums = self._sums.plus(ledger.run_sums.get(self.name, LedgerSums()))
        for event in events:
            if isinstance(event, RequestSent) and event.run == self.name:
                folds = [state.branches.get(fold.branch_id) for fold in event.folds]
                self._fold_tokens += sum(state.removed_tokens(fold) for fold in folds if fold)
                self._left_out.update(event.left_out)
                self._reasons.update([event.reason] if event.reason else [])
        if self._last is None or (self._last.agent and not state.agent):
            self._last = state

    def result(self) -> JsonObject:
        last = self._last
        outcome = self._outcome()
        return {
            "conversations": self.conversations,
            **sums_result(self._sums),
            "failed_requests": self.failed_requests,
            "fold_tokens": self._fold_tokens,
            "left_out_tokens": sum(self._left_out.values()),
            "left_out_results": len(self._left_out),
            "outcome": outcome,
            "reasons": [] if outcome in ("no_requests", "saved") else self._explain(),
            "last_conversation": last
            and {
                "session_id": last.session_id,
                "host": last.host or None,
                "host_session_id": last.conversation if last.is_named else None,
            },
        }

    def _outcome(self) -> str:
        if not self._sums.requests:
            return "failed" if self.failed_requests else "no_requests"
        return outcome_of(self._sums)

    def _explain(self) -> list[str]:
        """Sentences that say why nothing was saved."""
        reasons = [
            f"{format_count(count, 'request')} could not be folded: {reason}."
            for reason, count in sorted(self._reasons.items())
        ]
        if self._sums.requests and not self._fold_tokens and not self._left_out:
            reasons.append("The agent folded nothing, and no pause was longer than the life of the provider's cache.")
        return reasons


def preview_rollback(state: State, branch_id: str, events: Sequence[Event], *, most: int | None = None) -> JsonObject:
    """The effects of a rollback's events, with a limited number of the branches that it would discard."""
    after = replay(events, state)
    discarded = discarded_by(branch_id, events, after)
    return {
        "rolled_back_to": branch_id,
        "branches_discarded": [branch_view(state, row_of(state, later)) for later in discarded[:most]],
        "total_discarded": len(discarded),
        "reopened": [branch_view(state, row_of(state, opened)) for opened in after.path if opened not in state.path],
        "tokens_recovered": max(0, state.total_tokens - after.total_tokens),
        "total_tokens_after": after.total_tokens,
    }


def branch_view(state: State, row: BranchRow) -> dict[str, Encodable]:
    branch = row.branch
    return {
        "id": branch.id,
        "parent_id": branch.parent_id,
        "depth": row.depth,
        "description": branch.description,
        "status": branch.status,
        "tokens": branch.tokens,
        "summary_tokens": branch.summary_tokens if branch.status == "folded" else 0,
        "tokens_removed": state.removed_tokens(branch),
        "tokens_saved": tokens_saved(state, branch),
        "operations": branch.operations,
        "failed_operations": branch.failed,
        "secrets_scrubbed": branch.redactions,
        "created_at": branch.created_at,
        "closed_at": branch.closed_at,
    }


def tokens_saved(state: State, branch: Branch) -> int:
    """The tokens saved by folding a branch; negative if its summary is longer than what the fold removed."""
    removed = state.removed_tokens(branch)
    return removed - branch.summary_tokens if removed or branch.status == "folded" else 0


def tree(state: State) -> list[BranchRow]:
    """All branches, each below its parent, siblings in the order of their creation."""
    children: dict[str | None, list[Branch]] = {}
    for branch in state.branches.values():
        children.setdefault(branch.parent_id, []).append(branch)
    return list(_rows(children, None, 0))


def _rows(children: dict[str | None, list[Branch]], parent_id: str | None, depth: int) -> Iterator[BranchRow]:
    # The depth of the recursion is that of the branches, which a setting limits to at most 64.
    for branch in children.get(parent_id, ()):
        yield BranchRow(branch, depth)
        yield from _rows(children, branch.id, depth + 1)


def summary_view(summary: Summary) -> dict[str, Encodable]:
    """A summary that a search has found."""
    return {name: getattr(summary, name) for name in SUMMARY_FIELDS}


def row_of(state: State, branch_id: str) -> BranchRow:
    depth, parent_id = 0, state.branches[branch_id].parent_id
    while parent_id is not None:
        depth, parent_id = depth + 1, state.branches[parent_id].parent_id
    return BranchRow(state.branches[branch_id], depth)


def ended_row(session: EndedSession, log: Sequence[Event], policy: FoldPolicy) -> JsonObject:
    """An ended session in a list, with its last figures. Without a log, those that an earlier version stored."""
    figures = session_view(ended_state(session, log), policy) if log else plain_figures(session)
    return {
        **{name: figures.get(name) for name in ENDED_FIELDS},
        "session_id": session.session_id,
        "last_at": session.last_at,
        "ended_at": session.ended_at,
        "savings": savings_result(ended_ledger(session, log, policy.ledger_prices)),
    }


def savings_result(ledger: SavingsLedger | None) -> JsonObject | None:
    """The savings of a session; None if no request went through the proxy."""
    return sums_result(ledger.sums) if ledger and ledger.sums.requests else None


def ledger_result(ledger: SavingsLedger) -> dict[str, Encodable]:
    """The ledger as JSON. Costs are in input tokens' worth, money is in millionths of a dollar."""
    sums, folds = ledger.sums, ledger.folds
    costly = [fold.branch_id for fold in folds if fold.saved < 0]
    return {
        "prices": [_prices_result(model, *known, ledger.prices.models) for model, known in ledger.models.items()],
        **sums_result(sums),
        "results_dropped": ledger.results_dropped,
        "left_out": {
            "results": ledger.left_out_results,
            "tokens": ledger.left_out.tokens,
            "requests": ledger.left_out.requests,
            "cost_saved": _worth(ledger.left_out.saved),
        },
        "failed_open": dict(ledger.not_folded),
        "folds": [
            {
                "branch_id": fold.branch_id,
                "description": fold.description,
                "tokens_dropped": fold.tokens,
                "requests": fold.requests,
                "cost_saved": _worth(fold.saved),
            }
            for fold in folds[-FOLDS_LISTED_MAX:]
        ],
        "costly_folds": costly[-FOLDS_LISTED_MAX:],
        "days": [{"day": day, **sums_result(each)} for day, each in sorted(ledger.days.items())],
        "points": [
            {"n": point.n, "at": point.at, "sent": point.sent, "without": point.without}
            for point in thin_points(ledger.points, height=tokens_without)
        ],
        "verdict": verdict(sums, folds=len(folds), costly=len(costly)),
    }


def sums_result(sums: LedgerSums) -> dict[str, Encodable]:
    money: Encodable = None
    if sums.is_priced:
        sent, without = sums.money_sent // NANODOLLARS_PER_MICRO, sums.money_without // NANODOLLARS_PER_MICRO
        money = {"currency": "USD", "sent_micros": sent, "without_micros": without, "saved_micros": without - sent}
    return {
        "requests": sums.requests,
        "estimated_requests": sums.estimated_requests,
        "extra_requests": sums.extra_requests,
        "warm_requests": sums.warm_requests,
        "tokens_sent": sums.tokens_sent,
        "tokens_without": sums.tokens_without,
        "tokens_saved": sums.tokens_without - sums.tokens_sent,
        "output_tokens": sums.output_tokens,
        "output_tokens_without": sums.output_tokens_without,
        "cost_sent": _worth(sums.cost_sent),
        "cost_without": _worth(sums.cost_without),
        "cost_saved": _worth(sums.cost_saved),
        "money": money,
        "outcome": outcome_of(sums),
    }


def outcome_of(sums: LedgerSums) -> str:
    if not has_difference(sums):
        return "no_saving"
    return "saved" if sums.saved[0] > 0 else "cost_more"


def has_difference(sums: LedgerSums) -> bool:
    """Whether folding has changed the cost by an amount that can be shown."""
    saved, without = sums.saved
    is_visible = not sums.is_priced or abs(saved) >= MICROS_SHOWN_MIN * NANODOLLARS_PER_MICRO
    return is_visible and DIFFERENCE_SHARE * abs(saved) > without


def verdict(sums: LedgerSums, *, folds: int = 0, costly: int = 0) -> str:
    """A sentence that says whether folding paid."""
    if not sums.requests:
        return "No request of this session has gone through the proxy, so there is nothing to compare."
    requests = format_count(sums.requests, "request")
    saved, without = sums.saved
    amount = f"{abs(saved) / WORTH:,.0f} {TOKENS_WORTH}"
    if sums.is_priced:
        amount = format_dollars(abs(saved) // NANODOLLARS_PER_MICRO)
    share = format_share(abs(saved), without)
    if not has_difference(sums):
        sentence = f"Folding has made no difference to the cost of {requests}"
    elif saved > 0:
        sentence = f"With folding, {requests} cost {share} less than without it: {amount} were saved"
    else:
        sentence = f"With folding, {requests} cost {share} more than without it: {amount} were lost"
    if costly:
        they = "it" if costly == 1 else "they"
        sentence += f"; {costly:,} of {format_count(folds, 'fold')} cost more than {they} saved"
    if sums.warm_requests:
        many = sums.warm_requests > 1
        sentence += f"; {sums.warm_requests:,} {'prompts were' if many else 'prompt was'} still cached after a pause"
    if sums.estimated_requests:
        sentence += f"; {sums.estimated_requests:,} of the requests are estimates"
    return sentence + "."


def _prices_result(model: str, prices: TokenPrices, is_money: bool, models: ModelCatalog) -> dict[str, Encodable]:
    """The prices in dollars for a million tokens, or in input tokens if the model's prices are not known.

    Prices change, so the day on which they were read is with them.
    """
    facts = models.find(model) if is_money else None
    unit = 1_000 if is_money else WORTH
    figures = {name: f"{price / unit:.10g}" for name, price in prices._asdict().items()}
    origin = {"read_on": facts.read_on or None if facts else None, "source": facts.source or None if facts else None}
    return {"model": model, "currency": "USD" if is_money else None, **figures, **origin}


def _worth(hundredths: int) -> Hundredths:
    return Hundredths(hundredths / WORTH)
