"""The stored tree of an ended session, and its decoding to a state. Pure.

The log of an ended session is deleted; trajectories and summaries stay in the archive until their retention ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from contextfold.common.canonical import Encodable
from contextfold.fold.session import STATUSES, Branch, State, Thread

# Only the last branches are stored, because the document must fit into one message of NATS.
BRANCHES_MOST = 500
_THREAD = ("tokens", "operations", "failed", "redactions")
_TEXTS = ("id", "description", "created_at")
_OPTIONAL_TEXTS = ("parent_id", "closed_at")
_NUMBERS = (*_THREAD, "summary_tokens", "folded_afterwards_n")


def ended_members(state: State) -> dict[str, Encodable]:
    """The main thread and the branches of a session that ends."""
    names = (*_TEXTS, *_OPTIONAL_TEXTS, *_NUMBERS, "status")
    return {
        "main": {name: getattr(state.main, name) for name in _THREAD},
        "branches": [
            {name: getattr(branch, name) for name in names} for branch in list(state.branches.values())[-BRANCHES_MOST:]
        ],
    }


def ended_state(figures: Mapping[str, Any], *, session_id: str, last_at: str) -> State:
    """The last state of an ended session. Members that are missing or of another type are ignored.

    Another version may have written them.
    """
    listed = figures.get("branches")
    read = [_branch(members) for members in (listed if isinstance(listed, list) else ())]
    branches = {branch.id: branch for branch in read if branch}
    main = figures.get("main")
    known = main if isinstance(main, dict) else {"tokens": figures.get("main_thread_tokens")}
    thread: dict[str, Any] = {name: _number(known, name) for name in _THREAD}
    return State(
        session_id,
        project_path=_text(figures, "project_path"),
        name=_text(figures, "name") or None,
        started_at=_text(figures, "started_at") or last_at,
        revision=max(1, _number(figures, "revision")),
        last_at=last_at,
        expired=True,
        main=Thread(**thread),
        branches={
            branch.id: branch if branch.parent_id in branches else replace(branch, parent_id=None)
            for branch in branches.values()
        },
        model=_text(figures, "model"),
        host=_text(figures, "host"),
    )


def _branch(members: object) -> Branch | None:
    if not isinstance(members, dict) or members.get("status") not in STATUSES:
        return None
    read: dict[str, Any] = {name: _text(members, name) for name in _TEXTS}
    read |= {name: _text(members, name) or None for name in _OPTIONAL_TEXTS}
    read |= {name: _number(members, name) for name in _NUMBERS}
    return Branch(**read, status=members["status"]) if read["id"] else None


def _text(members: Mapping[str, Any], name: str) -> str:
    value = members.get(name)
    return value if isinstance(value, str) else ""


def _number(members: Mapping[str, Any], name: str) -> int:
    value = members.get(name)
    return value if type(value) is int else 0
