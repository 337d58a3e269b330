"""What an answered request adds to a session: the provider's count, shared among the open threads. No clock, no I/O.

A provider counts the whole context, so its count is a level and no growth: every open thread is brought up to its share
of it. What hooks, or the agent itself, have told already is thereby not counted twice. What the model answers comes
back in the next request; where hooks tell of it before that, it is left to them. A host's compaction takes the calls
that show which branches are open out of the history: what these hold is then counted in the innermost thread that is
seen. Texts come scrubbed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from contextfold.fold.events import Event, OperationCompleted, RequestSent
from contextfold.fold.ledger.sent_request import FoldSeen, Sent, Share, ThreadSeen
from contextfold.fold.session import Branch, State, Thread

TYPE = "model_turns"  # of the operations
SOURCE = "proxy"  # of their figures
FOLDS_MOST = 100  # that one event tells of; the others come with the next request
FOLDS_SEEN_MOST = 10_000  # of a session, as many as it may have branches
TOKENS_MOST = 1_000_000_000  # whatever a provider says
OFF_MOST = 2  # times that an estimate is less than the count; beyond, something was sent that it does not see
WORD_LENGTH_MAX = 64  # of an API and of a reason
MODEL_LENGTH_MAX = 200
OUR_ID = re.compile(r"br_[0-9a-f]{16}")  # of a branch of ours, be it another session's; no other text is kept


class Text(Protocol):
    """A text without its secrets."""

    @property
    def text(self) -> str: ...
    @property
    def redactions(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Happened:
    """What is to be written: events, and the texts of operations by their `n`."""

    events: Sequence[Event] = ()
    texts: Sequence[tuple[int, str]] = ()


def levels_of(sent: Sent, *, with_answer: bool = True) -> list[int]:
    """How many tokens each thread has by now: what the provider counted, by the estimates; its answer to the last.

    A file that is sent by its name alone, or of many pages, counts far more than its estimate. Whose it is nobody says,
    and a branch that got a part of it would boast of that when it folds: then the estimates stand.
    """
    estimates = [share.tokens for share in sent.shares]
    if sent.usage is None or not estimates:
        return estimates
    weights = estimates if any(estimates) else [1] * len(estimates)
    whole, prompt = sum(weights), sent.usage.prompt_tokens
    if len(weights) > 1 and prompt > OFF_MOST * whole:
        prompt = whole
    ends = [sum(weights[: place + 1]) * prompt // whole for place in range(len(weights))]
    levels = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    return [*levels[:-1], levels[-1] + sent.usage.output_tokens] if with_answer else levels


def requested(
    state: State, at: str, sent: Sent, *, call_id: str, model: str, texts: Sequence[Sequence[Text]]
) -> Happened:
    """The events of a request, those of the threads first; none if it is known. `texts` are those of the shares."""
    if call_id in state.requests:
        return Happened()
    events: list[Event] = []
    kept: list[tuple[int, str]] = []
    grown: list[ThreadSeen] = []
    done: set[str | None] = set()
    has_hooks = bool(state.calls)  # then calls and texts are told by them
    levels = levels_of(sent, with_answer=not has_hooks)
    unseen = _unseen_tokens(state, sent)
    threads = [] if _is_outdated(state, sent) else zip(sent.shares, levels, texts, strict=True)
    for share, level, messages in threads:
        thread = _open_thread(state, share.branch_id)
        if thread is None or share.branch_id in done:
            continue
        done.add(share.branch_id)
        new = [] if has_hooks else _new(share, thread, messages)
        own = level - unseen if share is sent.shares[-1] else level
        tokens = 0 if _is_known(share, thread, sent) else _bounded(own - thread.tokens)
        if tokens or new:
            n = state.revision + len(events) + 1
            redactions = sum(message.redactions for message in new)
            events.append(
                OperationCompleted(n, at, share.branch_id, TYPE, tokens, SOURCE, failed=False, redactions=redactions)
            )
            kept.append((n, _joined(new, share.messages - thread.messages)))
        if share.messages > thread.messages:
            grown.append(ThreadSeen(share.branch_id, share.messages))
    told = _told(sent, state.revision + len(events) + 1, at, call_id, model)
    return Happened([*events, replace(told, folds=_new_folds(state, sent), threads=tuple(grown))], kept)


def _told(sent: Sent, n: int, at: str, call_id: str, model: str) -> RequestSent:
    usage = sent.usage
    return RequestSent(
        n,
        at,
        sent.api[:WORD_LENGTH_MAX],
        model[:MODEL_LENGTH_MAX],
        _bounded(sent.tokens_before),
        _bounded(sent.tokens_after),
        _bounded(sent.turns_dropped),
        sent.first_changed,
        sent.reason[:WORD_LENGTH_MAX],
        _bounded(usage.input_tokens) if usage else None,
        _bounded(usage.cache_read_tokens) if usage else None,
        _bounded(usage.cache_write_tokens) if usage else None,
        _bounded(usage.output_tokens) if usage else None,
        call_id,
    )


def _open_thread(state: State, branch_id: str | None) -> Thread | Branch | None:
    """None for a branch that this session does not know, or no longer has open."""
    if branch_id is None:
        return state.main
    return state.branches[branch_id] if branch_id in state.path else None


def _is_known(share: Share, thread: Thread | Branch, sent: Sent) -> bool:
    """Whether a branch is open in this thread and it has not grown since a request told of it: then that one knew best.

    Its share changes all the same, by how exact the estimate of the branch is, and would stay when the branch is gone.
    """
    return share is not sent.shares[-1] and 0 < share.messages <= thread.messages


def _unseen_tokens(state: State, sent: Sent) -> int:
    """Of open branches that the request does not show as such."""
    seen = {share.branch_id for share in sent.shares}
    return sum(state.branches[open_id].tokens for open_id in state.path if open_id not in seen)


def _is_outdated(state: State, sent: Sent) -> bool:
    """Whether the host has compacted since: what it sent then is no longer in its context."""
    return sent.compactions is not None and sent.compactions < state.compactions


def _new(share: Share, thread: Thread | Branch, messages: Sequence[Text]) -> Sequence[Text]:
    """Those that no earlier request has brought. A list that has become shorter brings none."""
    count = share.messages - thread.messages
    return messages[-count:] if count > 0 else ()


def _joined(new: Sequence[Text], expected: int) -> str:
    if not new:
        return ""
    missing = expected - len(new)
    noted = [f"[{missing} earlier messages were not handed over]"] if missing > 0 else []
    return "\n".join([*noted, *(message.text for message in new)])


def _new_folds(state: State, sent: Sent) -> tuple[FoldSeen, ...]:
    room = min(FOLDS_MOST, FOLDS_SEEN_MOST - len(state.folds_seen))
    new = {
        fold.branch_id: FoldSeen(fold.branch_id, _bounded(fold.tokens), _bounded(fold.kept_tokens))
        for fold in sent.folds
        if fold.branch_id not in state.folds_seen
        and (fold.branch_id in state.branches or OUR_ID.fullmatch(fold.branch_id))
    }
    return tuple(new.values())[: max(0, room)]


def _bounded(tokens: int) -> int:
    return min(max(0, tokens), TOKENS_MOST)
