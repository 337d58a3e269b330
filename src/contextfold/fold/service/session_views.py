"""Views of sessions for the dashboard and the terminal: figures, trees, savings, effects of a rollback. Pure.

The daemon and the commands load sessions in different ways and show the same views. The results of the tools are in
`fold.tool_calls`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from contextfold.common.canonical import Encodable, Hundredths, JsonObject
from contextfold.fold.ended_session import ended_state, ledger_parts, plain_figures, stored_figures
from contextfold.fold.events import BranchDiscarded, Event
from contextfold.fold.ledger import WORTH, LedgerSums, SavingsLedger, thin_points, tokens_without, total_of
from contextfold.fold.model_catalog import TokenPrices
from contextfold.fold.policy import FoldPolicy, percent
from contextfold.fold.project import Target
from contextfold.fold.session import Branch, State, replay
from contextfold.fold.store import EndedSession, SessionKey

# Only the latest folds are listed.
FOLDS_LISTED_MAX = 200
# A smaller difference than one in this many of the cost is not significant.
DIFFERENCE_SHARE = 2_000
NANODOLLARS_PER_MICRO = 1_000
NANODOLLARS_PER_DOLLAR = 1_000_000_000
# The figures of an ended session that are shown as they are stored.
ENDED_FIELDS = (
    "project_path",
    "name",
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
    # Set if the session has ended; its state is then the last one.
    ended: EndedSession | None = None

    @property
    def target(self) -> Target:
        return Target(self.key, self.state.project_path, self.state.name)

    @property
    def has_live_ledger(self) -> bool:
        """Whether the savings have to be computed from the log."""
        return self.ended is None and bool(self.state.requests)


def find_ended(session: EndedSession) -> FoundSession:
    state = ended_state(stored_figures(session), session_id=session.session_id, last_at=session.last_at)
    return FoundSession(session.key, state, session)


class BranchRow(NamedTuple):
    """A branch and its position in the tree."""

    branch: Branch
    depth: int


def session_view(state: State, policy: FoldPolicy) -> dict[str, Encodable]:
    branches = state.branches.values()
    total, limit = state.total_tokens, policy.context_limit(state)
    return {
        "session_id": state.session_id,
        "project_path": state.project_path,
        "name": state.name,
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
        "folded_tokens": state.folded_tokens,
        "tokens_saved": sum(map(tokens_saved, branches)),
        "context_limit": limit,
        "usage_percent": percent(total, limit),
        "context_health": policy.health(state, state.active),
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


def session_row(found: FoundSession, policy: FoldPolicy, ledger: SavingsLedger | None) -> JsonObject:
    """The view with the session's savings, which are None if no request went through the proxy.

    The ledger is that of a live session with requests.
    """
    row = session_view(found.state, policy)
    if found.ended:
        return {**row, "ended_at": found.ended.ended_at, "savings": ended_savings(found.ended)}
    return {**row, "savings": sums_result(ledger.sums) if ledger else None}


def savings_view(found: FoundSession, ledger: SavingsLedger) -> JsonObject:
    """The savings or costs of folding in the session's requests."""
    return {"session_id": found.state.session_id or "", **ledger_result(ledger)}


@dataclass(slots=True)
class SavingsTotals:
    """The savings of several sessions by session, project, day or model."""

    group: str
    _sums: dict[str, LedgerSums] = field(default_factory=dict)
    _paths: dict[str, Encodable] = field(default_factory=dict)

    def add_live(self, state: State, ledger: SavingsLedger) -> None:
        parts = ledger.model_sums if self.group == "model" else ledger.days
        # A session without requests is a group, too, unless the groups are days or models.
        nothing = {} if self.group in ("day", "model") else {"": LedgerSums()}
        self._add(state.session_id or "", state.project_path, parts or nothing)

    def add_ended(self, session: EndedSession) -> None:
        project_path = str(plain_figures(session).get("project_path", ""))
        self._add(session.session_id, project_path, ledger_parts(session, self.group))

    def _add(self, session_id: str, project_path: str, parts: Mapping[str, LedgerSums]) -> None:
        for key, part in parts.items():
            name = {"day": key, "model": key, "project": project_path}.get(self.group, session_id)
            self._sums[name] = self._sums.get(name, LedgerSums()).plus(part)
            self._paths[name] = project_path

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


