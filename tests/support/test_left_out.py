"""Tests whose surroundings lack something are left out by name, or fail where nothing may be left out."""

from __future__ import annotations

import pytest

from tests.support import left_out
from tests.support.clauses import covers
from tests.support.left_out import Part, need

LACKING = Part(False, "no such thing here: install it")


@covers("product.md#left-out")
def test_a_test_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "STRICT", False)
    with pytest.raises(pytest.skip.Exception, match=LACKING.lack):
        need(LACKING)


@covers("product.md#left-out")
def test_where_nothing_may_be_left_out_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "STRICT", True)
    with pytest.raises(pytest.fail.Exception, match=LACKING.lack):
        need(LACKING)


def test_what_is_there_is_needed_without_notice() -> None:
    need(Part(True, "never"))
