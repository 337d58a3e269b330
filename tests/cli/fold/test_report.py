"""`context fold report`: a session as a document. Quoted text is shown and never acts as Markdown, HTML or a script."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from contextfold.scrub.rules import Allowlist
from contextfold.scrub.scrubber import Scrubber, standard_scrubber
from tests.cli.fold.folds import PROJECT, StoreAgent
from tests.support.known_secrets import known_secrets
from tests.support.machine import Call

FENCE = re.compile(r"^(`{3,})text\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)
HOSTILE = (
    "closes #1, ask @everyone\n"
    "````\n# A heading of mine\n```text\n![x](https://evil.example/pixel)\n"
    "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\n"
    "\x1b]0;title\x07 \u202egnitirw \x00 end\r\n"
    "--- \n| a | b |\n<!-- hidden -->"
)
DESCRIPTION = "``tick` [link](javascript:alert(3)) <b onclick=x>&lt;\n# head \u2066"


class TagCollector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    path = tmp_path / "state.db"
    agent = StoreAgent(path)
    agent.branch(DESCRIPTION)
    agent.record("Bash", "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8")
    agent.fold(HOSTILE)
    agent.branch("Still open")
    return path


def report(call: Call, path: Path, *argv: str) -> str:
    ran = call("fold", "report", *argv, "--project", PROJECT, "--store", path)
    assert (ran.code, ran.err) == (0, "")
    return ran.out.decode()


def outside_code(markdown: str) -> str:
    """The text that a renderer interprets: everything outside fences and code spans."""
    without_fences = FENCE.sub("", markdown)
    return re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", without_fences)


def test_markdown_has_tree_summaries_and_figures_and_puts_quoted_text_into_code(call: Call, hostile: Path) -> None:
    text = report(call, hostile)
    (tree, summary) = FENCE.findall(text)
    assert "Still open" in tree[1]
    assert "active" in tree[1]
    # The whole summary is inside one fence, although it contains fences itself.
    assert summary[1].splitlines()[0] == "closes #1, ask @everyone"
    assert summary[1].splitlines()[-1] == "<!-- hidden -->"
    rendered = outside_code(text)
    assert not re.search(r"[<@\[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", rendered)
    assert [line for line in rendered.splitlines() if line.startswith("#")] == [
        "# Session report",
        "## Sent and saved",
        "## Branches",
        "## Folded work",
        "### 1. ",
    ]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert "secrets redacted: `1`" in text
    assert "Not measured" in text


def test_a_report_is_redacted_as_by_the_full_scrubber(call: Call, tmp_path: Path) -> None:
    """Rules are loaded only for texts that need them. Here some texts need rules and some do not."""
    secrets = [secret.text[:400] for secret in known_secrets(1)]
    texts = [*secrets[:40], "The timer was wrong.", "rotate the auth token"]
    path = tmp_path / "state.db"
    scrubber = standard_scrubber()

    # The texts are stored by a version that has no rules for them.
    agent = StoreAgent(path, scrubber=Scrubber((), Allowlist()))
    for text in texts:
        agent.branch(" ".join(text.split()))
        agent.fold(text)
    printed = json.loads(report(call, path, "--json"))
    assert [fold["summary"] for fold in printed["folds"]] == [scrubber.scrub(text).text for text in texts]
    descriptions = [scrubber.scrub(" ".join(text.split())).text for text in texts]
    assert [fold["description"] for fold in printed["folds"]] == descriptions
    assert printed["secrets_redacted"] >= len(texts) // 2


def test_html_is_one_page_that_loads_and_executes_nothing(call: Call, hostile: Path) -> None:
    text = report(call, hostile, "--format", "html")
    parser = TagCollector()
    parser.feed(text)
    parser.close()
    allowed = "html head meta title style body main h1 h2 h3 dl dt dd p pre footer"
    assert parser.tags <= set(allowed.split())
    assert parser.attributes <= {"lang", "charset", "http-equiv", "content", "name", "class"}
    assert "default-src 'none'" in text
    assert any("</pre><script>alert(1)</script>" in text_node for text_node in parser.texts)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_the_report_of_an_ended_session_has_its_last_tree(call: Call, tmp_path: Path) -> None:
    path, two_days_ago = tmp_path / "state.db", datetime.now(UTC) - timedelta(days=2)
    past_agent = StoreAgent(path, clock=lambda: two_days_ago)
    outer = past_agent.branch("Outer")
    inner = past_agent.branch("Inner")
    past_agent.fold("Inner was so.")
    past_agent.fold("Outer was so.")
    StoreAgent(path).end_idle()
    listed = json.loads(call("fold", "list", "--ended", "--project", PROJECT, "--store", path, "--json").out)
    (session,) = listed["sessions"]
    for argv in ((), (session["session_id"],)):
        printed_report = json.loads(report(call, path, *argv, "--json"))
        assert printed_report["session"]["ended_at"] == session["ended_at"]
        assert [fold["branch_id"] for fold in printed_report["folds"]] == [outer, inner]
        assert [fold["summary"] for fold in printed_report["folds"]] == ["Outer was so.", "Inner was so."]
        assert printed_report["tree"][1].startswith("   └─ folded")


def test_ended_sessions_are_listed_for_this_project_or_for_all(call: Call, tmp_path: Path) -> None:
    path, two_days_ago = tmp_path / "state.db", datetime.now(UTC) - timedelta(days=2)
    for project in ("/work/app", "/work/other"):
        StoreAgent(path, project, clock=lambda: two_days_ago).branch("Long ago")
    StoreAgent(path).end_idle()

    def projects(*argv: str) -> list[str]:
        ran = call("fold", "list", "--ended", *argv, "--store", path)
        assert ran.code == 0
        return [line.split()[0] for line in ran.out.decode().splitlines()]

    assert projects("--project", "/work/app") == ["project", "/work/app"]
    assert projects("--project", "/work/app/src") == ["project", "/work/app"]
    assert sorted(projects("--all")) == ["/work/app", "/work/other", "project"]
    nothing = call("fold", "list", "--ended", "--project", "/elsewhere", "--store", path)
    assert (nothing.code, nothing.out) == (0, b"")
    assert "--all" in nothing.err


def test_a_missing_session_is_exit_8(call: Call, hostile: Path) -> None:
    for argv in (["sess_none"], ["--session", "other"], ["--owner", "alice"]):
        ran = call("fold", "report", *argv, "--project", PROJECT, "--store", hostile)
        assert (ran.code, ran.out) == (8, b""), argv
