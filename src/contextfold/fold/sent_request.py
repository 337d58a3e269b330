"""An answered request to a model, and what is recorded of it in its session. Pure; knows no HTTP and no provider.

The sender of a request makes a report after the response: its size, the folds in it, the provider's usage.

A provider counts the whole context, so its count is a total and not an increase: it is divided among the host's own
prompt and tools and the open threads, in proportion to the estimates, and replaces their figures. From the first
request on, operations that hooks or the agent report count no tokens; the model's response is part of the next request.
A host's compaction removes the calls that show which branches are open from the history; their tokens are then counted
in the innermost visible thread. Texts are already scrubbed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from contextfold.fold.events import (
    Event,
    FoldSeen,
    OperationCompleted,
    PrefixMiss,
    RequestSent,
    ResultLeftOut,
    ThreadSeen,
)
from contextfold.fold.ledger import CACHEABLE_TOKENS, ESTIMATE_OFF_MAX
from contextfold.fold.messages.receipt import Fold, Receipt
from contextfold.fold.project import hash_text
from contextfold.fold.session import Branch, State, Thread

# The error of an estimate of a part of a prompt is at most one in this many.
ESTIMATE_OFF_SHARE = 10
# The name of the reporter of requests, beside those of hosts.
PROXY = "proxy"
# The type of the recorded operations, and the source of their figures.
TYPE = "model_turns"
SOURCE = PROXY
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


class Usage(NamedTuple):
    """The provider's counts. No token is in two of them, except that one-hour writes are also cache writes."""

    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    output_tokens: int
    cache_write_1h_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """All tokens of the prompt."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


def was_warm(usage: Usage | None, tokens: int, opening_tokens: int) -> bool:
    """Whether the provider read a prefix from its cache that only this conversation can have written.

    `tokens` are those of the request, `opening_tokens` those before the model's first message; both are estimates.
    """
    if usage is None or not tokens:
        return False
    opening = opening_tokens * usage.prompt_tokens // tokens
    return usage.cache_read_tokens >= opening + max(CACHEABLE_TOKENS, opening // ESTIMATE_OFF_SHARE)


class Share(NamedTuple):
    """An open thread's part of a request: its tokens, the number of its messages, and the last of them as JSON text.

    The host's own prompt and tools are in no part. The texts are ordered from the oldest, are not yet scrubbed, and may
    be fewer than the messages.
    """

    branch_id: str | None
    tokens: int
    messages: int
    texts: tuple[str, ...] = ()
    # Whether the new messages of this request end with a prompt of the user.
    by_user: bool = False
    # The tokens that would leave the next request if this branch returned.
    removable: int = 0


@dataclass(frozen=True, slots=True)
class RequestReport:
    """An answered request that is not yet recorded. `id` is unique, so a repeated report is recorded once."""

    reporter: ClassVar[str] = PROXY
    # The tokens by which the session certainly grows: the figures are first compared with the session's.
    tokens: ClassVar[int] = 0

    id: str
    api: str
    model: str
    receipt: Receipt
    usage: Usage | None = None
    shares: tuple[Share, ...] = ()
    # The number of the host's compactions at the time of the request, if it is known.
    compactions: int | None = None
    # The estimated tokens of our tools' definitions, calls and results in the agent's request.
    our_tokens: int = 0
    # The estimated tokens of our calls in the response, and whether it contained no other call and no text.
    our_output_tokens: int = 0
    only_ours: bool = False
    # The estimated tokens before the first new change of this request, if the receipt's folds do not have it.
    kept_tokens: int | None = None
    # The number of new content blocks since the conversation's last request, or 0 if it is not known. A provider
    # searches only a limited number of blocks for a cached prefix.
    new_blocks: int = 0
    # Identifies the conversation within the session; empty if only one is known.
    conversation: str = ""
    # The pause in seconds after which the prompt was still cached, although its cache was taken to have expired; or 0.
    warm_after_s: int = 0
    # The name of its run, or empty.
    run: str = ""
    # The results that are left out of it, in this request or before.
    left_out: tuple[ResultLeftOut, ...] = ()
    # The estimated tokens of the host's own prompt and tools, and whether it offers tools.
    host_tokens: int = 0
    has_tools: bool = False
    # The tokens that would leave the next request if the active thread's work was folded.
    work_tokens: int = 0
    # What the provider's cache has lost before it; at most one.
    misses: tuple[PrefixMiss, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that may contain secrets: the model's name, the details of misses, then those of the shares."""
        return (
            self.model,
            *(miss.detail for miss in self.misses),
            *(text for share in self.shares for text in share.texts),
        )


