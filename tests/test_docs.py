"""The documents can be followed: links have targets, commands exist, and the example runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from contextfold.cli.parse import parse
from contextfold.fold import session
from contextfold.fold.service import inbox
from contextfold.serve.http.exchange import RequestLimits
from tests.support.daemon import Daemon, Http
from tests.support.machine import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FENCED = re.compile(r"^( *)(`{3,})([a-z]*)\n(.*?)^\1\2$", re.MULTILINE | re.DOTALL)
COMMAND_WORDS = ("context", ".venv/bin/context", "contextfold")
# The parenthesis is for `<(…)` too.
BETWEEN_COMMANDS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "("}
TIMEOUT_S = 60


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """The page without fenced blocks and text between backticks, where brackets are not links."""
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", FENCED.sub("", text_of(page)))


def links_of(page: Path) -> list[str]:
    prose = prose_of(page)
    targets = re.findall(r"\]\(\s*<?([^)\s>]+)", prose) + re.findall(
        r"<(?:img|a)\b[^>]*?(?:src|href)=\"([^\"]+)", prose
    )
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors_of(page: Path) -> set[str]:
    """The anchors of the headings, as web sites derive them: lowercase letters, digits, and dashes for spaces."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text_of(page)), re.MULTILINE)
    names = (
        "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -_") for heading in headings
    )
    return {name.replace(" ", "-") for name in names}


def commands_of(page: Path) -> Iterator[list[str]]:
    """Each of our command lines in a fenced block of shell, as a list of words."""
    for _, _, kind, script in FENCED.findall(text_of(page)):
        for line in script.replace("\\\n", " ").splitlines() if kind == "sh" else ():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if word not in BETWEEN_COMMANDS and not re.fullmatch(r"[<>|&;()]+", word):
                    words.append(word)
                    continue
                while words and re.fullmatch(r"\w+=.*", words[0]):
                    words.pop(0)
                if words and words[0] in COMMAND_WORDS:
                    yield words[1:]
                words = []


@pytest.mark.parametrize("name", NAMES)
def test_every_link_and_picture_has_a_target(name: str) -> None:
    page = ROOT / name
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        if anchor:
            assert anchor in anchors_of(target), link


def test_the_search_for_links_works() -> None:
    """A search that finds no links would also find no broken ones."""
    links = {link for page in PAGES for link in links_of(page)}
    assert {"images/concepts.svg", "../examples/loop.py", "folding.md#tools", "images/tree-narrow.png"} <= links


@pytest.mark.parametrize("name", NAMES)
def test_every_command_line_can_be_parsed(name: str) -> None:
    for words in commands_of(ROOT / name):
        parse(words)


def test_the_search_for_command_lines_works() -> None:
    commands = [words for page in PAGES for words in commands_of(page)]
    assert ["install", "claude-code", "--dry-run"] in commands
    # This command follows a variable assignment.
    assert ["serve"] in commands
    # This command follows a pipe.
    assert ["hook", "claude-code", "--url", "http://localhost:9090"] in commands
    # This command is in parentheses.
    assert ["completion", "bash"] in commands


def test_every_page_can_be_reached_from_another() -> None:
    for page in DOCS.glob("*.md"):
        others = (other for other in PAGES if other != page)
        assert any(
            (other.parent / link.partition("#")[0]).resolve() == page for other in others for link in links_of(other)
        ), page


def test_drawings_are_well_formed_and_have_a_title_and_a_description() -> None:
    drawings = list((DOCS / "images").glob("*.svg"))
    assert drawings
    for path in drawings:
        root = ElementTree.parse(path).getroot()
        texts = {child.tag.rpartition("}")[2]: child.text for child in root}
        assert texts.get("title")
        assert texts.get("desc")
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", path.read_text(encoding="utf-8")), (
            "no outside requests"
        )


def test_documented_limits_are_those_of_the_code() -> None:
    daemon, capture = text_of(DOCS / "daemon.md"), text_of(DOCS / "decisions" / "0009-capture.md")
    waiting = f"{inbox.ITEMS_MAX:,}", f"{inbox.BYTES_MAX >> 20} MiB"
    assert f"| hosts' reports received and not yet written | {', '.join(waiting)} | |" in daemon
    assert f"At most {waiting[0]} reports or {waiting[1]} wait" in capture
    share = f"{inbox.OWNER_ITEMS_MAX:,}, {inbox.OWNER_BYTES_MAX >> 20} MiB"
    assert f"| an owner's share of those | {share} | |" in daemon
    assert (
        f"| {RequestLimits().streams:,} | |\n| of those an owner's | {RequestLimits().streams_of_owner} | |" in daemon
    )
    assert f"among the last {session.CALL_IDS_REMEMBERED} of a session" in capture
    assert f"among the last {session.CALL_IDS_REMEMBERED} of the session" in text_of(DOCS / "folding.md")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    running = Daemon(tmp_path / "daemon")
    yield running
    running.stop()


def loop(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs the example with only the standard library; installed packages cannot be imported."""
    words = [sys.executable, "-I", "-S", str(ROOT / "examples" / "loop.py"), *argv]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_the_example_loop_prints_the_documented_output_and_is_recorded(daemon: Daemon, tmp_path: Path) -> None:
    done = loop(str(daemon.port), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"```text\n{done.stdout}```" in text_of(DOCS / "getting-started.md")
    http = Http(daemon.port)
    (row,) = http.ask("GET", "/v1/sessions").json["sessions"]
    http.close()
    assert row["project_path"] == str(tmp_path)
    assert (row["folded_tokens"], row["tokens_saved"], row["total_tokens"]) == (8220, 8207, 18)
    assert (row["operations"], row["failed_operations"], row["folded_branches"]) == (3, 1, 1)


def test_the_example_loop_prints_the_error_of_a_daemon_that_refuses_it(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    strict = Daemon(tmp_path / "daemon", "--token-file", str(tokens))
    try:
        done = loop(str(strict.port), cwd=tmp_path)
    finally:
        strict.stop()
    assert done.returncode == 1
    assert done.stderr.startswith("A valid token is needed")
