"""Markers on tests name clauses of the specification that exist."""

from __future__ import annotations

from tests.support.clauses import TESTS, clauses, covered


def test_every_marker_names_a_listed_clause() -> None:
    unknown = {clause: tests for clause, tests in covered().items() if clause not in clauses()}
    assert unknown == {}


def test_no_clause_is_listed_twice() -> None:
    lines = (TESTS / "clauses.txt").read_text(encoding="utf-8").splitlines()
    names = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert len(names) == len(set(names)) == len(clauses())
