"""The reference page is what the tool writes, and pages name metrics that exist."""

from __future__ import annotations

import re

from contextfold.serve.ops.metrics import Metrics
from contextfold.stores.nats.streams import SubjectNames
from tests.support.machine import ROOT
from tools import reference


def test_the_committed_page_is_what_the_tool_writes() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert page == reference.page(), f"docs/reference.md is old: run `{reference.COMMAND}`"
    assert "==SUPPRESS==" not in page


def test_every_route_has_a_purpose() -> None:
    assert [(method, path) for method, path, purpose in reference.routes() if not purpose] == []


def test_every_metric_that_a_page_names_exists() -> None:
    # Names of streams have the same form as those of metrics.
    names = {metric.name for metric in Metrics([]).figures} | SubjectNames("contextfold").subjects.keys()
    for page in (ROOT / "docs").rglob("*.md"):
        for name in re.findall(r"\bcontextfold_[a-z_]+[a-z]", page.read_text(encoding="utf-8")):
            assert re.sub("_(bucket|sum|count)$", "", name) in names, (page, name)
