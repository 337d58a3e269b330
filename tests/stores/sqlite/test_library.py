"""SQLite is imported without modules that a command does not need, and is the same module that others import."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
before = set(sys.modules)
{first}
import sqlite3 as ours
connection = ours.connect(":memory:")
for _ in range(3):
    for number in range(200):
        assert connection.execute(f"SELECT {{number}} + ?", (1,)).fetchone() == (number + 1,)
loaded = set(sys.modules) - before
import functools, sqlite3
assert functools.lru_cache.__module__ == "functools" and functools.wraps
assert ours.Error is sqlite3.Error and ours.Connection is sqlite3.Connection
assert sqlite3.connect(":memory:").execute("SELECT 2").fetchone() == (2,)
print(*sorted(loaded & {{"collections", "datetime", "functools", "sqlite3"}}))
"""


@pytest.mark.parametrize(
    ("first", "loaded"),
    [("", []), ("import functools", ["collections", "functools"]), ("import sqlite3", None)],
    ids=["nothing", "functools", "sqlite3"],
)
def test_a_process_has_one_sqlite_module_whatever_it_imported_before(first: str, loaded: list[str] | None) -> None:
    command = [sys.executable, "-I", "-c", SCRIPT.format(first=first)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert loaded is None or printed == loaded
