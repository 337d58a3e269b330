"""The projection by example: what folds in each API, what stays and why, and not a byte besides."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest
from anthropic.types import TextBlock, ToolUseBlock

from contextfold.fold.messages import FORMATS, IMAGE_TOKENS, REASONS, Format, project, project_body
from contextfold.fold.messages.body import MESSAGES_MAX, VALUES_MAX
from contextfold.nesting import DEPTH_MAX
from machine import ROOT

Message = dict[str, Any]
LEDGER = (ROOT / "src" / "contextfold" / "web" / "ledger.js").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
LIST = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input"}
SESSION = "sess_0123456789abcdef"
BINDING = "claude-opus-5-5"
every_format = pytest.mark.parametrize("format", FORMATS)


def asked(format: Format, *calls: tuple[str, str], text: str = "", beside: tuple[Message, ...] = ()) -> list[Message]:
    """A turn of the model: its calls as (id, tool)."""
    if format == "anthropic":
        said = [{"type": "text", "text": text}] if text else []
        made = [{"type": "tool_use", "id": call, "name": tool, "input": {}} for call, tool in calls]
        return [{"role": "assistant", "content": [*beside, *said, *made]}]
    if format == "openai-chat":
        named = [
            {"id": call, "type": "function", "function": {"name": tool, "arguments": "{}"}} for call, tool in calls
        ]
        return [{"role": "assistant", "content": text or None, **({"tool_calls": named} if named else {})}]
    spoken = [{"type": "message", "role": "assistant", "content": text}] if text else []
    items = [{"type": "function_call", "call_id": call, "name": tool, "arguments": "{}"} for call, tool in calls]
    return [*beside, *spoken, *items]


def answered(format: Format, *results: tuple[str, Any], failed: bool = False) -> list[Message]:
    if format == "anthropic":
        named = [{"type": "tool_result", "tool_use_id": call, "content": told} for call, told in results]
        return [{"role": "user", "content": [one | {"is_error": True} if failed else one for one in named]}]
    if format == "openai-chat":
        return [{"role": "tool", "tool_call_id": call, "content": told} for call, told in results]
    return [{"type": "function_call_output", "call_id": call, "output": told} for call, told in results]


def named(branch_id: str, **others: Any) -> str:
    return json.dumps({"branch_id": branch_id, "session_id": SESSION, "parent_branch_id": None, **others})


def work(format: Format, call: str, result: str = "done") -> list[Message]:
    return [*asked(format, (call, "Bash")), *answered(format, (call, result))]


def branch(format: Format, branch_id: str, told: Any = None, tool: str = "context_branch") -> list[Message]:
    return [
        *asked(format, (f"b{branch_id}", tool)),
        *answered(format, (f"b{branch_id}", named(branch_id) if told is None else told)),
    ]


def back(format: Format, branch_id: str, told: Any = None, tool: str = "context_return") -> list[Message]:
    result = json.dumps({"folded_at": "2026", "branch_id": branch_id}) if told is None else told
    return [*asked(format, (f"r{branch_id}", tool)), *answered(format, (f"r{branch_id}", result))]


def say(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def body_of(messages: list[Message], format: Format, **members: Any) -> bytes:
    return json.dumps({"model": "m", LIST[format]: messages, **members}, ensure_ascii=False).encode()


def sent(messages: list[Message], format: Format, **members: Any) -> list[Message]:
    """What is sent, the same by both ways in."""
    listed = project(messages, format)
    projected = project_body(body_of(messages, format, **members), format)
    assert json.loads(projected.body)[LIST[format]] == listed.messages
    assert projected.receipt.told().keys() == listed.receipt.told().keys()
    assert projected.receipt.skipped == listed.receipt.skipped
    assert {one.reason for one in listed.receipt.skipped} <= set(REASONS)
    found: list[Message] = listed.messages
    return found


def reasons(messages: list[Message], format: Format) -> list[str]:
    assert sent(messages, format) == messages
    return [one.reason for one in project(messages, format).receipt.skipped]


def test_the_formats_are_those_of_the_type() -> None:
    assert get_args(Format) == FORMATS
    with pytest.raises(ValueError, match="unknown format"):
        project([], "soap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown format"):
        project_body(b"{}", "soap")  # type: ignore[arg-type]


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
def test_a_shared_turn_stays_with_its_reason(format: Format) -> None:
    both = [("b", "context_branch"), ("w", "Bash")]
    shared = [*asked(format, *both), *answered(format, ("b", named("br_1")), ("w", "done"))]
    assert reasons([*shared, *work(format, "x"), *back(format, "br_1")], format) == ["shared_turn"]
    both = [("r", "context_return"), ("w", "Bash")]
    shared = [*asked(format, *both), *answered(format, ("r", named("br_1")), ("w", "done"))]
    messages = [*branch(format, "br_1"), *work(format, "x"), *shared]
    assert reasons(messages, format) == ["shared_turn"]
    assert project(messages, format).receipt.reason == "shared_turn"


@every_format
def test_a_pair_that_stays_goes_with_the_branch_around_it(format: Format) -> None:
    shared = asked(format, ("b", "context_branch"), ("w", "Bash"))
    shared += answered(format, ("b", named("br_2")), ("w", "done"))
    messages = [*branch(format, "br_1"), *shared, *work(format, "x"), *back(format, "br_2")]
    assert reasons(messages, format) == ["shared_turn"]
    messages += back(format, "br_1")
    assert sent(messages, format) == [*branch(format, "br_1"), *back(format, "br_1")]
    assert project(messages, format).receipt.skipped == ()


@every_format
def test_a_call_without_a_result_inside_stays(format: Format) -> None:
    messages = [*branch(format, "br_1"), *asked(format, ("w", "Bash")), *say("stop"), *back(format, "br_1")]
    assert reasons(messages, format) == ["unbalanced"]


@every_format
def test_a_result_without_a_call_inside_stays(format: Format) -> None:
    messages = [*branch(format, "br_1"), *work(format, "x"), *answered(format, ("w", "done")), *back(format, "br_1")]
    assert reasons(messages, format) == ["unbalanced"]


@every_format
def test_a_result_apart_from_its_call_stays(format: Format) -> None:
    messages = [*branch(format, "br_1"), *work(format, "x"), *asked(format, ("r", "context_return"))]
    messages += [*say("wait"), *answered(format, ("r", named("br_1")))]
    assert reasons(messages, format) == ["apart"]


def test_text_after_the_result_is_kept_with_it_and_text_before_it_makes_the_pair_stay() -> None:
    head, tail = branch("anthropic", "br_1"), back("anthropic", "br_1")
    reminder = {"type": "text", "text": "<system-reminder>x</system-reminder>"}
    head[-1]["content"].append(reminder)
    tail[-1]["content"].append(reminder)
    assert sent([*head, *work("anthropic", "w"), *tail], "anthropic") == head + tail
    tail[-1]["content"].reverse()
    assert reasons([*head, *work("anthropic", "w"), *tail], "anthropic") == ["shared_result"]


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_a_tool_of_the_provider_in_the_turn_of_the_return_makes_the_pair_stay(kind: str) -> None:
    tail = back("anthropic", "br_1")
    tail[0]["content"].insert(0, {"type": kind, "id": "s1", "name": "web_search", "input": {}})
    messages = [*branch("anthropic", "br_1"), *work("anthropic", "w"), *tail]
    assert reasons(messages, "anthropic") == ["shared_turn"]


def test_tools_of_the_provider_inside_go_with_their_turn() -> None:
    searched: Message = {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        ],
    }
    head, tail = branch("anthropic", "br_1"), back("anthropic", "br_1")
    assert sent([*head, searched, *say("go on"), *tail], "anthropic") == head + tail
    items: list[Message] = [{"type": "reasoning", "summary": []}, {"type": "web_search_call", "id": "ws"}]
    head, tail = branch("openai-responses", "br_1"), back("openai-responses", "br_1")
    assert sent([*head, *items, *say("go on"), *tail], "openai-responses") == head + tail


@pytest.mark.parametrize(
    "asked_for", [{"type": "server_tool_use", "id": "s1", "name": "code_execution", "input": {}}, None]
)
def test_a_tool_of_the_provider_whose_result_comes_in_a_later_turn_makes_the_pair_stay(asked_for: Message) -> None:
    """Code that the provider runs calls a tool of the client's, and ends only once it has that result."""
    head, tail = branch("anthropic", "br_1"), back("anthropic", "br_1")
    calling = work("anthropic", "w")
    calling[0]["content"][:0] = [asked_for] if asked_for else []
    tail[0]["content"].insert(0, {"type": "code_execution_tool_result", "tool_use_id": "s1", "content": []})
    assert reasons([*head, *calling, *tail], "anthropic") == ["unbalanced"]


