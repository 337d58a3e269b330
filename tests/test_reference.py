"""The reference page agrees with the code and is complete."""

from __future__ import annotations

import re
from pathlib import Path

from contextfold.errors import EXIT_CODES
from contextfold.serve.ops.metrics import Metrics
from contextfold.stores.nats.streams import SubjectNames
from tests.support.machine import ROOT, SOURCE
from tools import reference

PAGE: Path = ROOT / "docs" / "reference.md"


def test_the_committed_page_is_what_the_tool_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.page(), f"docs/reference.md is old: run `{reference.COMMAND}`"


def test_every_route_has_a_purpose() -> None:
    assert [(method, path) for method, path, purpose in reference.routes() if not purpose] == []


def test_every_error_is_on_the_page_once() -> None:
    page = PAGE.read_text(encoding="utf-8").partition("## Errors")[2]
    for code in EXIT_CODES:
        assert page.count(f"| `{code}` |") == 1


def test_every_log_event_is_documented() -> None:
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8").partition("## Logs")[2]
    documented = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)`", page))
    calls = [
        call
        for path in (SOURCE / "contextfold").rglob("*.py")
        for call in re.findall(r"\b(?:log|_line)\(\s*(\"[^)\n]*)", path.read_text(encoding="utf-8"))
    ]
    events = {event for call in calls for event in re.findall(r'"([a-z]+\.[a-z_]+|library|uncaught|tokens)"', call)}
    assert len(events) > 10
    assert events <= documented


def test_every_metric_that_a_page_names_exists() -> None:
    # Names of streams have the same form as those of metrics.
    names = {figure.name for figure in Metrics([]).figures} | SubjectNames("contextfold").subjects.keys()
    for page in (ROOT / "docs").rglob("*.md"):
        for name in re.findall(r"\bcontextfold_[a-z_]+[a-z]", page.read_text(encoding="utf-8")):
            assert re.sub("_(bucket|sum|count)$", "", name) in names, (page, name)


def test_links_from_other_pages_have_a_heading() -> None:
    """Links are resolved by heading; renaming a command must not leave a broken link."""
    page = PAGE.read_text(encoding="utf-8")
    anchors = {_anchor(line) for line in page.splitlines() if line.startswith("#")}
    for other in (ROOT / "docs").rglob("*.md"):
        for part in other.read_text(encoding="utf-8").split("reference.md#")[1:]:
            assert part.partition(")")[0] in anchors, other


def _anchor(heading: str) -> str:
    name = "".join(letter for letter in heading.lstrip("# ").lower() if letter.isalnum() or letter in " -_")
    return name.replace(" ", "-")
