"""`--recall-at-start`: the first prompt of a session gets one line about related folds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contextfold.common.tokens import FOLD_COUNTERS
from tests.serve.reporting import ApiReader, HookedAgent
from tests.support.daemon import Daemon, Reply

RELATED_PROMPT = "Why does the checkout page log users out after a minute?"


@pytest.fixture(scope="module")
def recalling_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("memory"), "--recall-at-start", "on") as daemon:
        _make_folds(daemon)
        yield daemon


def _make_folds(daemon: Daemon) -> None:
    with HookedAgent(daemon, "/work/shop", "earlier") as agent:
        for description, summary in (
            ("Find out why checkout logs users out", "Sessions live a minute: the page passes minutes as seconds."),
            ("Upgrade the payment client", "Upgraded; tests pass."),
            ("Checkout page: log \u202eout\x1b[31m button", "It logs users out on the page."),
        ):
            agent.mcp.call("context_branch", description=description, prompt="Please.", project_path=agent.folder)
            agent.mcp.call("context_return", message=summary, project_path=agent.folder)


def added_context(reply: Reply) -> str:
    return str(reply.json.get("hookSpecificOutput", {}).get("additionalContext", ""))


def test_the_first_prompt_gets_a_line_about_related_folds_which_is_counted(recalling_daemon: Daemon) -> None:
    agent, api = HookedAgent(recalling_daemon, "/work/shop", "first"), ApiReader(recalling_daemon)
    assert added_context(agent.report("SessionStart", source="startup")) == ""
    line = added_context(agent.report("UserPromptSubmit", prompt=RELATED_PROMPT))
    assert line.count("br_") == 2
    assert "Find out why checkout logs users out" in line
    assert "payment" not in line
    # Control characters and changes of the writing direction are removed.
    assert "Checkout page: log out [31m button" in line
    count = FOLD_COUNTERS["v0"]
    (session,) = [row for row in api.sessions() if row["conversation"] == "first"]
    assert session["total_tokens"] == count(RELATED_PROMPT) + count(line)
    assert added_context(agent.report("UserPromptSubmit", prompt=f"Again: {RELATED_PROMPT}")) == ""
    agent.close()
    api.http.close()


@pytest.mark.parametrize(
    ("source", "prompt", "folder"),
    [
        ("startup", "Write a poem about the sea.", "/work/shop"),
        ("startup", "the", "/work/shop"),
        ("startup", RELATED_PROMPT, "/work/elsewhere"),
        ("resume", RELATED_PROMPT, "/work/shop"),
    ],
)
def test_there_is_no_line_without_related_folds_or_for_a_resumed_session(
    recalling_daemon: Daemon, source: str, prompt: str, folder: str
) -> None:
    with HookedAgent(recalling_daemon, folder, f"{source} {prompt} {folder}") as agent:
        agent.report("SessionStart", source=source)
        assert added_context(agent.report("UserPromptSubmit", prompt=prompt)) == ""


def test_nothing_is_added_by_default(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        _make_folds(daemon)
        with HookedAgent(daemon, "/work/shop", "first") as agent:
            agent.report("SessionStart", source="startup")
            assert added_context(agent.report("UserPromptSubmit", prompt=RELATED_PROMPT)) == ""
