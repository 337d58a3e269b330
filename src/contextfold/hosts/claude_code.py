"""Claude Code's hooks: payload → what was observed, and the answer that adds a line to the model's context.

Recorded with Claude Code 2.1.325 (`tests/hosts`). PostToolUse and PostToolUseFailure tell each call that ran. A call
that never ran is told by PostToolBatch alone, which comes once for a turn of the model and carries the very texts the
model reads, but not which of them failed. One whose input was refused is known by its text. One that permission was
not given for looks like any other, and is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.errors import ArgumentInvalid
from contextfold.hosts.hook_event import Done, Observed
from contextfold.hosts.hook_operations import compacted, compaction, message, prompt, tool_call
from contextfold.hosts.hook_payload import Payload
from contextfold.hosts.own_tools import reminds_itself, session_named
from contextfold.hosts.tool_text import text_of

EVENTS = frozenset(
    {
        "PostToolBatch",
        "PostToolUse",
        "PostToolUseFailure",
        "PostCompact",
        "PreCompact",
        "SessionEnd",
        "SessionStart",
        "Stop",
        "SubagentStart",
        "SubagentStop",
        "UserPromptSubmit",
    }
)
# Where a line reaches the model, once. Added to Stop or SubagentStop it makes the agent go on instead of stopping; to
# PreCompact and the like it is an error, shown to the person; and PostToolBatch comes right after PostToolUse.
ANSWERED = frozenset({"PostToolUse", "PostToolUseFailure", "SessionStart", "UserPromptSubmit"})
LINE_LENGTH_MAX = 10_000
CALLS_MAX = 1_000  # of one turn
ANALYSIS, ANALYSIS_END = "<analysis>", "</analysis>"  # before a summary
REFUSED = "<tool_use_error>"  # begins what the model reads of a call that never ran


def read(payload: Mapping[str, object]) -> Observed:
    """ArgumentInvalid if it is no payload of a hook. Events and members nobody knows are no error."""
    fields = Payload(payload)
    event = fields.event(EVENTS, "hook_event_name")
    conversation = fields.id("session_id")
    agent, folder = fields.agent(), fields.folder("cwd")
    done: Done | None = None
    batch: tuple[Done, ...] = ()
    session_id: str | None = None
    match event:
        case "PostToolUse":
            done, session_id = _call(fields, conversation, text_of(fields["tool_response"]), failed=False)
        case "PostToolUseFailure":
            done, session_id = _call(fields, conversation, fields.text("error"), failed=True)
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
            done = compacted(conversation, _kept(fields.text("compact_summary")))
    is_ours = event == "PostToolUse" and reminds_itself(fields.text("tool_name"))
    is_compacting = event == "SessionStart" and fields.text("source") == "compact"  # told before PostCompact
    return Observed(event, conversation, agent, folder, done, session_id, batch, is_ours, is_compacting)


def answer(event: str, line: str) -> dict[str, object]:
    if event not in ANSWERED:
        return {}
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": line[:LINE_LENGTH_MAX]}}


def _call(fields: Payload, conversation: str, result: str, *, failed: bool) -> tuple[Done | None, str | None]:
    name, use = fields.text("tool_name"), fields.text("tool_use_id")
    return tool_call(conversation, name, fields["tool_input"], result, use, failed=failed), session_named(name, result)


def _kept(summary: str) -> str:
    """What goes into the context of what the model wrote: its thinking aloud does not."""
    begins, _, kept = summary.partition(ANALYSIS_END)
    return kept.strip() or summary if begins.lstrip().startswith(ANALYSIS) else summary


def _batch(fields: Payload, conversation: str) -> tuple[tuple[Done, ...], str | None]:
    """The calls that were refused before they ran. Of those that ran, hooks of their own tell, and if they failed."""
    calls = fields["tool_calls"]
    if not isinstance(calls, list) or len(calls) > CALLS_MAX:
        raise ArgumentInvalid("tool_calls", f"must be a list of at most {CALLS_MAX} calls")
    told, session_id = [], None
    for call in calls:
        each = Payload(call if isinstance(call, Mapping) else {})
        result = text_of(each["tool_response"])
        if result.startswith(REFUSED):
            done, _ = _call(each, conversation, result, failed=True)
            told += [done] if done and done.call_id else []
        session_id = session_id or session_named(each.text("tool_name"), result)
    return tuple(told), session_id
