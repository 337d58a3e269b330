"""Makes operations from the data in a hook's payload. All hosts use these functions."""

from __future__ import annotations

from contextfold.errors import ArgumentInvalid
from contextfold.hosts.hook_event import HookOperation
from contextfold.hosts.hook_payload import Payload, call_id, encodable, word
from contextfold.hosts.own_tool_names import accounts_for_itself, session_named
from contextfold.hosts.tool_text import compact


def tool_call(
    fields: Payload, conversation: str, result: str, *, failed: bool
) -> tuple[HookOperation | None, str | None]:
    """A tool call with its arguments and result, and the session that its result names.

    The operation is None if the service counts the call itself.
    """
    name, tool_input = fields.text("tool_name"), fields["tool_input"]
    if not word(name):
        raise ArgumentInvalid("tool_name", "must be a string that is not blank")
    session_id = session_named(name, result)
    if accounts_for_itself(name):
        return None, session_id
    content = f"{compact({} if tool_input is None else tool_input)}\n{result}"
    repeated_id = call_id(conversation, fields.text("tool_use_id"))
    return HookOperation(word(name), encodable(content), failed=failed, call_id=repeated_id), session_id


def message(conversation: str, turn: str, text: str) -> HookOperation | None:
    return HookOperation("message", text, call_id=call_id(conversation, turn, text)) if text else None


def prompt(conversation: str, turn: str, text: str) -> HookOperation | None:
    """A prompt of the user, or of the host on the user's behalf."""
    return (
        HookOperation("prompt", text, call_id=call_id(conversation, turn, "prompt", text), by_user=True)
        if text
        else None
    )


def compacted(conversation: str, summary: str) -> HookOperation | None:
    """The summary that replaces everything in the context.

    A repeated report has the same id and is ignored; otherwise it would remove later operations.
    """
    repeated_id = call_id(conversation, "compacted", summary)
    return HookOperation("compaction_summary", summary, call_id=repeated_id, compacts=True) if summary else None


def compaction(conversation: str, turn: str, *details: str) -> HookOperation:
    """The beginning of a compaction. It has no tokens: the instructions do not enter the context.

    Two compactions in one turn cannot be distinguished, so the second one counts as a repeated report.
    """
    content = ": ".join(filter(None, details))
    return HookOperation("compaction", content, tokens=0, call_id=call_id(conversation, f"compaction {turn} {content}"))
