"""One day of work for agents of every package: a branch with the user speaking in it, a return, a fold, and a reader.

The tools answer as the daemon does; what the model says is a script.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from contextfold.fold.messages import Receipt

BRANCH = json.dumps({"branch_id": "br_1", "session_id": "sess_1", "parent_branch_id": None})
RETURNED = json.dumps({"folded_at": "2026-01-01T00:00:00Z", "branch_id": "br_1", "parent_branch_id": None})
FOLDED = json.dumps({"folded_at": "2026-01-01T00:00:00Z", "branch_id": "br_2", "parent_branch_id": None})
FIRST, SECOND = "Find the fault.", "No! NEVER touch prod."


def page(number: int) -> str:
    return f"PAGE {number} " * 50


class Asked(NamedTuple):
    """A call that the model makes."""

    name: str
    number: int = 0

    @property
    def arguments(self) -> dict[str, Any]:
        return {"number": self.number} if self.number else {}


# What the model says, one after another: calls, or text that ends its turn.
FIRST_TURN: list[list[Asked] | str] = [
    [Asked("context_branch")],
    [Asked("read_page", 1), Asked("read_page", 2)],
    "Shall I migrate prod?",
]
SECOND_TURN: list[list[Asked] | str] = [
    [Asked("read_page", 3)],
    [Asked("context_return")],
    [Asked("read_page", 4)],
    [Asked("context_fold")],
    "Done.",
]
PAGES_BEFORE_RETURN = 3


class Receipts(list[Receipt]):
    """What an adapter reports."""

    def __call__(self, receipt: Receipt) -> None:
        self.append(receipt)


def check_day(requests: list[str], receipts: list[Receipt]) -> None:
    """What each request contained, as text, and what was said of it."""
    first, second = requests[: len(FIRST_TURN)], requests[len(FIRST_TURN) :]
    assert all(FIRST in each for each in requests)
    assert all(SECOND in each for each in second)
    assert [page(1) in each and page(2) in each for each in first] == [False, False, True]
    # The second question, a page, the return: from then on the branch is gone; the fourth page stays until its fold.
    assert [page(1) in each for each in second] == [True, True, False, False, False]
    assert [page(3) in each for each in second] == [False, True, False, False, False]
    assert [page(4) in each for each in second] == [False, False, False, True, False]
    assert all("br_1" in each for each in requests[1:])
    assert all(receipt.reason in ("", "open_branch") for receipt in receipts)
    assert len(receipts) == len(requests)
    assert {fold.branch_id for receipt in receipts for fold in receipt.folds} == {"br_1", "br_2"}


def needed(package: str) -> Any:
    """The package, or the test is left out."""
    return pytest.importorskip(package, reason=f"no {package}: make adapters")
