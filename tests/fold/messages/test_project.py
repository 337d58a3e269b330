"""The projection by example: what folds in each API, and that the pages tell it so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest
from anthropic.types import TextBlock, ToolUseBlock

from contextfold.fold.messages import FORMATS, REASONS, Format, project, project_body
from tests.fold.messages.projecting import (
    SESSION,
    Message,
    answered,
    asked,
    back,
    body_of,
    branch,
    every_format,
    named,
    reasons,
    say,
    sent,
    work,
)
from tests.support.clauses import covers
from tests.support.machine import ROOT

LEDGER = (ROOT / "src" / "contextfold" / "web" / "ledger.js").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")


def test_the_formats_are_those_of_the_type() -> None:
    assert get_args(Format) == FORMATS
    with pytest.raises(ValueError, match="unknown format"):
        project([], "soap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown format"):
        project_body(b"{}", "soap")  # type: ignore[arg-type]


@covers("proxy.md#library", "proxy.md#what-folds")
@every_format
def test_what_is_between_branch_and_return_is_left_out(format: Format) -> None:
    head, inside = [*say("go"), *branch(format, "br_1")], [*work(format, "w1"), *work(format, "w2")]
    tail = [*back(format, "br_1"), *say("next")]
    assert sent([*head, *inside, *tail], format) == head + tail
    receipt = project([*head, *inside, *tail], format).receipt
    (fold,) = receipt.folds
    assert (fold.branch_id, fold.first, fold.messages, fold.turns) == ("br_1", len(head), len(inside), 2)
    assert (receipt.turns_dropped, receipt.first_changed, receipt.reason) == (2, len(head), "")
    assert (receipt.messages_before, receipt.messages_after) == (len(head + inside + tail), len(head + tail))
    assert receipt.tokens_before - receipt.tokens_after in (fold.tokens, fold.tokens - 1)
    assert list(receipt.told()) == ["tokens_before", "tokens_after", "turns_dropped", "first_changed", "reason"]
    assert receipt.told()["reason"] is None


@every_format
def test_an_open_branch_stays_and_is_told_as_a_thread(format: Format) -> None:
    head, inside = [*say("go"), *branch(format, "br_1")], work(format, "w1")
    body = body_of([*head, *inside], format)
    projected = project_body(body, format)
    assert projected.body is body
    assert not projected.changed
    main, opened = projected.threads
    assert (main.branch_id, main.places) == (None, tuple(range(len(head))))
    assert (opened.branch_id, opened.places) == ("br_1", tuple(range(len(head), len(head + inside))))
    assert main.tokens + opened.tokens - projected.receipt.tokens_after in (0, 1)
    assert projected.session_id == SESSION
    assert json.loads(projected.original(0)) == head[0]


@covers("proxy.md#what-folds")
@every_format
def test_a_nested_branch_folds_first_and_goes_with_the_one_around_it(format: Format) -> None:
    outer, inner = [*say("go"), *branch(format, "br_1"), *work(format, "w1")], branch(format, "br_2")
    inner_end = back(format, "br_2")
    until_inner = [*outer, *inner, *work(format, "w2"), *inner_end]
    assert sent(until_inner, format) == [*outer, *inner, *inner_end]
    whole = [*until_inner, *work(format, "w3"), *back(format, "br_1")]
    assert sent(whole, format) == [*say("go"), *branch(format, "br_1"), *back(format, "br_1")]
    assert [fold.branch_id for fold in project(whole, format).receipt.folds] == ["br_1"]


@every_format
def test_returning_from_the_outer_branch_closes_what_is_open_in_it(format: Format) -> None:
    messages = [*branch(format, "br_1"), *branch(format, "br_2"), *work(format, "w"), *back(format, "br_1")]
    assert sent(messages, format) == [*branch(format, "br_1"), *back(format, "br_1")]
    assert [span.branch_id for span in project(messages, format).threads] == [None]


@covers("proxy.md#what-folds")
@every_format
@pytest.mark.parametrize("server", ["", "mcp__contextfold__", "mcp_contextfold_", "contextfold.", "MCP:", "x/", "my-"])
def test_a_clients_prefix_does_not_hide_our_tools(format: Format, server: str) -> None:
    head = branch(format, "br_1", tool=f"{server}context_branch")
    tail = back(format, "br_1", tool=f"{server}context_return")
    assert sent([*head, *work(format, "w"), *tail], format) == head + tail


@every_format
@pytest.mark.parametrize("tool", ["my_context_branch", "context_branches", "Xcontext_branch", "context_branch2", ""])
def test_other_tools_are_not_ours(format: Format, tool: str) -> None:
    messages = [*branch(format, "br_1", tool=tool), *work(format, "w"), *back(format, "br_1")]
    assert sent(messages, format) == messages
    assert project(messages, format).session_id is None


@covers("proxy.md#what-folds")
@every_format
@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: f"{text}\n\nBranch br_ff is open.",
        lambda text: json.dumps({"result": text}),
        lambda text: json.dumps({"content": json.dumps([{"type": "text", "text": text}])}),
        lambda text: str(json.loads(text)),
        lambda text: json.dumps({"error": None, "isError": False, "structured": json.loads(text)}),
        lambda text: [{"type": "text", "text": text}, {"type": "text", "text": "Go on."}],
    ],
)
def test_ids_are_found_however_a_client_wraps_a_result(format: Format, wrap: Callable[[str], Any]) -> None:
    head, tail = branch(format, "br_1", wrap(named("br_1"))), back(format, "br_1", wrap(named("br_1")))
    assert sent([*head, *work(format, "w"), *tail], format) == head + tail


@every_format
@pytest.mark.parametrize(
    "told",
    [
        "Branch not found: br_1",
        json.dumps({"error": {"code": -32003, "data": {"branch_id": "br_1"}}}),
        json.dumps({"isError": True, "content": named("br_1")}),
        named("br_1", current_status="folded"),
        "",
        None,
        [{"type": "image"}],
    ],
)
def test_a_failed_return_closes_nothing(format: Format, told: Any) -> None:
    messages = [*branch(format, "br_1"), *work(format, "w"), *asked(format, ("r", "context_return"))]
    messages += answered(format, ("r", told))
    assert sent(messages, format) == messages
    assert [span.branch_id for span in project(messages, format).threads] == [None, "br_1"]


def test_a_result_marked_as_an_error_opens_nothing() -> None:
    messages = [*asked("anthropic", ("b", "context_branch"))]
    messages += answered("anthropic", ("b", named("br_1")), failed=True)
    messages += [*work("anthropic", "w"), *back("anthropic", "br_1")]
    assert sent(messages, "anthropic") == messages


def test_what_is_no_mark_is_read_the_same_way_by_library_and_proxy() -> None:
    messages = [*branch("anthropic", "br_1"), *work("anthropic", "w"), *back("anthropic", "br_1")]
    messages[-1]["content"][0]["is_error"] = 0
    assert sent(messages, "anthropic") == messages


@every_format
def test_an_unknown_branch_is_ignored(format: Format) -> None:
    messages = [*branch(format, "br_1"), *work(format, "w"), *back(format, "br_9")]
    assert sent(messages, format) == messages
    assert reasons(messages, format) == []


@every_format
def test_a_branch_asked_for_again_began_the_first_time(format: Format) -> None:
    again = [*asked(format, ("again", "context_branch")), *answered(format, ("again", named("br_1")))]
    opened = [*branch(format, "br_1"), *work(format, "w"), *again]
    assert [span.branch_id for span in project(opened, format).threads] == [None, "br_1"]
    messages = [*opened, *back(format, "br_1")]
    assert sent(messages, format) == [*branch(format, "br_1"), *back(format, "br_1")]


@every_format
def test_a_rollback_takes_discarded_branches_off_and_leaves_the_target_open(format: Format) -> None:
    undone = json.dumps({"rolled_back_to": "br_1", "branches_discarded": ["br_2"], "tokens_recovered": 1})
    rollback = [*asked(format, ("x", "context_rollback")), *answered(format, ("x", undone))]
    messages = [*branch(format, "br_1"), *branch(format, "br_2"), *work(format, "w1"), *rollback]
    main, target = project(messages, format).threads
    assert (main.branch_id, target.branch_id) == (None, "br_1")
    assert set(range(len(messages) - len(rollback), len(messages))) <= set(target.places)
    late = [*messages, *back(format, "br_2")]
    assert sent(late, format) == late
    assert sent([*messages, *back(format, "br_1")], format) == [*branch(format, "br_1"), *back(format, "br_1")]


@every_format
def test_a_list_of_discarded_branches_that_does_not_end_tells_nothing(format: Format) -> None:
    """To look for its end from every such name on would take a time that grows with the square of the text."""
    undone = '{"rolled_back_to":"br_1","branches_discarded":["br_1","branches_discarded":["br_2"]}'
    rollback = [*asked(format, ("x", "context_rollback")), *answered(format, ("x", undone))]
    messages = [*branch(format, "br_1"), *branch(format, "br_2"), *work(format, "w1"), *rollback]
    assert [thread.branch_id for thread in project(messages, format).threads] == [None, "br_1"]


@every_format
def test_what_was_sent_folded_is_sent_so_again_as_the_history_grows(format: Format) -> None:
    messages = [*say("go"), *branch(format, "br_1"), *work(format, "w1"), *branch(format, "br_2"), *work(format, "w2")]
    messages += [*back(format, "br_2"), *work(format, "w3"), *back(format, "br_1"), *work(format, "w4")]
    folded: set[int] = set()
    for count in range(len(messages) + 1):
        kept = {id(one) for one in project(messages[:count], format).messages}
        gone = {place for place in range(count) if id(messages[place]) not in kept}
        assert folded <= gone
        folded = gone
    assert folded


def test_what_the_official_clients_give_back_can_be_put_into_the_list() -> None:
    made = ToolUseBlock(type="tool_use", id="b", name="context_branch", input={})
    said = TextBlock(type="text", text="I branch.", citations=None)
    head = [{"role": "assistant", "content": [said, made]}, *answered("anthropic", ("b", named("br_1")))]
    tail = back("anthropic", "br_1")
    projection = project([*head, *work("anthropic", "w"), *tail], "anthropic")
    assert projection.messages == head + tail
    assert projection.messages[0] is head[0]
    assert projection.changed


def test_figures_never_fail_for_what_is_no_json() -> None:
    loop: Message = {"role": "user", "content": "x"}
    loop["self"] = loop
    odd = [loop, {"role": "user", "content": object()}, {"role": "user", "content": "\ud800"}]
    assert project(odd, "anthropic").messages == odd


@covers("proxy.md#library")
def test_the_code_of_the_page_runs_and_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, "messages.md", "exec"), names)
        elif kind == "text":
            assert capsys.readouterr().out == text
    assert {"python", "text"} <= {kind for kind, _ in blocks}


def test_the_page_explains_every_reason() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert set(REASONS) <= set(explained)
    assert len(REASONS) == len(set(REASONS))


def test_the_dashboard_has_words_for_every_reason() -> None:
    words = LEDGER.split("const REASONS = {")[1].split("};")[0]
    assert re.findall(r"^  (\w+): \"", words, re.MULTILINE) == list(REASONS)
