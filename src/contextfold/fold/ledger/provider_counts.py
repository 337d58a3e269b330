"""Divides the provider's count of a request among the open threads of a session. Pure.

A provider counts the whole context, so its count is a total and not an increase: every open thread is raised to its
share of it. So operations that hooks or the agent have already reported are not counted twice. The model's response is
part of the next request; if hooks report it before, they count it. A host's compaction removes the calls that show
which branches are open from the history; their tokens are then counted in the innermost visible thread. Texts are
already scrubbed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from contextfold.fold.events import Event, OperationCompleted, RequestSent
from contextfold.fold.ledger.sent_request import ESTIMATE_OFF_MAX, FoldSeen, RequestReport, Share, ThreadSeen
from contextfold.fold.messages.receipt import Fold
from contextfold.fold.project import hashed
from contextfold.fold.session import Branch, State, Thread

# The type of the recorded operations, and the source of their figures.
TYPE = "model_turns"
SOURCE = RequestReport.reporter
# The limits on the folds in one event, after which the next request lists the others, and in a session.
EVENT_FOLDS_MAX = 100
SESSION_FOLDS_MAX = 10_000
TOKENS_MAX = 1_000_000_000
# This many digits of the hash of a report's id are stored; it is compared with only a few hundred others.
CALL_ID_LENGTH = 16
# The longest API name, reason and conversation id, and the longest name of a model.
WORD_LENGTH_MAX = 64
MODEL_LENGTH_MAX = 200
# The id of a branch, possibly of another session. No other text of a history is stored.
BRANCH_ID_PREFIX, BRANCH_ID_DIGITS = "br_", 16
_HEX = frozenset("0123456789abcdef")


class MessageText(Protocol):
    """A scrubbed text."""

    @property
    def text(self) -> str: ...
    @property
    def redactions(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """The events to commit, and the texts of operations by their number."""

    events: Sequence[Event] = ()
    texts: Sequence[tuple[int, str]] = ()


def thread_levels(report: RequestReport, *, with_answer: bool = True) -> list[int]:
    """The tokens of each thread: the provider's count in proportion to the estimates. The response is in the last.

    A file that is sent only by its name, or one with many pages, counts far more than its estimate. Its thread is not
    known, and a branch that got a part of it would seem to save that part when it folds. In this case the estimates are
    used.
    """
    estimates = [share.tokens for share in report.shares]
    if report.usage is None or not estimates:
        return estimates
    weights = estimates if any(estimates) else [1] * len(estimates)
    whole, prompt = sum(weights), report.usage.prompt_tokens
    if len(weights) > 1 and prompt > ESTIMATE_OFF_MAX * whole:
        prompt = whole
    ends = [sum(weights[: position + 1]) * prompt // whole for position in range(len(weights))]
    levels = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    return [*levels[:-1], levels[-1] + report.usage.output_tokens] if with_answer else levels


def call_id_of(given: str) -> str:
    """The stored form of a report's id; empty if it has none."""
    return hashed(given)[:CALL_ID_LENGTH] if given else ""


