"""The hooks of Cursor and VS Code, as their references document them."""

from __future__ import annotations

from typing import Any

import pytest

from contextfold.errors import ArgumentInvalid
from contextfold.hosts import claude_code, cursor
from contextfold.hosts.hook_event import HookEvent
from tests.hosts.payloads import payloads

CURSOR = {payload["hook_event_name"] + payload.get("tool_name", ""): payload for payload in payloads("cursor-by-hand")}
VSCODE = {payload["hookEventName"] + payload.get("tool_name", ""): payload for payload in payloads("vscode-by-hand")}


def read_cursor(name: str) -> HookEvent:
    return cursor.read(CURSOR[name])


def read_vscode(name: str) -> HookEvent:
    return claude_code.read_vscode(VSCODE[name])


def test_calls_of_cursor_are_read_from_json_in_a_string() -> None:
    hook_event = read_cursor("postToolUseShell")
    assert (hook_event.conversation, hook_event.folder) == ("conv-1", "/home/me/app")
    assert hook_event.done
    assert (hook_event.done.type, hook_event.done.failed) == ("Shell", False)
    assert hook_event.done.content == '{"command":"npm test"}\nAll tests passed'
    failed = read_cursor("postToolUseFailureShell").done
    assert failed
    assert failed.failed
    assert failed.content == '{"command":"npm test"}\nCommand timed out after 30s'
    assert failed.call_id != hook_event.done.call_id


def test_an_output_that_is_no_json_is_read_as_text() -> None:
    hook_event = cursor.read({**CURSOR["postToolUseShell"], "tool_output": "{not json"})
    assert hook_event.done
    assert hook_event.done.content == '{"command":"npm test"}\n{not json'


def test_cursor_names_our_session_and_our_tools_are_not_counted() -> None:
    for name in ("postToolUseMCP:context_branch", "afterMCPExecutioncontext_branch"):
        hook_event = read_cursor(name)
        assert (hook_event.done, hook_event.session_id) == (None, "sess_b2d955c0ecb4416d")


def test_the_second_event_of_a_cursor_shell_call_is_ignored() -> None:
    assert read_cursor("afterShellExecution") == HookEvent("other", "conv-1", folder="/home/me/app", model="some-model")


def test_messages_and_compactions_of_cursor_are_read() -> None:
    message, compaction = read_cursor("afterAgentResponse").done, read_cursor("preCompact").done
    assert message
    assert (message.type, message.content) == ("message", "The tests pass.")
    assert compaction
    assert (compaction.type, compaction.content, compaction.tokens) == ("compaction", "auto", 0)
    assert read_cursor("stop").done is None
    assert read_cursor("sessionStart").done is None


def test_cursor_accepts_a_line_after_a_call_and_at_the_start() -> None:
    assert {event for event in cursor.EVENTS if cursor.answer(event, "line")} == {"postToolUse", "sessionStart"}
    assert cursor.answer("postToolUse", "line") == {"additional_context": "line"}


@pytest.mark.parametrize(
    "members", [{"conversation_id": 1}, {"hook_event_name": None}, {"workspace_roots": [], "cwd": 1}]
)
def test_an_invalid_payload_of_cursor_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(ArgumentInvalid):
        cursor.read({**CURSOR["postToolUseShell"], **members})


def test_calls_of_vs_code_are_read_in_both_spellings() -> None:
    camel = VSCODE["PostToolUseeditFiles"]
    snake = {**camel, "session_id": camel["sessionId"], "hook_event_name": camel["hookEventName"]}
    del snake["sessionId"], snake["hookEventName"]
    hook_event = claude_code.read_vscode(camel)
    assert hook_event == claude_code.read_vscode(snake)
    assert (hook_event.conversation, hook_event.folder) == ("vs-1", "/home/me/app")
    assert hook_event.done
    assert hook_event.done.content == '{"files":["src/main.ts"]}\nFile edited successfully'


def test_vs_code_names_our_session_and_our_tools_are_not_counted() -> None:
    hook_event = read_vscode("PostToolUsemcp_contextfold_context_branch")
    assert (hook_event.done, hook_event.session_id) == (None, "sess_b2d955c0ecb4416d")


def test_other_events_of_vs_code_are_read() -> None:
    compaction = read_vscode("PreCompact").done
    assert compaction
    assert compaction.tokens == 0
    assert read_vscode("SubagentStop").agent == "Plan subagent-456"
    assert read_vscode("Stop").done is None
    assert read_vscode("SessionStart").event == "SessionStart"


def test_vs_code_accepts_a_line_after_a_call_and_at_the_start() -> None:
    events = ("PostToolUse", "PreCompact", "SessionStart", "Stop", "SubagentStop", "UserPromptSubmit")
    assert [event for event in events if claude_code.answer_vscode(event, "line")] == ["PostToolUse", "SessionStart"]
