"""The projection by example: what folds in each API, and that the docs describe it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest

from contextfold.fold.messages import (
    FORMATS,
    OPEN_BRANCH,
    REASONS,
    CallOutcome,
    Format,
    Remembered,
    merged_outcomes,
    project,
    project_body,
)
from contextfold.fold.messages.own_tools import remembered_id
from tests.fold.messages.short_histories import (
    LIST,
    MODEL,
    SESSION,
    Message,
    body_of,
    branch,
    branch_result,
    every_format,
    model_turn,
    reasons,
    return_turn,
    say,
    sent,
    tool_results,
    work,
)
from tests.support.machine import ROOT

LEDGER = (ROOT / "src" / "contextfold" / "web" / "ledger.js").read_text(encoding="utf-8")
# Without the adapters, whose packages may not be installed.
PAGE = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8").partition("## Adapters")[0]


def test_formats_are_those_of_the_type_and_others_are_refused() -> None:
    assert get_args(Format) == FORMATS
    with pytest.raises(ValueError, match="unknown format"):
        project([], "soap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown format"):
        project_body(b"{}", "soap")  # type: ignore[arg-type]


@every_format
def test_messages_between_branch_and_return_are_left_out(format: Format) -> None:
    head, inside = [*say("go", format), *branch(format, "br_1")], [*work(format, "w1"), *work(format, "w2")]
    tail = [*return_turn(format, "br_1"), *say("next", format)]
    assert sent([*head, *inside, *tail], format) == head + tail
    receipt = project([*head, *inside, *tail], format).receipt
    (fold,) = receipt.folds
    assert (fold.branch_id, fold.first, fold.messages, fold.turns) == ("br_1", len(head), len(inside), 2)
    assert (receipt.turns_dropped, receipt.first_changed, receipt.reason) == (2, len(head), "")
    assert (receipt.messages_before, receipt.messages_after) == (len(head + inside + tail), len(head + tail))
    assert receipt.tokens_before - receipt.tokens_after in (fold.tokens, fold.tokens - 1)
    assert list(receipt.header_fields()) == [
        "tokens_before",
        "tokens_after",
        "turns_dropped",
        "results_left_out",
        "first_changed",
        "reason",
    ]
    assert receipt.header_fields()["reason"] is None


@every_format
@pytest.mark.parametrize(
    "server",
    [
        "",
        "mcp__contextfold__",
        "mcp_contextfold_",
        "contextfold.",
        "MCP:",
        "x/",
        "my-",
        "mcp0_",
        "my_",
        "context_fold_",
    ],
)
def test_a_clients_prefix_does_not_hide_our_tools(format: Format, server: str) -> None:
    head = branch(format, "br_1", tool=f"{server}context_branch")
    tail = return_turn(format, "br_1", tool=f"{server}context_return")
    assert sent([*head, *work(format, "w"), *tail], format) == head + tail


@every_format
@pytest.mark.parametrize("tool", ["context_branches", "Xcontext_branch", "context_branch2", ""])
def test_tools_with_similar_names_are_not_ours(format: Format, tool: str) -> None:
    messages = [*branch(format, "br_1", tool=tool), *work(format, "w"), *return_turn(format, "br_1")]
    assert sent(messages, format) == messages
    assert project(messages, format).session_id is None


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
    head, tail = (
        branch(format, "br_1", wrap(branch_result("br_1"))),
        return_turn(format, "br_1", wrap(branch_result("br_1"))),
    )
    assert sent([*head, *work(format, "w"), *tail], format) == head + tail


@every_format
@pytest.mark.parametrize(
    "result",
    [
        "Branch not found: br_1",
        json.dumps({"error": {"code": -32003, "data": {"branch_id": "br_1"}}}),
        json.dumps({"isError": True, "content": branch_result("br_1")}),
        branch_result("br_1", current_status="folded"),
        "",
        None,
        [{"type": "image"}],
    ],
)
def test_a_failed_return_closes_nothing(format: Format, result: Any) -> None:
    messages = [*branch(format, "br_1"), *work(format, "w"), *model_turn(format, ("r", "context_return"))]
    messages += tool_results(format, ("r", result))
    assert sent(messages, format) == messages
    assert [span.branch_id for span in project(messages, format).threads] == [None, "br_1"]


def test_a_result_marked_as_an_error_opens_nothing() -> None:
    messages = [*model_turn("anthropic", ("b", "context_branch"))]
    messages += tool_results("anthropic", ("b", branch_result("br_1")), failed=True)
    messages += [*work("anthropic", "w"), *return_turn("anthropic", "br_1")]
    assert sent(messages, "anthropic") == messages


def test_library_and_proxy_read_an_is_error_that_is_no_boolean_the_same_way() -> None:
    messages = [*branch("anthropic", "br_1"), *work("anthropic", "w"), *return_turn("anthropic", "br_1")]
    messages[-1]["content"][0]["is_error"] = 0
    assert sent(messages, "anthropic") == messages


@every_format
def test_a_tool_name_that_ends_with_the_server_is_ours(format: Format) -> None:
    head = branch(format, "br_1", tool="context_branch_mcp_contextfold")
    tail = return_turn(format, "br_1", tool="context_return_mcp_contextfold")
    assert sent([*head, *work(format, "w"), *tail], format) == head + tail


def tools_of(format: Format, *names: str) -> list[Message]:
    declared = [{"name": name} for name in names]
    if format == "gemini":
        return [{"functionDeclarations": declared}]
    return [{"type": "function", "function": each} for each in declared] if format == "openai-chat" else declared


@every_format
def test_a_bare_prefix_is_confirmed_by_the_result_or_by_the_list_of_tools(format: Format) -> None:
    """A result that only names a branch may come from another server's tool."""
    short = json.dumps({"branch_id": "br_1", "session_id": SESSION})
    head = branch(format, "br_1", short, tool="my_context_branch")
    tail = return_turn(format, "br_1", short, tool="my_context_return")
    messages = [*head, *work(format, "w"), *tail]
    assert reasons(messages, format) == ["unconfirmed_tool", "unconfirmed_tool"]
    for names in (["my_context_branch"], ["my_context_branch", "context_return"]):
        assert not project(messages, format, tools=tools_of(format, *names)).changed
    tools = tools_of(format, "my_context_branch", "my_context_return", "Bash")
    assert project(messages, format, tools=tools).messages == head + tail
    for tools_come_last in (False, True):
        members = (
            {"tools": tools, LIST[format]: messages}
            if not tools_come_last
            else {LIST[format]: messages, "tools": tools}
        )
        projected = project_body(json.dumps({"model": MODEL, **members}).encode(), format)
        assert json.loads(projected.body)[LIST[format]] == head + tail