def requested(state: State, at: str, report: RequestReport, scrubbed: Sequence[MessageText]) -> RecordedRequest:
    """The events of a request, those of threads first; none if it is already recorded. `scrubbed` are its texts."""
    call_id = call_id_of(report.id)
    if call_id in state.requests:
        return RecordedRequest()
    model, *messages_left = scrubbed
    events: list[Event] = []
    operation_texts: list[tuple[int, str]] = []
    grown: list[ThreadSeen] = []
    done: set[str | None] = set()
    # Hooks report calls and texts, so they are not recorded again.
    has_hooks = bool(state.calls)
    levels = thread_levels(report, with_answer=not has_hooks)
    unseen = _unseen_tokens(state, report)
    # After a compaction, the messages of an earlier request are no longer in the host's context.
    is_outdated = report.compactions is not None and report.compactions < state.compactions
    for share, level in zip(report.shares, levels, strict=True):
        messages, messages_left = messages_left[: len(share.texts)], messages_left[len(share.texts) :]
        thread = _open_thread(state, share.branch_id)
        if is_outdated or thread is None or share.branch_id in done:
            continue
        done.add(share.branch_id)
        new = [] if has_hooks else _new(share, thread, messages)
        own = level - unseen if share is report.shares[-1] else level
        tokens = 0 if _is_known(share, thread, report) else _bounded(own - thread.tokens)
        if tokens or new:
            n = state.revision + len(events) + 1
            redactions = sum(message.redactions for message in new)
            events.append(
                OperationCompleted(
                    n,
                    at,
                    share.branch_id,
                    TYPE,
                    tokens,
                    SOURCE,
                    failed=False,
                    redactions=redactions,
                    by_user=share.by_user and not has_hooks,
                )
            )
            operation_texts.append((n, _joined(new, share.messages - thread.messages)))
        if share.messages > thread.messages:
            grown.append(ThreadSeen(share.branch_id, share.messages))
    receipt, usage = report.receipt, report.usage
    event = RequestSent(
        state.revision + len(events) + 1,
        at,
        report.api[:WORD_LENGTH_MAX],
        model.text[:MODEL_LENGTH_MAX],
        _bounded(receipt.tokens_before),
        _bounded(receipt.tokens_after),
        _bounded(receipt.turns_dropped),
        receipt.first_changed,
        receipt.problem[:WORD_LENGTH_MAX],
        _bounded(usage.input_tokens) if usage else None,
        _bounded(usage.cache_read_tokens) if usage else None,
        _bounded(usage.cache_write_tokens) if usage else None,
        _bounded(usage.output_tokens) if usage else None,
        call_id,
        folds=_new_folds(state, receipt.folds),
        threads=tuple(grown),
        cache_write_1h_tokens=_bounded(usage.cache_write_1h_tokens) if usage else 0,
        our_tokens=_bounded(report.our_tokens),
        our_output_tokens=_bounded(report.our_output_tokens),
        only_ours=report.only_ours,
        results_dropped=_bounded(receipt.results_left_out),
        kept_tokens=None if report.kept_tokens is None else _bounded(report.kept_tokens),
        new_blocks=_bounded(report.new_blocks),
        conversation=report.conversation[:WORD_LENGTH_MAX],
        warm_after_s=_bounded(report.warm_after_s),
    )
    return RecordedRequest([*events, event], operation_texts)


def _open_thread(state: State, branch_id: str | None) -> Thread | Branch | None:
    """The open thread with this id; None if this session does not have it or it is no longer open."""
    if branch_id is None:
        return state.main
    return state.branches[branch_id] if branch_id in state.path else None


def _is_known(share: Share, thread: Thread | Branch, report: RequestReport) -> bool:
    """Whether a branch is open in this thread and the thread has not grown since the last request.

    Its share still changes with the estimate of the branch, and that change would stay when the branch folds.
    """
    return share is not report.shares[-1] and 0 < share.messages <= thread.messages


def _unseen_tokens(state: State, report: RequestReport) -> int:
    """The tokens of open branches that are not visible in the request."""
    seen = {share.branch_id for share in report.shares}
    return sum(state.branches[open_id].tokens for open_id in state.path if open_id not in seen)


def _new(share: Share, thread: Thread | Branch, messages: Sequence[MessageText]) -> Sequence[MessageText]:
    """The messages that were in no earlier request; none if the list has become shorter."""
    count = share.messages - thread.messages
    return messages[-count:] if count > 0 else ()


def _joined(new: Sequence[MessageText], expected: int) -> str:
    if not new:
        return ""
    missing = expected - len(new)
    gap = [f"[{missing} earlier messages were not handed over]"] if missing > 0 else []
    return "\n".join([*gap, *(message.text for message in new)])


def _new_folds(state: State, folds: Sequence[Fold]) -> tuple[FoldSeen, ...]:
    room = min(EVENT_FOLDS_MAX, SESSION_FOLDS_MAX - len(state.folds_seen))
    new = {
        fold.branch_id: FoldSeen(fold.branch_id, _bounded(fold.tokens), _bounded(fold.kept_tokens))
        for fold in folds
        if fold.branch_id not in state.folds_seen
        and (fold.branch_id in state.branches or _is_branch_id(fold.branch_id))
    }
    return tuple(new.values())[: max(0, room)]


def _is_branch_id(text: str) -> bool:
    prefix, digits = text[: len(BRANCH_ID_PREFIX)], text[len(BRANCH_ID_PREFIX) :]
    return prefix == BRANCH_ID_PREFIX and len(digits) == BRANCH_ID_DIGITS and _HEX.issuperset(digits)


def _bounded(tokens: int) -> int:
    return min(max(0, tokens), TOKENS_MAX)
