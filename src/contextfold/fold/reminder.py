"""The line that tells a model where it stands: which branch is open, how full it is, how to return. Pure.

A model that works in a branch soon reads nothing but results, and forgets that it has to come back. So the line is put
beside what it reads. It is short, for it comes often; on one line; and without a quotation mark, so that nothing in it
can be taken for a member of the answer it stands beside.
"""

from __future__ import annotations

from dataclasses import dataclass

from contextfold.fold.accounting import Thresholds, main_thread_health, percent
from contextfold.fold.session import Branch, Limits, State

DESCRIPTION_MOST = 60  # characters of a branch's description
CUT = "…"
_NO_QUOTES = str.maketrans({'"': "’", "'": "’"})


@dataclass(frozen=True, slots=True)
class Reminding:
    """What a user may set about the line."""

    is_on: bool = True
    branch_tokens: int = 0  # at which a branch is asked to return; 0 is half of the context


def branch_limit(limits: Limits, reminding: Reminding) -> int:
    return reminding.branch_tokens or max(1, limits.context_tokens // 2)


def branch_line(state: State, waiting_tokens: int, limits: Limits, reminding: Reminding) -> str:
    """Where the active branch stands, with what is not yet written; empty where no branch is open."""
    branch = state.active
    if branch is None or not reminding.is_on:
        return ""
    tokens, limit = branch.tokens + waiting_tokens, branch_limit(limits, reminding)
    named = f"contextfold: branch {branch.id} ({_described(branch)})"
    if tokens >= limit:
        return f"{named} is at its limit: {tokens} of {limit} tokens. Call context_return now with what you have found."
    return f"{named} is open: {tokens} of {limit} tokens. When it is done, call context_return with all that is needed."


def state_line(state: State, waiting_tokens: int, limits: Limits, thresholds: Thresholds, reminding: Reminding) -> str:
    """The branch's line, and how the main thread stands where it is not healthy: one line, or empty."""
    branch = branch_line(state, waiting_tokens, limits, reminding)
    main = state.main.tokens + (0 if state.path else waiting_tokens)
    found = main_thread_health(main, limits, thresholds)
    if found.warning == "none":
        return branch
    held = f"the main thread holds {main} of {limits.context_tokens} tokens"
    held += f" ({percent(main, limits.context_tokens)} %, {found.warning})."
    # Whoever is in a branch has done what the suggestion says, or cannot do it now.
    return f"{branch} {held[0].upper()}{held[1:]}" if branch else f"contextfold: {held} {found.suggestion}."


def _described(branch: Branch) -> str:
    text = " ".join(branch.description.translate(_NO_QUOTES).split())
    if len(text) > DESCRIPTION_MOST:
        text = text[: DESCRIPTION_MOST - len(CUT)].rstrip() + CUT
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
