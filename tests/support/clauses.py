"""Lists which tests show which clause of the specification.

A test names the clauses it shows: `@covers("resolve.md#budget")`. `tests/clauses.txt` lists all of them.
`python -m tests.support.clauses` prints every clause with its tests, those without a test last.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
FOREIGN_FOLDER = "node_modules"


def covers(*clauses: str) -> pytest.MarkDecorator:
    """Mark a test with the clauses that it shows."""
    return pytest.mark.covers(*clauses)


def clauses() -> dict[str, str]:
    """What each clause is about, by its name."""
    lines = (TESTS / "clauses.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return {name: subject.strip() for name, _, subject in pairs}


def covered() -> dict[str, list[str]]:
    """The tests of each clause that a test names, read from the sources."""
    tests: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        if FOREIGN_FOLDER in path.parts:
            continue
        name = path.relative_to(TESTS.parent).as_posix()
        for test, clause in _marks(ast.parse(path.read_text(encoding="utf-8")).body, name):
            tests.setdefault(clause, []).append(test)
    return tests


def _marks(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        name = f"{prefix}::{node.name}"
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "covers":
                for argument in decorator.args:
                    yield name, ast.literal_eval(argument)
        if isinstance(node, ast.ClassDef):
            yield from _marks(node.body, name)


def main() -> None:
    tests = covered()
    for clause in clauses():
        if clause in tests:
            print(f"{clause}\n  " + "\n  ".join(tests[clause]))
    uncovered = {clause: subject for clause, subject in clauses().items() if clause not in tests}
    print(f"\n{len(uncovered)} of {len(clauses())} clauses without a test")
    for clause, subject in uncovered.items():
        print(f"  {clause}  {subject}")


if __name__ == "__main__":
    main()