@every_format
def test_a_return_from_a_branch_that_is_not_in_the_history_has_a_reason(format: Format) -> None:
    messages = [*branch(format, "br_1"), *work(format, "w"), *return_turn(format, "br_9")]
    assert sent(messages, format) == messages
    assert reasons(messages, format) == ["no_branch_point"]


@every_format
def test_an_open_branch_is_the_reason_if_there_is_no_other(format: Format) -> None:
    messages = [*branch(format, "br_1"), *work(format, "w")]
    receipt = project(messages, format).receipt
    assert (receipt.reason, receipt.skipped) == (OPEN_BRANCH, ())
    assert project(work(format, "w"), format).receipt.reason == ""


@every_format
def test_a_fold_leaves_out_the_tool_turns_since_the_users_last_message(format: Format) -> None:
    head = [*say("go", format), *model_turn(format, text="Sure."), *say("really", format)]
    fold = return_turn(format, "br_1", tool="context_fold")
    messages = [*head, *work(format, "w1"), *work(format, "w2"), *fold]
    assert sent(messages, format) == head + fold
    (folded,) = project(messages, format).receipt.folds
    assert (folded.branch_id, folded.first, folded.turns) == ("br_1", len(head), 2)
    again = return_turn(format, "br_2", tool="context_fold")
    assert sent([*messages, *work(format, "w3"), *again], format) == [*head, *fold, *again]
    more = [*messages, *model_turn(format, text="Done."), *say("next", format), *work(format, "w4"), *again]
    assert sent(more, format) == [*head, *fold, *model_turn(format, text="Done."), *say("next", format), *again]


