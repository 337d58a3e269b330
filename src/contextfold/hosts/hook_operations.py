"""Operations in the agent's context, made from what a hook reports, the same way for every host."""

from __future__ import annotations

from contextfold.errors import ArgumentInvalid
from contextfold.hosts.hook_event import HookOperation
from contextfold.hosts.hook_payload import call_id, encodable, word
from contextfold.hosts.own_tool_names import accounts_for_itself
from contextfold.hosts.tool_text import compact


def tool_call(
    conversation: str, name: str, tool_input: object, result: str, tool_use_id: str, *, failed: bool
) -> HookOperation | None:
    """A call as it stands in the context: what the model wrote, and what it got. None if the tool counts itself."""
    if not word(name):
        raise ArgumentInvalid("tool_name", "must be a string that is not blank")
    if accounts_for_itself(name):
        return None
    content = f"{compact({} if tool_input is None else tool_input)}\n{result}"
    return HookOperation(word(name), encodable(content), failed=failed, call_id=call_id(conversation, tool_use_id))


def message(conversation: str, turn: str, text: str) -> HookOperation | None:
    return HookOperation("message", text, call_id=call_id(conversation, turn, text)) if text else None


def prompt(conversation: str, turn: str, text: str) -> HookOperation | None:
    """What a person asked for, or the host in their name."""
    return (
        HookOperation("prompt", text, call_id=call_id(conversation, turn, "prompt", text), by_user=True)
        if text
        else None
    )


def compacted(conversation: str, summary: str) -> HookOperation | None:
    """What a host has put in place of everything in the context. Reported twice, it is one: more has come since."""
    same = call_id(conversation, "compacted", summary)
    return HookOperation("compaction_summary", summary, call_id=same, compacts=True) if summary else None


def compaction(conversation: str, turn: str, *details: str) -> HookOperation:
    """Counts no tokens: the instructions go to the summariser and not into the context.

    Nothing tells one compaction of a turn from the next, so a second one counts as a repeated report.
    """
    content = ": ".join(filter(None, details))
    return HookOperation("compaction", content, tokens=0, call_id=call_id(conversation, f"compaction {turn} {content}"))