class ScrubbedText(Protocol):
    """A text without its secrets."""

    @property
    def text(self) -> str: ...
    @property
    def redactions(self) -> int: ...
    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that redacted something."""


class RecordedEvents(NamedTuple):
    """The events to commit, and the texts of operations by their number."""

    events: Sequence[Event] = ()
    texts: Sequence[tuple[int, str]] = ()


def divide_count(report: RequestReport) -> list[int]:
    """The tokens of the host's part and of each thread: the provider's count in proportion to the estimates.

    A file that is sent only by its name, or one with many pages, counts far more than its estimate. Its thread is not
    known, and a branch that got a part of it would seem to save that part when it folds. So the rest is the main
    thread's.
    """
    estimates = [report.host_tokens, *(share.tokens for share in report.shares)]
    if report.usage is None or not report.shares:
        return estimates
    whole, prompt = sum(estimates), report.usage.prompt_tokens
    if prompt > ESTIMATE_OFF_MAX * whole:
        return [estimates[0], estimates[1] + prompt - whole, *estimates[2:]]
    ends = [sum(estimates[: position + 1]) * prompt // whole for position in range(len(estimates))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def call_id_of(given: str) -> str:
    """The stored form of a report's id; empty if it has none."""
    return hash_text(given)[:CALL_ID_LENGTH] if given else ""


def record_request(state: State, at: str, report: RequestReport, scrubbed: Sequence[ScrubbedText]) -> RecordedEvents:
    """The events of a request, those of threads first; none if it is already recorded. `scrubbed` are its texts."""
    call_id = call_id_of(report.id)
    if call_id in state.requests:
        return RecordedEvents()
    model, *texts = scrubbed
    details, messages_left = texts[: len(report.misses)], texts[len(report.misses) :]
    events: list[Event] = []
    operation_texts: list[tuple[int, str]] = []
    seen: list[ThreadSeen] = []
    done: set[str | None] = set()
    # Hooks report calls and texts, so they are not recorded again.
    has_hooks = bool(state.calls)
    # After a compaction, the messages of an earlier request are no longer in the host's context.
    is_outdated = report.compactions is not None and report.compactions < state.compactions
    is_beside = state.has_tools and not report.has_tools
    shares = () if is_outdated or is_beside else report.shares
    host_tokens, *levels = _settle_levels(state, report)
    for share, level in zip(shares, levels, strict=False):
        messages, messages_left = messages_left[: len(share.texts)], messages_left[len(share.texts) :]
        thread = _open_thread(state, share.branch_id)
        if thread is None or share.branch_id in done:
            continue
        done.add(share.branch_id)
        new = [] if has_hooks else _new_messages(share, thread, messages)
        if new or (share.messages > thread.messages and not has_hooks):
            n = state.revision + len(events) + 1
            redactions = sum(message.redactions for message in new)
            events.append(
                OperationCompleted(
                    n,
                    at,
                    share.branch_id,
                    TYPE,
                    _bound(level - thread.tokens),
                    SOURCE,
                    failed=False,
                    redactions=redactions,
                    by_user=share.by_user,
                )
            )
            operation_texts.append((n, _join_texts(new, share.messages - thread.messages)))
        seen.append(ThreadSeen(share.branch_id, share.messages, _bound(level), _bound(share.removable)))
    receipt, usage = report.receipt, report.usage
    event = RequestSent(
        state.revision + len(events) + 1,
        at,
        report.api[:WORD_LENGTH_MAX],
        model.text[:MODEL_LENGTH_MAX],
        _bound(receipt.tokens_before),
        _bound(receipt.tokens_after),
        _bound(receipt.turns_dropped),
        receipt.first_changed,
        receipt.problem[:WORD_LENGTH_MAX],
        _bound(usage.input_tokens) if usage else None,
        _bound(usage.cache_read_tokens) if usage else None,
        _bound(usage.cache_write_tokens) if usage else None,
        _bound(usage.output_tokens) if usage else None,
        call_id,
        folds=_new_folds(state, receipt.folds),
        threads=tuple(seen),
        cache_write_1h_tokens=_bound(usage.cache_write_1h_tokens) if usage else 0,
        our_tokens=_bound(report.our_tokens),
        our_output_tokens=_bound(report.our_output_tokens),
        only_ours=report.only_ours,
        results_dropped=_bound(receipt.results_left_out),
        kept_tokens=None if report.kept_tokens is None else _bound(report.kept_tokens),
        new_blocks=_bound(report.new_blocks),
        conversation=report.conversation[:WORD_LENGTH_MAX],
        warm_after_s=_bound(report.warm_after_s),
        run=report.run[:WORD_LENGTH_MAX],
        left_out=_new_left_out(state, report.left_out),
        host_tokens=_bound(host_tokens),
        work_tokens=_bound(report.work_tokens),
        has_tools=report.has_tools,
        misses=tuple(
            miss._replace(tokens=_bound(miss.tokens), detail=detail.text[:WORD_LENGTH_MAX])
            for miss, detail in zip(report.misses, details, strict=True)
        ),
    )
    return RecordedEvents([*events, event], operation_texts)