def beside_result(format: Format, message: Message, text: str) -> Message:
    """The message with a text of the user after its results."""
    if format == "gemini":
        return {**message, "parts": [*message["parts"], {"text": text}]}
    return {**message, "content": [*message["content"], {"type": "text", "text": text}]}


@every_format
def test_user_messages_inside_a_branch_stay(format: Format) -> None:
    head, tail = [*say("go", format), *branch(format, "br_1")], return_turn(format, "br_1")
    question, no = model_turn(format, text="Shall I migrate prod?"), say("No! NEVER touch prod — é", format)
    messages = [*head, *work(format, "w1"), *question, *no, *work(format, "w2"), *tail]
    if format in ("openai-chat", "openai-responses"):
        assert sent(messages, format) == [*head, *no, *tail]
    else:
        merged = beside_result(format, head[-1], "No! NEVER touch prod — é")
        assert sent(messages, format) == [*head[:-1], merged, *tail]
        receipt = project(messages, format).receipt
        assert receipt.first_changed == len(head) - 1
        again = project_body(body_of([*head[:-1], merged, *tail], format), format)
        assert not again.changed


@pytest.mark.parametrize("format", ["anthropic", "gemini"])
def test_user_texts_beside_a_result_stay_and_texts_of_the_host_are_left_out(format: Format) -> None:
    head, tail = [*say("go", format), *branch(format, "br_1")], return_turn(format, "br_1")
    reminder = "<system-reminder>\nKeep the list of tasks.\n</system-reminder>\n"
    queued = "<system-reminder>The user sent the following message:\nstop\n</system-reminder>"
    around = "<system-reminder>x</system-reminder> stop <system-reminder>y</system-reminder>"
    work1, work2 = work(format, "w1"), work(format, "w2")
    for text in ("Use the other file.", reminder, queued, reminder + reminder, around):
        work1[-1] = beside_result(format, work1[-1], text)
    merged = head[-1]
    for text in ("Use the other file.", queued, around):
        merged = beside_result(format, merged, text)
    assert sent([*head, *work1, *work2, *tail], format) == [*head[:-1], merged, *tail]


@every_format
def test_a_turn_stays_if_its_result_ends_with_a_message_of_the_user(format: Format) -> None:
    """Claude Code puts it there for models that accept no instructions between turns."""
    reminder = "<system-reminder>\nKeep a list.\n</system-reminder>"
    quote = "<system-reminder>\nThe user sent a new message while you were working:\nNEVER.\n</system-reminder>"
    head, tail = branch(format, "br_1"), return_turn(format, "br_1")
    quoting_turn = work(format, "w2", f"text\n\n{quote}\n{reminder}\n")
    messages = [*say("go", format), *head, *work(format, "w1", reminder), *quoting_turn, *work(format, "w3"), *tail]
    assert sent(messages, format) == [*say("go", format), *head, *quoting_turn, *tail]
    receipt = project(messages, format).receipt
    assert [(fold.branch_id, fold.messages, fold.turns) for fold in receipt.folds] == [("br_1", 4, 2)]
    assert receipt.reason == ""


