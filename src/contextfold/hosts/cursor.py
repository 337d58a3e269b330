"""Cursor's hooks (`.cursor/hooks.json`, version 1), read from its public reference of mid-2026 and not tried.

They are commands: the payload is on the command's input, the answer on its output. `postToolUse` and
`postToolUseFailure` tell every call, with the tool's result as JSON in a string. The hooks for shells, files and MCP
tell some of the same calls again without naming them, so they only add what session an MCP result names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from contextfold.hosts.hook_event import Done, Observed
from contextfold.hosts.hook_operations import compaction, message, tool_call
from contextfold.hosts.hook_payload import Payload, encodable
from contextfold.hosts.own_tools import reminds_itself, session_named
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
MCP = "MCP:"  # before an MCP tool's name, where a hook is not for those alone


def read(payload: Mapping[str, object]) -> Observed:
    """ArgumentInvalid if it is no payload of a hook. Events and members nobody knows are no error."""
    fields = Payload(payload)
    event = fields.event(EVENTS, "hook_event_name")
    conversation = fields.id("conversation_id", "session_id")
    folder = _folder(fields)
    done: Done | None = None
    session_id: str | None = None
    match event:
        case "postToolUse":
            done, session_id = _call(fields, conversation, _result(fields["tool_output"]), failed=False)
        case "postToolUseFailure":
            done, session_id = _call(fields, conversation, fields.text("error_message"), failed=True)
        case "afterMCPExecution":
            session_id = session_named(MCP + fields.text("tool_name"), _result(fields["result_json"]))
        case "afterAgentResponse":
            done = message(conversation, fields.text("generation_id"), fields.text("text"))
        case "preCompact":
            done = compaction(conversation, fields.text("generation_id"), fields.text("trigger"))
    is_ours = event == "postToolUse" and reminds_itself(fields.text("tool_name"))
    return Observed(event, conversation, folder=folder, done=done, session_id=session_id, is_ours=is_ours)


def answer(event: str, line: str) -> dict[str, object]:
    return {"additional_context": line[:LINE_LENGTH_MAX]} if event in ANSWERED else {}


def _call(fields: Payload, conversation: str, result: str, *, failed: bool) -> tuple[Done | None, str | None]:
    name, use = fields.text("tool_name"), fields.text("tool_use_id")
    return tool_call(conversation, name, fields["tool_input"], result, use, failed=failed), session_named(name, result)


def _result(output: object) -> str:
    """Documented as JSON in a string; what is none is taken as it is."""
    if not isinstance(output, str):
        return text_of(output)
    try:
        return text_of(json.loads(output))
    except (ValueError, RecursionError):
        return output


def _folder(fields: Payload) -> str | None:
    """The first folder of the workspace: `cwd` is where a command ran."""
    roots = fields["workspace_roots"]
    first = roots[0] if isinstance(roots, list) and roots else None
    return encodable(first) if first and isinstance(first, str) else fields.folder("cwd")