@pytest.mark.parametrize(
    ("format", "strange"),
    [
        ("anthropic", {"role": "assistant", "content": [{"type": "hologram"}]}),
        ("anthropic", {"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}),
        ("anthropic", {"role": "narrator", "content": "x"}),
        ("anthropic", {"role": "user"}),
        ("anthropic", {"role": "system", "content": [{"type": "tool_addition"}]}),
        ("anthropic", {"role": "system", "content": "x", "output_config": {"effort": "low"}}),
        ("openai-chat", {"role": "function", "name": "f", "content": "x"}),
        ("openai-chat", {"role": "assistant", "function_call": {"name": "f", "arguments": ""}}),
        ("openai-chat", {"role": "assistant", "tool_calls": [{"type": "function"}]}),
        ("openai-chat", {"role": "tool", "content": "x"}),
        ("openai-responses", {"type": "item_reference", "id": "i"}),
        ("openai-responses", {"type": "mcp_call", "id": "i"}),
        ("openai-responses", {"type": "function_call", "name": "f"}),
        ("openai-responses", {"type": ["message"]}),
        ("openai-responses", {"role": {}, "content": "x"}),
        ("anthropic", "text"),
        ("openai-chat", 7),
        ("openai-responses", None),
        ("openai-responses", []),
    ],
)
def test_what_nobody_knows_inside_makes_the_pair_stay(format: Format, strange: Any) -> None:
    messages = [*branch(format, "br_1"), *work(format, "w"), strange, *back(format, "br_1")]
    assert reasons(messages, format) == ["unknown_content"]
    elsewhere = [strange, *say("go"), *branch(format, "br_1"), *work(format, "w"), *back(format, "br_1"), strange]
    assert len(sent(elsewhere, format)) == len(elsewhere) - 2


@pytest.mark.parametrize("format", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_inside_stay_where_they_are(format: Format, role: str) -> None:
    rule = {"role": role, "content": "Be brief."}
    head, tail = branch(format, "br_1"), back(format, "br_1")
    messages = [*head, *work(format, "w1"), rule, *work(format, "w2"), *tail]
    assert sent(messages, format) == [*head, rule, *tail]
    (fold,) = project(messages, format).receipt.folds
    assert (fold.messages, fold.turns, fold.first) == (4, 2, len(head))
    assert sent([*head, rule, *tail], format) == [*head, rule, *tail]
    assert project([*head, rule, *tail], format).receipt.folds == ()


def test_instructions_among_anthropics_messages_go_with_the_branch() -> None:
    rule = {"role": "system", "content": "PostToolUse hook additional context: x"}
    head, tail = branch("anthropic", "br_1"), back("anthropic", "br_1")
    messages = [*say("go"), *head, rule, *work("anthropic", "w1"), rule, *work("anthropic", "w2"), rule, *tail, rule]
    assert sent(messages, "anthropic") == [*say("go"), *head, *tail, rule]


def test_reasoning_stays_with_the_call_it_led_to() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "…"}
    head, tail = [*branch("openai-responses", "br_1")], [reasoning, *back("openai-responses", "br_1")]
    assert sent([reasoning, *head, reasoning, *work("openai-responses", "w"), *tail], "openai-responses") == [
        reasoning,
        *head,
        *tail,
    ]
    lost = [*head, *work("openai-responses", "w"), reasoning, *say("x"), *back("openai-responses", "br_1")]
    assert reasons(lost, "openai-responses") == ["unknown_content"]


def test_text_in_the_turn_of_the_return_stays_with_it() -> None:
    for format in FORMATS:
        head = branch(format, "br_1")
        tail = [*asked(format, ("r", "context_return"), text="That is it."), *answered(format, ("r", named("br_1")))]
        assert sent([*head, *work(format, "w"), *tail], format) == head + tail


def test_thinking_that_stays_is_untouched_and_one_that_is_bound_makes_the_pair_stay() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s=", "extra": {"é": [1, 2.50]}}
    head = branch("anthropic", "br_1")
    tail = [
        *asked("anthropic", ("r", "context_return"), beside=(thought,)),
        *answered("anthropic", ("r", named("br_1"))),
    ]
    messages = [*head, *work("anthropic", "w"), *tail]
    assert sent(messages, "anthropic") == head + tail
    assert project(messages, "anthropic", binds_thinking=True).messages == messages
    forgiving = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    for model, thinking, folds in (
        ("claude-sonnet-4-5-20250929", None, True),
        ("claude-opus-5", None, True),
        ("claude-opus-5-20270101", None, True),
        ("us.anthropic.claude-opus-5-5-v1:0", None, False),
        (BINDING, {"type": "adaptive"}, False),
        (BINDING, forgiving, True),
        ("claude-haiku-6", None, False),
        ("gpt-5.1", None, True),
    ):
        projected = project_body(body_of(messages, "anthropic", model=model, thinking=thinking), "anthropic")
        assert projected.changed == folds, model
        assert projected.model == model
        assert projected.receipt.reason == ("" if folds else "bound_thinking")
    around = [*branch("anthropic", "br_0"), *messages, *back("anthropic", "br_0")]
    projected = project_body(body_of(around, "anthropic", model=BINDING), "anthropic")
    assert [fold.branch_id for fold in projected.receipt.folds] == ["br_0"]
    assert projected.receipt.skipped == ()


ODD = """\ufeff{
 "system" : [ {"type":"text","text":"é \\u00e9 東京","cache_control":{"type":"ephemeral"}} ] ,"n":%s,
\t"messages"\t:[ %s\n ,%s  ,\r\n%s, %s,%s ,  %s ]
, "x" : -0.0e+1 , "thinking":{"type":"enabled"}}  \n"""


def odd_body() -> tuple[bytes, bytes]:
    """A body in nobody's hand, and what must be sent of it."""
    texts = [json.dumps(one, indent=1, ensure_ascii=False) for one in (*branch("anthropic", "br_1"),)]
    texts += [json.dumps(one, ensure_ascii=False).replace("Bash", "\\u0042ash é😀") for one in work("anthropic", "w")]
    texts += [json.dumps(one, separators=(" , ", " : ")) for one in back("anthropic", "br_1")]
    whole = (ODD.lstrip("\ufeff") % ("9" * 5000, *texts)).encode()
    first, last = whole.index(texts[2].encode()), whole.index(texts[4].encode())
    return whole, whole[:first] + whole[last:]


def test_not_a_byte_is_changed_besides() -> None:
    whole, left = odd_body()
    projected = project_body(whole, "anthropic")
    assert projected.body == left
    assert projected.changed
    again = project_body(left, "anthropic")
    assert again.body is left
    assert projected.receipt.tokens_before == -(-len(whole) // 4)
    assert again.receipt.tokens_before == projected.receipt.tokens_after == -(-len(left) // 4)
    assert projected.original(2).encode() in whole
    assert "é😀" in projected.original(2)


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


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not_json"),
        (b"nothing", "not_json"),
        (b"[]", "not_json"),
        (b'{"messages":[]', "not_json"),
        (b'{"messages":[]}x', "not_json"),
        (b'{"messages":[],}', "not_json"),
        (b'{"messages":[{},]}', "not_json"),
        (b'{"messages":[{}{}]}', "not_json"),
        (b'{"messages":[{},,{}]}', "not_json"),
        (b'{"messages" []}', "not_json"),
        (b"{1:[]}", "not_json"),
        (b'{"messages":[],"x":NaN}', "not_json"),
        (b'{"messages":[],"x":01}', "not_json"),
        (b'{"messages":[{"content":"\xff"}]}', "not_json"),
        (b'{"messages":[],"x":"\xed\xa0\x80"}', "not_json"),
        (b'{"messages":[],"x":"\xe6"}', "not_json"),
        (b'\xef\xbb\xbf{"messages":[]}', "not_json"),
        ('{"messages":[]}'.encode("utf-16"), "not_json"),
        (b'{"messages":[],"messages":[]}', "repeated_members"),
        (b'{"messages":[],"mess\\u0061ges":[]}', "repeated_members"),
        (b'{"messages":[{"role":"user","role":"user"}]}', "repeated_members"),
        (b'{"messages":[],"x":[{"a":{"b":1,"b":1}}]}', "repeated_members"),
        (b"{}", "no_messages"),
        (b'{"messages":"text"}', "no_messages"),
        (b'{"messages":{"0":{}}}', "no_messages"),
        (b'{"input":[]}', "no_messages"),
        (b'{"messages":[]}', ""),
        (b' {\n"messages"\t: [ ] } ', ""),
    ],
)
def test_a_body_that_cannot_be_read_passes_as_it_came(body: bytes, reason: str) -> None:
    projected = project_body(body, "anthropic")
    assert projected.body is body
    assert projected.receipt.reason == reason
    assert projected.receipt.told()["reason"] == (reason or None)
    assert projected.receipt.tokens_before == projected.receipt.tokens_after == -(-len(body) // 4)
    assert [span.branch_id for span in projected.threads] == [None]


@pytest.mark.parametrize("place", ["message", "member"])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_nesting_without_end_passes_as_it_came(place: str, brackets: tuple[str, str]) -> None:
    for depth, is_deep in ((DEPTH_MAX, False), (DEPTH_MAX + 1, True), (100_000, True)):
        deep = brackets[0] * (depth - 1) + "[]" + brackets[1] * (depth - 1)
        body = '{"messages":[%s],"x":%s}' % ((deep, "1") if place == "message" else ("", deep))
        assert project_body(body.encode(), "anthropic").receipt.reason == ("too_deep" if is_deep else ""), depth


def test_values_without_end_pass_as_they_came() -> None:
    flood = b'{"messages":[' + b"[]," * VALUES_MAX + b"[]]}"
    assert project_body(flood, "anthropic").receipt.reason == "too_many_values"
    text = b'{"messages":["' + b"[]" * VALUES_MAX + b'"]}'
    assert project_body(text, "anthropic").receipt.reason == ""
    numbers = b"1," * VALUES_MAX + b"1"
    assert project_body(b'{"messages":[],"x":[' + numbers + b"]}", "anthropic").receipt.reason == "too_many_values"
    assert project_body(b'{"messages":[],"x":["' + numbers + b'"]}', "anthropic").receipt.reason == ""


def test_messages_without_end_pass_as_they_came() -> None:
    for number, reason in ((MESSAGES_MAX, ""), (MESSAGES_MAX + 1, "too_many_values")):
        flood = b'{"messages":[' + b",".join([b"1"] * number) + b"]}"
        projected = project_body(flood, "anthropic")
        assert (projected.receipt.reason, projected.body is flood) == (reason, True), number


def test_a_history_that_the_provider_keeps_passes_as_it_came() -> None:
    messages = [*branch("openai-responses", "br_1"), *work("openai-responses", "w"), *back("openai-responses", "br_1")]
    for name, value in (("previous_response_id", "resp_1"), ("conversation", {"id": "conv_1"})):
        body = body_of(messages, "openai-responses", stream=True, **{name: value})
        projected = project_body(body, "openai-responses")
        assert projected.body is body
        assert projected.receipt.reason == "kept_elsewhere"
        assert (projected.model, projected.streams) == ("m", True)
        assert project_body(body_of(messages, "openai-responses", **{name: None}), "openai-responses").changed


def test_text_for_a_list_is_a_request_like_any_other() -> None:
    body = b'{"model":"m","input":"hello"}'
    assert project_body(body, "openai-responses").receipt.reason == ""
    assert project("hello", "openai-responses").messages == "hello"
    assert project("hello", "openai-responses").receipt.reason == ""
    assert project("hello", "anthropic").receipt.reason == "no_messages"
    assert project(None, "anthropic").receipt.reason == "no_messages"  # type: ignore[arg-type]


def test_a_files_base64_counts_as_a_picture_and_no_more() -> None:
    data = "A" * 100_000
    shown: dict[Format, list[Message]] = {
        "anthropic": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
            {
                "type": "tool_result",
                "tool_use_id": "w",
                "content": [{"type": "image", "source": {"type": "base64", "data": data}}],
            },
        ],
        "openai-chat": [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
            {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
            {"type": "file", "file": {"file_data": data}},
        ],
        "openai-responses": [{"type": "input_image", "image_url": f"data:image/png;base64,{data}"}],
    }
    for format, parts in shown.items():
        for part in parts:
            messages = [{"role": "user", "content": [part]}]
            for tokens in (
                project(messages, format).receipt.tokens_before,
                project_body(body_of(messages, format), format).receipt.tokens_before,
            ):
                assert IMAGE_TOKENS < tokens < IMAGE_TOKENS + 100
    text = [{"role": "user", "content": [{"type": "text", "text": f"data:image/png;base64,{data}"}]}]
    assert project(text, "anthropic").receipt.tokens_before > 25_000


def test_a_model_written_with_escapes_or_in_utf8_is_told() -> None:
    assert project_body('{"messages":[],"model":"モデル"}'.encode(), "anthropic").model == "モデル"
    assert project_body(b'{"messages":[],"model":"\\u30e2"}', "anthropic").model == "モ"
    assert project_body(b'{"messages":[],"model":7}', "anthropic").model == ""


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