def test_an_instruction_that_quotes_the_user_stays_like_a_user_message() -> None:
    """Claude Code does so for newer models."""
    quote = "The user sent a new message while you were working:\nNEVER."
    head, tail = branch("anthropic", "br_1"), return_turn("anthropic", "br_1")
    instruction = [{"role": "system", "content": quote}]
    messages = [*say("go"), *head, *work("anthropic", "w1"), *instruction, *work("anthropic", "w2"), *tail]
    branched = {**head[1], "content": [*head[1]["content"], {"type": "text", "text": quote}]}
    assert sent(messages, "anthropic") == [*say("go"), head[0], branched, *tail]


def test_a_picture_in_a_user_message_inside_a_branch_stays() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 9000}}
    shown: Message = {"role": "user", "content": [picture, {"type": "text", "text": "like this"}]}
    head, tail = branch("anthropic", "br_1"), return_turn("anthropic", "br_1")
    messages = [*head, *model_turn("anthropic", text="How?"), shown, *work("anthropic", "w"), *tail]
    merged = {**head[-1], "content": [*head[-1]["content"], *shown["content"]]}
    assert sent(messages, "anthropic") == [head[0], merged, *tail]
    body = body_of(messages, "anthropic")
    receipt = project_body(body, "anthropic").receipt
    assert (
        abs(
            receipt.tokens_after - project_body(project_body(body, "anthropic").body, "anthropic").receipt.tokens_before
        )
        <= 1
    )