def _open_thread(state: State, branch_id: str | None) -> Thread | Branch | None:
    """The open thread with this id; None if this session does not have it or it is no longer open."""
    if branch_id is None:
        return state.main
    return state.branches[branch_id] if branch_id in state.path else None


def _settle_levels(state: State, report: RequestReport) -> list[int]:
    """The tokens of the host's part and of each thread, whose sum is the provider's count.

    A thread in which a branch is open, and that has not grown, keeps its figure: its share still changes with the
    estimate of the branch, and that change would stay when the branch folds.
    """
    levels = divide_count(report)
    left = sum(levels) - levels[0] - _unseen_tokens(state, report)
    for position, share in enumerate(report.shares[:-1], 1):
        thread = _open_thread(state, share.branch_id)
        if thread and state.last_request_n and 0 < share.messages <= thread.messages:
            levels[position] = min(thread.tokens, left)
        left -= levels[position]
    if report.shares:
        levels[-1] = max(0, left)
    return levels


def _unseen_tokens(state: State, report: RequestReport) -> int:
    """The tokens of open branches that are not visible in the request."""
    seen = {share.branch_id for share in report.shares}
    return sum(state.branches[open_id].tokens for open_id in state.path if open_id not in seen)


def _new_messages(share: Share, thread: Thread | Branch, messages: Sequence[ScrubbedText]) -> Sequence[ScrubbedText]:
    """The messages that were in no earlier request; none if the list has become shorter."""
    count = share.messages - thread.messages
    return messages[-count:] if count > 0 else ()


def _join_texts(new: Sequence[ScrubbedText], expected: int) -> str:
    if not new:
        return ""
    missing = expected - len(new)
    gap = [f"[{missing} earlier messages were not handed over]"] if missing > 0 else []
    return "\n".join([*gap, *(message.text for message in new)])


def _new_folds(state: State, folds: Sequence[Fold]) -> tuple[FoldSeen, ...]:
    room = min(EVENT_FOLDS_MAX, SESSION_FOLDS_MAX - len(state.folds_seen))
    new = {
        fold.branch_id: FoldSeen(fold.branch_id, _bound(fold.tokens), _bound(fold.kept_tokens))
        for fold in folds
        if fold.branch_id not in state.folds_seen
        and (fold.branch_id in state.branches or _is_branch_id(fold.branch_id))
    }
    return tuple(new.values())[: max(0, room)]


def _new_left_out(state: State, results: Sequence[ResultLeftOut]) -> tuple[ResultLeftOut, ...]:
    """The left-out results that are in no earlier event. A host may send the same result twice in one request."""
    room = min(EVENT_FOLDS_MAX, SESSION_FOLDS_MAX - len(state.left_out))
    new = {
        each.result_id: ResultLeftOut(each.result_id, _bound(each.tokens))
        for each in results
        if each.result_id not in state.left_out
    }
    return tuple(new.values())[: max(0, room)]


def _is_branch_id(text: str) -> bool:
    prefix, digits = text[: len(BRANCH_ID_PREFIX)], text[len(BRANCH_ID_PREFIX) :]
    return prefix == BRANCH_ID_PREFIX and len(digits) == BRANCH_ID_DIGITS and _HEX.issuperset(digits)


def _bound(tokens: int) -> int:
    return min(max(0, tokens), TOKENS_MAX)
