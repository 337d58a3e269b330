"""Cursor's and VS Code's hooks, as their references document them."""

from __future__ import annotations

from typing import Any

import pytest

from contextfold.errors import ArgumentInvalid
from contextfold.hosts import cursor, vscode
from contextfold.hosts.hook_event import HookEvent
from tests.hosts.payloads import payloads

CURSOR = {payload["hook_event_name"] + payload.get("tool_name", ""): payload for payload in payloads("cursor-by-hand")}
VSCODE = {payload["hookEventName"] + payload.get("tool_name", ""): payload for payload in payloads("vscode-by-hand")}


def at_cursor(name: str) -> HookEvent:
    return cursor.read(CURSOR[name])


def at_vscode(name: str) -> HookEvent:
    return vscode.read(VSCODE[name])


def test_cursors_calls_are_read_from_json_in_a_string() -> None:
    seen = at_cursor("postToolUseShell")
    assert (seen.conversation, seen.folder) == ("conv-1", "/home/me/app")
    assert seen.done
    assert (seen.done.type, seen.done.failed) == ("Shell", False)
    assert seen.done.content == '{"command":"npm test"}\nAll tests passed'
    failed = at_cursor("postToolUseFailureShell").done
    assert failed
    assert failed.failed
    assert failed.content == '{"command":"npm test"}\nCommand timed out after 30s'
    assert failed.call_id != seen.done.call_id


def test_an_output_that_is_no_json_is_taken_as_it_is() -> None:
    seen = cursor.read({**CURSOR["postToolUseShell"], "tool_output": "{not json"})
    assert seen.done
    assert seen.done.content == '{"command":"npm test"}\n{not json'


def test_cursor_names_our_session_and_our_tools_are_not_counted() -> None:
    for name in ("postToolUseMCP:context_branch", "afterMCPExecutioncontext_branch"):
        seen = at_cursor(name)
        assert (seen.done, seen.session_id) == (None, "sess_b2d955c0ecb4416d")


def test_what_cursor_tells_twice_is_counted_once() -> None:
    assert at_cursor("afterShellExecution") == HookEvent("other", "conv-1", folder="/home/me/app", model="some-model")


def test_cursors_messages_and_compactions_are_told() -> None:
    message, compaction = at_cursor("afterAgentResponse").done, at_cursor("preCompact").done
    assert message
    assert (message.type, message.content) == ("message", "The tests pass.")
    assert compaction
    assert (compaction.type, compaction.content, compaction.tokens) == ("compaction", "auto", 0)
    assert at_cursor("stop").done is None
    assert at_cursor("sessionStart").done is None


def test_cursor_takes_a_line_after_a_call_and_at_the_start() -> None:
    assert {event for event in cursor.EVENTS if cursor.answer(event, "line")} == {"postToolUse", "sessionStart"}
    assert cursor.answer("postToolUse", "line") == {"additional_context": "line"}


@pytest.mark.parametrize("odd", [{"conversation_id": 1}, {"hook_event_name": None}, {"workspace_roots": [], "cwd": 1}])
def test_what_is_no_payload_of_cursors_is_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(ArgumentInvalid):
        cursor.read({**CURSOR["postToolUseShell"], **odd})


def test_vs_codes_calls_are_read_in_either_spelling() -> None:
    camel = VSCODE["PostToolUseeditFiles"]
    snake = {**camel, "session_id": camel["sessionId"], "hook_event_name": camel["hookEventName"]}
    del snake["sessionId"], snake["hookEventName"]
    seen = vscode.read(camel)
    assert seen == vscode.read(snake)
    assert (seen.conversation, seen.folder) == ("vs-1", "/home/me/app")
    assert seen.done
    assert seen.done.content == '{"files":["src/main.ts"]}\nFile edited successfully'


def test_vs_code_names_our_session_and_our_tools_are_not_counted() -> None:
    seen = at_vscode("PostToolUsemcp_contextfold_context_branch")
    assert (seen.done, seen.session_id) == (None, "sess_b2d955c0ecb4416d")


def test_vs_codes_other_events_are_known() -> None:
    compaction = at_vscode("PreCompact").done
    assert compaction
    assert compaction.tokens == 0
    assert at_vscode("SubagentStop").agent == "Plan subagent-456"
    assert at_vscode("Stop").done is None
    assert at_vscode("SessionStart").event == "SessionStart"


def test_vs_code_takes_a_line_after_a_call_and_at_the_start() -> None:
    events = ("PostToolUse", "PreCompact", "SessionStart", "Stop", "SubagentStop", "UserPromptSubmit")
    assert [event for event in events if vscode.answer(event, "line")] == ["PostToolUse", "SessionStart"]