@pytest.mark.parametrize("is_hosted", [False, True])
def test_a_turn_that_found_tools_stays_so_that_the_model_keeps_them(is_hosted: bool) -> None:
    format: Format = "anthropic"
    reference = {"type": "tool_reference", "tool_name": "mcp__files__search"}
    if is_hosted:
        call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_regex", "input": {}}
        found = {"type": "tool_search_tool_search_result", "tool_references": [reference]}
        result = {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_1", "content": found}
        search = model_turn(format, ("s", "Bash"), beside=(call, result)) + tool_results(format, ("s", "done"))
    else:
        search = model_turn(format, ("s", "ToolSearch")) + tool_results(format, ("s", [reference]))
    fold = model_turn(format, ("f", "context_fold")) + tool_results(format, ("f", branch_result("br_1", folded_at=1)))
    messages = [*say("go"), *work(format, "a"), *search, *work(format, "b"), *fold]
    assert sent(messages, format) == [*say("go"), *search, *fold]


def test_items_of_hosted_tools_fold_with_their_turn() -> None:
    head, tail = branch("openai-responses", "br_1"), return_turn("openai-responses", "br_1")
    inside: list[Message] = [{"type": "mcp_call", "id": "m", "name": "x"}, {"type": "web_search_call", "id": "s"}]
    for kind in ("local_shell_call", "shell_call", "apply_patch_call", "computer_call"):
        inside += [
            {"type": kind, "call_id": "c", "action": {}},
            {"type": f"{kind}_output", "call_id": "c", "output": "x"},
        ]
    assert sent([*head, *inside, *tail], "openai-responses") == head + tail
    assert reasons([*head, *inside[:-1], *say("stop"), *tail], "openai-responses") == ["unbalanced"]


@pytest.mark.parametrize("format", ["anthropic", "gemini"])
def test_turns_with_results_that_a_resumed_host_sends_twice_fold(format: Format) -> None:
    name = "parts" if format == "gemini" else "content"

    def repeat(messages: list[Message]) -> list[Message]:
        """The host's messages with every result twice; one copy may have been shortened."""
        results = messages[1][name]
        return [messages[0], {**messages[1], name: [*results, *results]}]

    asked = say("go", format)
    shortened = repeat(work(format, "a"))
    shortened[1][name][1] = tool_results(format, ("a", "[cleared]"))[0][name][0]
    fold = repeat(return_turn(format, "br_1", tool="mcp__contextfold__context_fold"))
    assert sent([*asked, *repeat(work(format, "b")), *shortened, *fold], format) == [*asked, *fold]
    # A second result of a call in a later message still answers nothing.
    late = [*asked, *work(format, "b"), *say("on", format), *work(format, "b")[1:], *fold]
    assert sent(late, format) == late


def script_turn(call: str, script: str, printed: str) -> list[Message]:
    """A turn of Codex's default model: a script that calls tools, and what it printed."""
    parts = [{"type": "input_text", "text": "Script completed\nOutput:\n"}, {"type": "input_text", "text": printed}]
    return [
        {"type": "custom_tool_call", "call_id": call, "name": "exec", "namespace": "functions", "input": script},
        {"type": "custom_tool_call_output", "call_id": call, "output": parts},
    ]


FOLDS = "text(await tools.mcp__contextfold__context_fold({message: 'Fine.'}))"
FOLDED = json.dumps({"content": [{"type": "text", "text": json.dumps({"folded_at": "2026", "branch_id": "br_1"})}]})


@pytest.mark.parametrize(
    "script",
    [
        FOLDS,
        FOLDS.replace(".mcp__contextfold__context_fold", "['mcp__contextfold__context_fold'] "),
        f"text(await tools.exec_command({{cmd: 'make'}}))\n{FOLDS}",
    ],
)
def test_a_fold_that_a_script_makes_counts_if_the_script_prints_its_result(script: str) -> None:
    format: Format = "openai-responses"
    asked, work = say("go", format), script_turn("a", "text(await tools.exec_command({cmd: 'ls'}))", "a.txt")
    assert sent([*asked, *work, *script_turn("b", script, FOLDED)], format) == [
        *asked,
        *script_turn("b", script, FOLDED),
    ]
    unknown = [*asked, *work, *script_turn("b", script, "")]
    assert sent(unknown, format) == unknown
    assert reasons(unknown, format) == ["unconfirmed_tool"]


def test_a_script_that_only_mentions_a_fold_or_makes_two_folds_nothing() -> None:
    format: Format = "openai-responses"
    work = [*say("go", format), *script_turn("a", "text(await tools.exec_command({cmd: 'ls'}))", "a.txt")]
    for script in (f"{FOLDS}\n{FOLDS}", "text('mcp__contextfold__context_fold')", "text(await tools.context_folder())"):
        messages = [*work, *script_turn("b", script, FOLDED)]
        assert sent(messages, format) == messages


def test_an_answer_of_the_user_stays_if_a_script_asked_for_it() -> None:
    format: Format = "openai-responses"
    asks = script_turn("a", "text(await tools.mcp__ui__ask_user({question: 'Which?'}))", "The second one.")
    messages = [*say("go", format), *asks, *script_turn("b", "text(await tools.exec_command({cmd: 'ls'}))", "a.txt")]
    fold = script_turn("c", FOLDS, FOLDED)
    assert sent([*messages, *fold], format) == [*say("go", format), *asks, *fold]


@every_format
def test_remembered_outcomes_replace_results_that_a_host_masked(format: Format) -> None:
    head, tail = branch(format, "br_1"), return_turn(format, "br_1")
    inside = work(format, "w")
    outcomes = project([*head, *inside, *tail], format).outcomes
    head, tail = branch(format, "br_1", "[cleared]"), return_turn(format, "br_1", "[cleared]")
    messages = [*head, *inside, *tail]
    assert reasons(messages, format) == ["unreadable_result", "unreadable_result"]
    remembered = Remembered(merged_outcomes({}, outcomes))
    projection = project(messages, format, remembered=remembered)
    assert projection.messages == head + tail
    assert (
        json.loads(project_body(body_of(messages, format), format, remembered=remembered).body)[LIST[format]]
        == head + tail
    )
    assert projection.receipt.reason == ""
    assert projection.session_id == SESSION
    other = {remembered_id("rbr_1"): CallOutcome("return", "br_7")}
    ambiguous = Remembered(merged_outcomes(remembered.outcomes, other))
    assert not project(messages, format, remembered=ambiguous).changed


def test_calls_without_ids_are_paired_by_name_and_order() -> None:
    def call(*names: str) -> Message:
        return {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}}} for name in names]}

    def response(*results: tuple[str, str]) -> Message:
        parts = [{"functionResponse": {"name": name, "response": {"output": text}}} for name, text in results]
        return {"role": "user", "parts": parts}

    folded = json.dumps({"folded_at": "2026", "branch_id": "br_1"})
    head = [
        *say("go", "gemini"),
        call("Bash", "context_branch"),
        response(("Bash", "x"), ("context_branch", branch_result("br_1"))),
    ]
    inside = [call("Read", "Read"), response(("Read", "1"), ("Read", "2"))]
    tail = [call("context_return"), response(("context_return", folded))]
    assert sent([*head, *inside, *tail], "gemini") == head + tail
    assert reasons([*head, call("Read", "Read"), response(("Read", "1")), *tail], "gemini") == ["unbalanced"]


