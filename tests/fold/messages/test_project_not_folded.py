"""The projection by example: which branches are not folded and why, and what stays of a branch that is folded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from contextfold.fold.messages import Format, project, project_body
from tests.fold.messages.short_histories import (
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

BINDING = "claude-opus-5-5"


IRREGULAR_BRANCHES: dict[str, tuple[Callable[[Format], list[Message]], str]] = {
    # What follows the call that opened br_1, and why the branch stays.
    "an unanswered call": (
        lambda format: [*model_turn(format, ("w", "Bash")), *say("stop", format), *return_turn(format, "br_1")],
        "unbalanced",
    ),
    "a result without a call": (
        lambda format: [
            *work(format, "x"),
            *tool_results(format, ("w", "done")),
            *return_turn(format, "br_1"),
        ],
        "unbalanced",
    ),
    "a return apart from its result": (lambda format: late_return(format, "br_1"), "apart"),
    "a nested return apart from its result": (
        lambda format: [*branch(format, "br_2"), *late_return(format, "br_2")],
        "apart",
    ),
    "an unanswered call in a nested branch": (
        lambda format: [
            *branch(format, "br_2"),
            *work(format, "x"),
            *model_turn(format, ("y", "Bash")),
            *return_turn(format, "br_2"),
            *work(format, "z"),
        ],
        "unbalanced",
    ),
}


def late_return(format: Format, branch_id: str) -> list[Message]:
    call = [*work(format, "x"), *model_turn(format, ("r", "context_return"))]
    return [*call, *say("wait", format), *tool_results(format, ("r", branch_result(branch_id)))]


@every_format
@pytest.mark.parametrize("name", IRREGULAR_BRANCHES)
def test_an_irregular_branch_stays(format: Format, name: str) -> None:
    rest, reason = IRREGULAR_BRANCHES[name]
    assert reasons([*branch(format, "br_1"), *rest(format)], format) == [reason]


def test_a_prompt_between_calls_of_two_models_of_gemini_stays_at_the_beginning_of_the_running_turn() -> None:
    """The service refuses a running turn in which some calls are signed and some are not."""

    def signed(messages: list[Message]) -> list[Message]:
        for part in messages[0]["parts"]:
            part["thoughtSignature"] = "x="
        return messages

    opened, inside = [*say("go", "gemini"), *branch("gemini", "br_1")], work("gemini", "w")
    asked = [*model_turn("gemini", text="Which?"), *say("this", "gemini")]
    assert reasons([*opened, *inside, *asked, *signed(return_turn("gemini", "br_1"))], "gemini") == ["mixed_signatures"]
    # A turn that stays inside the branch counts, too.
    refused = tool_results("gemini", ("r", "Permission denied. The user said: no"), failed=True)
    kept = [*model_turn("gemini", ("r", "Bash")), *refused]
    opened[1:] = signed(branch("gemini", "br_1"))
    closing = [*asked, *signed(return_turn("gemini", "br_1"))]
    assert reasons([*opened, *inside, *asked, *kept, *closing], "gemini") == ["mixed_signatures"]
    # All that remains of the running turn is of one model. What an inner branch leaves out does not count.
    nested = [*signed(branch("gemini", "br_2")), *asked, *inside, *asked, *signed(return_turn("gemini", "br_2"))]
    folded = sent([*opened, *nested, *closing], "gemini")
    assert [content["role"] for content in folded] == ["user", "model", "user", "model", "user"]
    assert [part["text"] for part in folded[2]["parts"][1:]] == ["this", "this", "this"]


def test_text_beside_the_results_of_our_calls_stays_with_them() -> None:
    head, tail = branch("anthropic", "br_1"), return_turn("anthropic", "br_1")
    reminder = {"type": "text", "text": "<system-reminder>x</system-reminder>"}
    head[-1]["content"].append(reminder)
    tail[-1]["content"].append(reminder)
    assert sent([*head, *work("anthropic", "w"), *tail], "anthropic") == head + tail


@pytest.mark.parametrize(
    ("tool", "reason"),
    [("context_branch", "hosted_call"), ("s_context_fold", "unconfirmed_tool"), ("context_expand", ""), ("Read", "")],
)
def test_a_call_of_our_tool_by_the_provider_is_skipped_with_a_reason(tool: str, reason: str) -> None:
    item = {"type": "mcp_call", "id": "m", "server_label": "s", "name": tool, "output": branch_result("br_1")}
    called = {"type": "mcp_tool_use", "id": "m", "name": tool, "server_name": "s", "input": {}}
    result = {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": False, "content": []}
    turns: list[Message] = [{"role": "assistant", "content": [called, result, {"type": "text", "text": "Done."}]}]
    assert reasons([*say("go"), item, *say("on")], "openai-responses") == ([reason] if reason else [])
    assert reasons([*say("go"), *turns, *say("on")], "anthropic") == ([reason] if reason else [])


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_a_provider_tool_in_the_turn_of_the_return_prevents_folding(kind: str) -> None:
    tail = return_turn("anthropic", "br_1")
    tail[0]["content"].insert(0, {"type": kind, "id": "s1", "name": "web_search", "input": {}})
    messages = [*branch("anthropic", "br_1"), *work("anthropic", "w"), *tail]
    assert reasons(messages, "anthropic") == ["unbalanced"]


def test_provider_tools_inside_a_branch_fold_with_their_turn() -> None:
    searched: Message = {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        ],
    }
    head, tail = branch("anthropic", "br_1"), return_turn("anthropic", "br_1")
    words = {"type": "text", "text": "go on"}
    merged = [head[0], {**head[1], "content": [*head[1]["content"], words]}]
    assert sent([*head, searched, *say("go on"), *tail], "anthropic") == merged + tail
    items: list[Message] = [{"type": "reasoning", "summary": []}, {"type": "web_search_call", "id": "ws"}]
    head, tail = branch("openai-responses", "br_1"), return_turn("openai-responses", "br_1")
    assert sent([*head, *items, *say("go on"), *tail], "openai-responses") == [*head, *say("go on"), *tail]


@pytest.mark.parametrize(
    "server_call", [{"type": "server_tool_use", "id": "s1", "name": "code_execution", "input": {}}, None]
)
def test_a_provider_tool_whose_result_comes_in_a_later_turn_prevents_folding(server_call: Message) -> None:
    """Code that the provider runs calls a tool of the client, and ends only when it has the result."""
    head, tail = branch("anthropic", "br_1"), return_turn("anthropic", "br_1")
    turn_with_call = work("anthropic", "w")
    turn_with_call[0]["content"][:0] = [server_call] if server_call else []
    tail[0]["content"].insert(0, {"type": "code_execution_tool_result", "tool_use_id": "s1", "content": []})
    assert reasons([*head, *turn_with_call, *tail], "anthropic") == ["unbalanced"]


@pytest.mark.parametrize(
    ("format", "unknown"),
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
        ("openai-responses", {"type": "mcp_approval_request", "id": "i"}),
        ("openai-responses", {"type": "shell_call", "id": "i"}),
        ("gemini", {"role": "model", "parts": [{"hologram": {}}]}),
        ("gemini", {"role": "model", "parts": []}),
        ("gemini", {"role": "user", "parts": [{"functionResponse": {}}]}),
        ("gemini", {"role": "function", "parts": [{"text": "x"}]}),
        ("openai-responses", {"type": "function_call", "name": "f"}),
        ("openai-responses", {"type": ["message"]}),
        ("openai-responses", {"role": {}, "content": "x"}),
        ("anthropic", "text"),
        ("openai-chat", 7),
        ("openai-responses", None),
        ("openai-responses", []),
    ],
)
def test_unknown_content_inside_a_branch_prevents_folding(format: Format, unknown: Any) -> None:
    messages = [*branch(format, "br_1"), *work(format, "w"), unknown, *return_turn(format, "br_1")]
    assert reasons(messages, format) == ["unknown_content"]
    elsewhere = [
        unknown,
        *say("go", format),
        *branch(format, "br_1"),
        *work(format, "w"),
        *return_turn(format, "br_1"),
        unknown,
    ]
    assert len(sent(elsewhere, format)) == len(elsewhere) - 2


@pytest.mark.parametrize("format", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_inside_stay_where_they_are(format: Format, role: str) -> None:
    rule = {"role": role, "content": "Be brief."}
    head, tail = branch(format, "br_1"), return_turn(format, "br_1")
    messages = [*head, *work(format, "w1"), rule, *work(format, "w2"), *tail]
    assert sent(messages, format) == [*head, rule, *tail]
    (fold,) = project(messages, format).receipt.folds
    assert (fold.messages, fold.turns, fold.first) == (4, 2, len(head))
    assert sent([*head, rule, *tail], format) == [*head, rule, *tail]
    assert project([*head, rule, *tail], format).receipt.folds == ()


def test_instructions_among_anthropic_messages_fold_with_the_branch() -> None:
    rule = {"role": "system", "content": "PostToolUse hook additional context: x"}
    head, tail = branch("anthropic", "br_1"), return_turn("anthropic", "br_1")
    messages = [*say("go"), *head, rule, *work("anthropic", "w1"), rule, *work("anthropic", "w2"), rule, *tail, rule]
    assert sent(messages, "anthropic") == [*say("go"), *head, *tail, rule]


def test_reasoning_stays_with_the_call_it_led_to() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "…"}
    head, tail = [*branch("openai-responses", "br_1")], [reasoning, *return_turn("openai-responses", "br_1")]
    assert sent([reasoning, *head, reasoning, *work("openai-responses", "w"), *tail], "openai-responses") == [
        reasoning,
        *head,
        *tail,
    ]
    lost = [*head, *work("openai-responses", "w"), reasoning, *say("x"), *return_turn("openai-responses", "br_1")]
    assert reasons(lost, "openai-responses") == ["unknown_content"]


FORGIVING = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def thought(text: str) -> Message:
    return {"type": "thinking", "thinking": text, "signature": "s=", "extra": {"é": [1, 2.50]}}


def thinking_return() -> list[Message]:
    call = model_turn("anthropic", ("r", "context_return"), beside=(thought("return"),))
    return [*call, *tool_results("anthropic", ("r", branch_result("br_1")))]


@pytest.mark.parametrize(
    ("model", "thinking", "folds"),
    [
        ("claude-3-7-sonnet-20250219", None, True),
        ("claude-sonnet-4-5-20250929", None, True),
        ("claude-opus-5", None, True),
        ("claude-opus-5-20270101", None, True),
        ("us.anthropic.claude-opus-5-5-v1:0", None, False),
        (BINDING, {"type": "adaptive"}, False),
        (BINDING, FORGIVING, True),
        ("claude-haiku-6", None, False),
        ("claude-opus-4-latest", None, False),
        ("opus", None, False),
        ("gpt-5.1", None, False),
        ("gpt-5.1", FORGIVING, True),
    ],
)
def test_an_unknown_model_is_assumed_to_bind_thinking(model: str, thinking: Message | None, folds: bool) -> None:
    messages = [*branch("anthropic", "br_1"), *work("anthropic", "w"), *thinking_return()]
    projected = project_body(body_of(messages, "anthropic", model=model, thinking=thinking), "anthropic")
    assert projected.changed == folds
    assert projected.model == model
    assert projected.receipt.reason == ("" if folds else "bound_thinking")
    if thinking is None:
        assert project(messages, "anthropic", model=model).changed == folds


def test_a_fold_before_bound_thinking_waits_for_the_next_user_message() -> None:
    head = [*say("go"), *model_turn("anthropic", ("b", "context_branch"), beside=(thought("branch"),))]
    head += tool_results("anthropic", ("b", branch_result("br_1")))
    inside, tail = work("anthropic", "w"), thinking_return()
    later = [
        *model_turn("anthropic", ("x", "Bash"), beside=(thought("later"),)),
        *tool_results("anthropic", ("x", "done")),
    ]
    done = model_turn("anthropic", text="Done.", beside=(thought("done"),))
    running = [*head, *inside, *tail, *later]
    for messages in (running, [*running, *done]):
        projection = project(messages, "anthropic", model=BINDING)
        assert projection.messages == messages
        assert projection.receipt.reason == "bound_thinking"
    new_loop = model_turn("anthropic", ("y", "Bash"), beside=(thought("new"),)) + tool_results(
        "anthropic", ("y", "done")
    )
    for more in ([], new_loop, [*new_loop, *say("and?")]):
        messages = [*running, *done, *say("next"), *more]
        bare = [
            {**message, "content": [block for block in message["content"] if block["type"] != "thinking"]}
            for message in (*tail, *later, *done)
        ]
        expected = [*head, *bare, *say("next"), *more]
        projected = project_body(body_of(messages, "anthropic", model=BINDING), "anthropic")
        assert json.loads(projected.body)["messages"] == expected
        assert project(messages, "anthropic", model=BINDING).messages == expected
        assert projected.receipt.reason == ""
        assert project_body(projected.body, "anthropic").body is projected.body


def test_a_return_without_thinking_folds_at_once_and_later_thinking_stays() -> None:
    head, tail = [*say("go"), *branch("anthropic", "br_1")], return_turn("anthropic", "br_1")
    inside = model_turn("anthropic", ("w", "Bash"), beside=(thought("gone"),)) + tool_results(
        "anthropic", ("w", "done")
    )
    later = model_turn("anthropic", ("x", "Bash"), beside=(thought("later"),)) + tool_results(
        "anthropic", ("x", "done")
    )
    messages = [*head, *inside, *tail, *later]
    assert project(messages, "anthropic", model=BINDING).messages == [*head, *tail, *later]


def test_a_message_with_only_thinking_prevents_the_fold_for_good() -> None:
    alone = {"role": "assistant", "content": [thought("alone")]}
    messages = [*say("go"), *branch("anthropic", "br_1"), *work("anthropic", "w"), *thinking_return(), alone]
    messages += [*say("next"), *work("anthropic", "x")]
    projection = project(messages, "anthropic", model=BINDING)
    assert projection.messages == messages
    assert projection.receipt.reason == "bound_thinking"
