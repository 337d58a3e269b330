"""A conversation for agents of every package: a branch with a user message in it, a return, and a fold.

The tools return what the daemon returns, and the responses of the model are a script.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from contextfold.fold.messages import Receipt

BRANCH = json.dumps({"branch_id": "br_1", "session_id": "sess_1", "parent_branch_id": None})
RETURNED = json.dumps({"folded_at": "2026-01-01T00:00:00Z", "branch_id": "br_1", "parent_branch_id": None})
FOLDED = json.dumps({"folded_at": "2026-01-01T00:00:00Z", "branch_id": "br_2", "parent_branch_id": None})
FIRST_PROMPT, SECOND_PROMPT = "Find the fault.", "No! NEVER touch prod."


def page_text(number: int) -> str:
    return f"PAGE {number} " * 50


class ScriptedCall(NamedTuple):
    """A call that the model makes."""

    name: str
    number: int = 0

    @property
    def arguments(self) -> dict[str, Any]:
        return {"number": self.number} if self.number else {}


# The responses of the model in order: calls, or a text that ends its turn.
FIRST_TURN: list[list[ScriptedCall] | str] = [
    [ScriptedCall("context_branch")],
    [ScriptedCall("read_page", 1), ScriptedCall("read_page", 2)],
    "Shall I migrate prod?",
]
SECOND_TURN: list[list[ScriptedCall] | str] = [
    [ScriptedCall("read_page", 3)],
    [ScriptedCall("context_return")],
    [ScriptedCall("read_page", 4)],
    [ScriptedCall("context_fold")],
    "Done.",
]
PAGES_BEFORE_RETURN = 3


class ReceiptList(list[Receipt]):
    """The receipts that an adapter reports."""

    def __call__(self, receipt: Receipt) -> None:
        self.append(receipt)


def check_requests(requests: list[str], receipts: list[Receipt]) -> None:
    """Checks which pages each request contained, and what its receipt says."""
    first_turn, second_turn = requests[: len(FIRST_TURN)], requests[len(FIRST_TURN) :]
    assert all(FIRST_PROMPT in request for request in requests)
    assert all(SECOND_PROMPT in request for request in second_turn)
    assert [page_text(1) in request and page_text(2) in request for request in first_turn] == [False, False, True]
    # Requests after the return do not contain the branch. The fourth page stays until its fold.
    assert [page_text(1) in request for request in second_turn] == [True, True, False, False, False]
    assert [page_text(3) in request for request in second_turn] == [False, True, False, False, False]
    assert [page_text(4) in request for request in second_turn] == [False, False, False, True, False]
    assert all("br_1" in request for request in requests[1:])
    assert all(receipt.reason in ("", "open_branch") for receipt in receipts)
    assert len(receipts) == len(requests)
    assert {fold.branch_id for receipt in receipts for fold in receipt.folds} == {"br_1", "br_2"}


def import_or_skip(package: str) -> Any:
    """Imports a package, or skips the test."""
    return pytest.importorskip(package, reason=f"no {package}: make adapters")
