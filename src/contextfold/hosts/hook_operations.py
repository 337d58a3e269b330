"""What a hook tells → what was done in the agent's context, the same way for every host. Knows no host's names."""

from __future__ import annotations

from contextfold.errors import ArgumentInvalid
from contextfold.hosts.hook_event import Done
from contextfold.hosts.hook_payload import call_id, encodable, word
from contextfold.hosts.own_tools import accounts_for_itself
from contextfold.hosts.tool_text import compact


def tool_call(
    conversation: str, name: str, tool_input: object, result: str, tool_use_id: str, *, failed: bool
) -> Done | None:
    """A call as it stands in the context: what the model wrote, and what it got. None if the tool counts itself."""
    if not word(name):
        raise ArgumentInvalid("tool_name", "must be a string that is not blank")
    if accounts_for_itself(name):
        return None
    content = f"{compact({} if tool_input is None else tool_input)}\n{result}"
    return Done(word(name), encodable(content), failed=failed, call_id=call_id(conversation, tool_use_id))


def message(conversation: str, turn: str, text: str) -> Done | None:
    return Done("message", text, call_id=call_id(conversation, turn, text)) if text else None


def prompt(conversation: str, turn: str, text: str) -> Done | None:
    """What a person asked for, or the host in their name."""
    return Done("prompt", text, call_id=call_id(conversation, turn, "prompt", text)) if text else None


def compacted(conversation: str, summary: str) -> Done | None:
    """What a host has put in place of all that was in the context. Told twice it is one: more has come since."""
    told = call_id(conversation, "compacted", summary)
    return Done("compaction_summary", summary, call_id=told, compacts=True) if summary else None


def compaction(conversation: str, turn: str, *told: str) -> Done:
    """Counts for nothing: what was asked for goes to whoever summarises, not into the context.

    Nothing tells one compaction of a turn from the next, so a second one counts as the first told again.
    """
    content = ": ".join(filter(None, told))
    return Done("compaction", content, tokens=0, call_id=call_id(conversation, f"compaction {turn} {content}"))
