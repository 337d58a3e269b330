"""Claude Code's hooks: reads a payload, and writes the answer that adds a line to the model's context.

Recorded with Claude Code 2.1.325 (`tests/hosts`). PostToolUse and PostToolUseFailure report each call that ran. Only
PostToolBatch reports a call that never ran. It comes once for each turn of the model and has the exact texts that the
model reads, but does not say which calls failed. A call whose input was refused is recognised by its text. A call
without permission cannot be recognised and is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.errors import ArgumentInvalid
from contextfold.hosts.hook_event import (
    HookEvent,
    HookOperation,
    Payload,
    compaction,
    compaction_summary,
    find_session_id,
    message,
    prompt,
    tool_call,
    word,
)
from contextfold.hosts.tool_text import text_of

EVENTS = frozenset(
    {
        "PostToolBatch",
        "PostToolUse",
        "PostToolUseFailure",
        "PostCompact",
        "PreCompact",
        "PreToolUse",
        "SessionEnd",
        "SessionStart",
        "Stop",
        "SubagentStart",
        "SubagentStop",
        "UserPromptSubmit",
    }
)
# A line in the answer to one of these events reaches the model once. In an answer to Stop or SubagentStop it would make
# the agent continue; for PreCompact it is an error that the user sees; and PostToolBatch directly follows PostToolUse.
ANSWERED = frozenset({"PostToolUse", "PostToolUseFailure", "SessionStart", "UserPromptSubmit"})
LINE_LENGTH_MAX = 10_000
# The sources of a session that begins with nothing; others resume or compact one.
NEW_CONTEXT = frozenset({"startup", "clear"})
# One turn has at most this many calls.
CALLS_MAX = 1_000
# An analysis in these tags may precede a summary.
ANALYSIS, ANALYSIS_END = "<analysis>", "</analysis>"
# The result of a call that never ran begins with this tag.
REFUSED = "<tool_use_error>"


def read(payload: Mapping[str, object]) -> HookEvent:
    """Read a payload. Raises ArgumentInvalid if a member is invalid; ignores unknown events and members."""
    fields = Payload(payload)
    event = fields.event(EVENTS)
    conversation = fields.id("session_id")
    (agent_id, agent_type), folder = fields.agent(), fields.folder()
    done: HookOperation | None = None
    batch: tuple[HookOperation, ...] = ()
    session_id: str | None = None
    match event:
        case "PostToolUse":
            done, session_id = tool_call(fields, conversation, text_of(fields["tool_response"]), failed=False)
        case "PostToolUseFailure":
            done, session_id = tool_call(fields, conversation, fields.text("error"), failed=True)
        case "PostToolBatch":
            batch, session_id = _batch(fields, conversation)
        case "UserPromptSubmit":
            done = prompt(conversation, fields.text("prompt_id"), fields.text("prompt"))
        case "Stop":
            done = message(conversation, fields.text("prompt_id"), fields.text("last_assistant_message"))
        case "PreCompact":
            done = compaction(
                conversation, fields.text("prompt_id"), *map(fields.text, ("trigger", "custom_instructions"))
            )
        case "PostCompact":
            done = compaction_summary(conversation, _summary(fields.text("compact_summary")))
    # After a compaction, SessionStart comes before PostCompact, which has the summary.
    is_compacting = event == "SessionStart" and fields.text("source") == "compact"
    is_beginning = event == "SessionStart" and fields.text("source") in NEW_CONTEXT
    model = word(fields.text("model"))
    return HookEvent(
        event,
        conversation,
        agent_id,
        agent_type,
        folder,
        done,
        session_id,
        batch,
        is_compacting,
        model,
        is_beginning,
        fields.own_call() if event == "PreToolUse" else None,
        fields.text("tool_use_id"),
    )


def answer(event: str, line: str) -> dict[str, object]:
    if event not in ANSWERED:
        return {}
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": line[:LINE_LENGTH_MAX]}}


def _summary(text: str) -> str:
    """The part of a summary that enters the context, without the analysis before it."""
    analysis, _, summary = text.partition(ANALYSIS_END)
    return summary.strip() or text if analysis.lstrip().startswith(ANALYSIS) else text


def _batch(fields: Payload, conversation: str) -> tuple[tuple[HookOperation, ...], str | None]:
    """The calls that were refused before they ran. Other hooks report the calls that ran."""
    calls = fields["tool_calls"]
    if not isinstance(calls, list) or len(calls) > CALLS_MAX:
        raise ArgumentInvalid("tool_calls", f"must be a list of at most {CALLS_MAX} calls")
    refused, session_id = [], None
    for call in calls:
        each = Payload(call if isinstance(call, Mapping) else {})
        result = text_of(each["tool_response"])
        if result.startswith(REFUSED):
            done, _ = tool_call(each, conversation, result, failed=True)
            refused += [done] if done and done.call_id else []
        session_id = session_id or find_session_id(each.text("tool_name"), result)
    return tuple(refused), session_id