@every_format
def test_a_repeated_branch_call_does_not_move_the_start_of_the_branch(format: Format) -> None:
    again = [*model_turn(format, ("again", "context_branch")), *tool_results(format, ("again", branch_result("br_1")))]
    opened = [*branch(format, "br_1"), *work(format, "w"), *again]
    assert [span.branch_id for span in project(opened, format).threads] == [None, "br_1"]
    messages = [*opened, *return_turn(format, "br_1")]
    assert sent(messages, format) == [*branch(format, "br_1"), *return_turn(format, "br_1")]


@every_format
def test_a_rollback_closes_discarded_branches_and_leaves_the_target_open(format: Format) -> None:
    rollback_result = json.dumps({"rolled_back_to": "br_1", "branches_discarded": ["br_2"], "tokens_recovered": 1})
    rollback = [*model_turn(format, ("x", "context_rollback")), *tool_results(format, ("x", rollback_result))]
    messages = [*branch(format, "br_1"), *branch(format, "br_2"), *work(format, "w1"), *rollback]
    main, target = project(messages, format).threads
    assert (main.branch_id, target.branch_id) == (None, "br_1")
    assert set(range(len(messages) - len(rollback), len(messages))) <= set(target.places)
    late = [*messages, *return_turn(format, "br_2")]
    assert sent(late, format) == late
    assert sent([*messages, *return_turn(format, "br_1")], format) == [
        *branch(format, "br_1"),
        *return_turn(format, "br_1"),
    ]


@every_format
def test_an_unfinished_list_of_discarded_branches_is_ignored(format: Format) -> None:
    """Searching for its end from every such name would take time that grows with the square of the text."""
    rollback_result = '{"rolled_back_to":"br_1","branches_discarded":["br_1","branches_discarded":["br_2"]}'
    rollback = [*model_turn(format, ("x", "context_rollback")), *tool_results(format, ("x", rollback_result))]
    messages = [*branch(format, "br_1"), *branch(format, "br_2"), *work(format, "w1"), *rollback]
    assert [thread.branch_id for thread in project(messages, format).threads] == [None, "br_1"]


def test_messages_that_are_not_json_raise_no_error() -> None:
    loop: Message = {"role": "user", "content": "x"}
    loop["self"] = loop
    unserialisable = [loop, {"role": "user", "content": object()}, {"role": "user", "content": "\ud800"}]
    assert project(unserialisable, "anthropic").messages == unserialisable


def test_the_examples_of_the_docs_run_and_print_what_they_show(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, "messages.md", "exec"), names)
        elif kind == "text":
            assert capsys.readouterr().out == text
    assert {"python", "text"} <= {kind for kind, _ in blocks}


def test_the_docs_explain_every_reason() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert set(REASONS) <= set(explained)
    assert len(REASONS) == len(set(REASONS))


def test_the_dashboard_has_a_text_for_every_reason() -> None:
    words = LEDGER.split("const REASONS = {")[1].split("};")[0]
    assert re.findall(r"^  (\w+): \"", words, re.MULTILINE) == list(REASONS)
