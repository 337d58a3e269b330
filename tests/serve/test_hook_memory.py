"""A session that begins with memory: one line about earlier folds at its first prompt, if the user wants it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contextfold.common.token_counter import COUNTERS
from tests.serve.reporting import HookedAgent, Onlooker
from tests.support.daemon import Daemon, Reply

FITTING = "Why does the checkout page log users out after a minute?"


@pytest.fixture(scope="module")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("memory"), "--recall-at-start", "on")
    _fold_some(daemon)
    yield daemon
    assert daemon.stop() == 0


def _fold_some(daemon: Daemon) -> None:
    agent = HookedAgent(daemon, "/work/shop", "earlier")
    for description, summary in (
        ("Find out why checkout logs users out", "Sessions live a minute: the page passes minutes as seconds."),
        ("Upgrade the payment client", "Upgraded; tests pass."),
        ("Checkout page: log \u202eout\x1b[31m button", "It logs users out on the page."),
    ):
        agent.mcp.call("context_branch", description=description, prompt="Please.", project_path=agent.folder)
        agent.mcp.call("context_return", message=summary, project_path=agent.folder)
    agent.close()


def line_of(reply: Reply) -> str:
    return str(reply.json.get("hookSpecificOutput", {}).get("additionalContext", ""))


def test_the_first_prompt_is_answered_with_folds_that_fit_and_the_line_is_counted(remembering: Daemon) -> None:
    agent, look = HookedAgent(remembering, "/work/shop", "first"), Onlooker(remembering)
    before = look.session("/work/shop")["total_tokens"]
    assert line_of(agent.tell("SessionStart", source="startup")) == ""
    line = line_of(agent.tell("UserPromptSubmit", prompt=FITTING))
    assert line.count("br_") == 2
    assert "Find out why checkout logs users out" in line
    assert "payment" not in line
    # What could act in a terminal or turn the direction of a line is left out.
    assert "Checkout page: log out [31m button" in line
    count = COUNTERS["v0"]
    assert look.session("/work/shop")["total_tokens"] == before + count(FITTING) + count(line)
    assert line_of(agent.tell("UserPromptSubmit", prompt=f"Again: {FITTING}")) == ""
    agent.close()
    look.http.close()


@pytest.mark.parametrize(
    ("source", "prompt", "folder"),
    [
        ("startup", "Write a poem about the sea.", "/work/shop"),
        ("startup", "the", "/work/shop"),
        ("startup", FITTING, "/work/elsewhere"),
        ("resume", FITTING, "/work/shop"),
    ],
)
def test_there_is_no_line_where_nothing_fits_or_nothing_begins(
    remembering: Daemon, source: str, prompt: str, folder: str
) -> None:
    agent = HookedAgent(remembering, folder, f"{source} {prompt} {folder}")
    agent.tell("SessionStart", source=source)
    assert line_of(agent.tell("UserPromptSubmit", prompt=prompt)) == ""
    agent.close()


def test_nothing_is_added_unless_it_is_switched_on(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    _fold_some(daemon)
    agent = HookedAgent(daemon, "/work/shop", "first")
    agent.tell("SessionStart", source="startup")
    assert line_of(agent.tell("UserPromptSubmit", prompt=FITTING)) == ""
    agent.close()
    assert daemon.stop() == 0