def preview_rollback(state: State, branch_id: str, events: Sequence[Event], *, most: int | None = None) -> JsonObject:
    """The effects of a rollback's events, with a limited number of the branches that it would discard."""
    after = replay(events, state)
    discarded = [event.branch_id for event in events if isinstance(event, BranchDiscarded)]
    return {
        "rolled_back_to": branch_id,
        "branches_discarded": [branch_view(row_of(state, later)) for later in discarded[::-1][:most]],
        "total_discarded": len(discarded),
        "reopened": [branch_view(row_of(state, opened)) for opened in after.path if opened not in state.path],
        "tokens_recovered": max(0, state.total_tokens - after.total_tokens),
        "total_tokens_after": after.total_tokens,
    }


def branch_view(row: BranchRow) -> dict[str, Encodable]:
    branch = row.branch
    return {
        "id": branch.id,
        "parent_id": branch.parent_id,
        "depth": row.depth,
        "description": branch.description,
        "status": branch.status,
        "tokens": branch.tokens,
        "summary_tokens": branch.summary_tokens if branch.status == "folded" else 0,
        "tokens_saved": tokens_saved(branch),
        "operations": branch.operations,
        "failed_operations": branch.failed,
        "secrets_scrubbed": branch.redactions,
        "created_at": branch.created_at,
        "closed_at": branch.closed_at,
    }


def tokens_saved(branch: Branch) -> int:
    """The tokens saved by folding a branch; negative if its summary is longer than the folded work."""
    return branch.tokens - branch.summary_tokens if branch.status == "folded" else 0


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


def row_of(state: State, branch_id: str) -> BranchRow:
    depth, parent_id = 0, state.branches[branch_id].parent_id
    while parent_id is not None:
        depth, parent_id = depth + 1, state.branches[parent_id].parent_id
    return BranchRow(state.branches[branch_id], depth)


def ended_row(session: EndedSession) -> JsonObject:
    """An ended session in a list, with its last figures."""
    figures = plain_figures(session)
    return {
        **{name: figures.get(name) for name in ENDED_FIELDS},
        "session_id": session.session_id,
        "last_at": session.last_at,
        "ended_at": session.ended_at,
        "savings": ended_savings(session),
    }


def ended_savings(session: EndedSession) -> JsonObject | None:
    """The savings of an ended session; None if no request went through the proxy."""
    total = total_of(ledger_parts(session).values())
    return sums_result(total) if total.requests else None


def ledger_result(ledger: SavingsLedger) -> dict[str, Encodable]:
    """The ledger as JSON. Costs are in input tokens' worth, money is in millionths of a dollar."""
    sums, folds = ledger.sums, ledger.folds
    costly = [fold.branch_id for fold in folds if fold.saved < 0]
    return {
        "prices": [_prices_result(model, *known) for model, known in ledger.models.items()],
        **sums_result(sums),
        "results_dropped": ledger.results_dropped,
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
    }


def verdict(sums: LedgerSums, *, folds: int = 0, costly: int = 0) -> str:
    """A sentence that says whether folding paid."""
    if not sums.requests:
        return "No request of this session has gone through the proxy, so there is nothing to compare."
    requests = f"{sums.requests:,} request{'' if sums.requests == 1 else 's'}"
    saved, without = sums.cost_saved, sums.cost_without
    amount = f"{abs(saved) / WORTH:,.0f} input tokens' worth"
    if sums.is_priced:
        saved, without = sums.money_without - sums.money_sent, sums.money_without
        amount = f"${abs(saved) / NANODOLLARS_PER_DOLLAR:,.4f}"
    percent = (2 * 100 * abs(saved) + without) // (2 * without) if without else 0
    if DIFFERENCE_SHARE * abs(saved) <= without:
        sentence = f"Folding has made no difference to the cost of {requests}"
    elif saved > 0:
        sentence = f"With folding, {requests} cost {percent} % less than without it: {amount} were saved"
    else:
        sentence = f"With folding, {requests} cost {percent} % more than without it: {amount} were lost"
    if costly:
        sentence += f"; {costly:,} of {folds:,} folds cost more than they saved"
    if sums.warm_requests:
        many = sums.warm_requests > 1
        sentence += f"; {sums.warm_requests:,} {'prompts were' if many else 'prompt was'} still cached after a pause"
    if sums.estimated_requests:
        sentence += f"; {sums.estimated_requests:,} of the requests are estimates"
    return sentence + "."


def _prices_result(model: str, prices: TokenPrices, is_money: bool) -> dict[str, Encodable]:
    """The prices in dollars for a million tokens, or in input tokens if the model's prices are not known."""
    unit = 1_000 if is_money else WORTH
    figures = {name: f"{price / unit:.10g}" for name, price in prices._asdict().items()}
    return {"model": model, "currency": "USD" if is_money else None, **figures}


def _worth(hundredths: int) -> Hundredths:
    return Hundredths(hundredths / WORTH)
