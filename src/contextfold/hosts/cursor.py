"""Cursor's hooks (`.cursor/hooks.json`, version 1), written after its public reference of mid-2026; not tested with it.

The hooks are commands: the payload is on the command's input, the answer on its output. `postToolUse` and
`postToolUseFailure` report every call, with the tool's result as JSON in a string. The hooks for shells, files and MCP
report some of these calls again, without an id. So only the session id in an MCP result is used of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from contextfold.hosts.hook_event import (
    HookEvent,
    HookOperation,
    Payload,
    compaction,
    encodable,
    find_session_id,
    message,
    tool_call,
    word,
)
from contextfold.hosts.tool_text import text_of

EVENTS = frozenset(
    {
        "afterAgentResponse",
        "afterMCPExecution",
        "postToolUse",
        "postToolUseFailure",
        "preCompact",
        "sessionEnd",
        "sessionStart",
        "stop",
        "subagentStart",
        "subagentStop",
    }
)
ANSWERED = frozenset({"postToolUse", "sessionStart"})
LINE_LENGTH_MAX = 10_000
# The prefix of an MCP tool's name in hooks that report other tools, too.
MCP = "MCP:"


def read(payload: Mapping[str, object]) -> HookEvent:
    """Read a payload. Raises ArgumentInvalid if a member is invalid; ignores unknown events and members."""
    fields = Payload(payload)
    event = fields.event(EVENTS)
    conversation = fields.id("conversation_id", "session_id")
    folder = _folder(fields)
    done: HookOperation | None = None
    session_id: str | None = None
    match event:
        case "postToolUse":
            done, session_id = tool_call(fields, conversation, _result(fields["tool_output"]), failed=False)
        case "postToolUseFailure":
            done, session_id = tool_call(fields, conversation, fields.text("error_message"), failed=True)
        case "afterMCPExecution":
            session_id = find_session_id(MCP + fields.text("tool_name"), _result(fields["result_json"]))
        case "afterAgentResponse":
            done = message(conversation, fields.text("generation_id"), fields.text("text"))
        case "preCompact":
            done = compaction(conversation, fields.text("generation_id"), fields.text("trigger"))
    model = word(fields.text("model"))
    return HookEvent(event, conversation, folder=folder, done=done, session_id=session_id, model=model)


def answer(event: str, line: str) -> dict[str, object]:
    return {"additional_context": line[:LINE_LENGTH_MAX]} if event in ANSWERED else {}


def _result(output: object) -> str:
    """The text of a result, which is documented as JSON in a string. A string that is not JSON is used unchanged."""
    if not isinstance(output, str):
        return text_of(output)
    try:
        return text_of(json.loads(output))
    except (ValueError, RecursionError):
        return output


def _folder(fields: Payload) -> str | None:
    """The first folder of the workspace. `cwd` may be another folder, in which a command ran."""
    roots = fields["workspace_roots"]
    first = roots[0] if isinstance(roots, list) and roots else None
    return encodable(first) if first and isinstance(first, str) else fields.folder()
