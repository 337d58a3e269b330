"""Every normative sentence of the seeds and the specification names the test that shows it, and none is forgotten.

tests/requirements.toml holds the sentences. Each `[[requirement]]` names its tests, or, in `later`, the capability that
is still to come. Where the documents themselves are at hand, both are compared: a sentence must stand there word for
word, and what is left of a document after all its sentences are taken out must be headings and punctuation.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import ROOT, SHARED

TABLE: dict[str, list[dict[str, Any]]] = tomllib.loads(
    (ROOT / "tests" / "requirements.toml").read_text(encoding="utf-8")
)
REQUIREMENTS = TABLE["requirement"]
INFORMATIVE = TABLE["informative"]  # sentences that ask for nothing, with the reason
SOURCES = sorted({entry["source"] for entry in REQUIREMENTS})


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file, as pytest names them, without parameters."""
    return frozenset(_names(ast.parse((ROOT / file).read_text(encoding="utf-8")).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _names(node.body, f"{prefix}{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield prefix + node.name


def words(text: str) -> str:
    """A text without its line breaks and markup, so that a sentence can be found wherever it was wrapped."""
    return " ".join(re.sub(r"[*`>|#]", " ", text).split())


def test_every_requirement_names_tests_that_exist_or_says_what_is_to_come() -> None:
    for entry in REQUIREMENTS:
        assert bool(entry.get("tests")) != bool(entry.get("later")), entry["clause"]
        for test in entry.get("tests", []):
            file, _, name = test.partition("::")
            assert name in names_in(file), f"{test} is not there, for: {entry['clause']}"


def test_no_requirement_stands_twice() -> None:
    seen = [(entry["source"], words(entry["clause"])) for entry in (*REQUIREMENTS, *INFORMATIVE)]
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("source", SOURCES)
def test_the_table_and_the_document_are_in_step(source: str) -> None:
    path = next(iter(Path(SHARED).glob(f"{source}*")), None)
    if path is None:
        pytest.skip("the document is not beside this checkout")
    text = re.sub(r"^#.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    left = words(text)
    entries = [entry for entry in (*REQUIREMENTS, *INFORMATIVE) if entry["source"] == source]
    for clause in sorted((words(entry["clause"]) for entry in entries), key=len, reverse=True):
        assert clause in left, f"not in {source}: {clause}"
        left = left.replace(clause, "\n", 1)
    forgotten = [piece for piece in left.split("\n") if re.search(r"\w{2,}", piece)]
    assert forgotten == []
