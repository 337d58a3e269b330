"""What a hook reports, the same for all hosts: reads a payload's members, and makes operations and events of them.

A required member that is invalid is an error that names it. An optional member of the wrong type is treated as missing,
because hosts change members with every release. Knows no host's format, no session and no protocol.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from contextfold.errors import ArgumentInvalid
from contextfold.fold.messages.own_tools import is_marked, own_name_in, verb_of
from contextfold.hosts.tool_text import compact

ID_LENGTH_MAX = 200
WORD_LENGTH_MAX = 128
UNNAMED = "unnamed"
UNKNOWN_EVENT = "other"
# The service counts the tokens of our tools itself, except of those that only read; hooks report them as operations.
ONLY_READING = "branch_status"
_SESSION_ID = re.compile(r"sess_[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class HookOperation:
    """One operation in the agent's context."""

    # The tool's name, or another kind of operation: printable, 1 to 128 characters.
    type: str
    # The text that the model reads.
    content: str
    failed: bool = False
    # Set if the number of tokens in the context does not follow from the content.
    tokens: int | None = None
    # Equal for two reports of the same operation; empty if repeated reports cannot be recognised.
    call_id: str = ""
    # Whether the content replaces everything in the context.
    compacts: bool = False
    # Whether the user wrote the content.
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class HookEvent:
    # The host's name of a known event; otherwise "other".
    event: str
    # The host's id of the conversation.
    conversation: str
    # Set for a subagent, which has a context of its own.
    agent_id: str = ""
    agent_type: str = ""
    # The agent's working folder.
    folder: str | None = None
    done: HookOperation | None = None
    # The session id in the result of one of this product's tools.
    session_id: str | None = None
    # The calls of one turn, reported together. Some may have been reported before.
    batch: tuple[HookOperation, ...] = ()
    # Whether the host is compacting. The recorded figures are then obsolete, and the new ones are not yet known.
    is_compacting: bool = False
    # The model, if the host names it.
    model: str = ""
    # A conversation begins with nothing in its context.
    is_beginning: bool = False
    # A call of one of this product's tools that the host is about to make: the tool, its arguments, and the call's id.
    own_call: tuple[str, Mapping[str, object]] | None = None
    call_id: str = ""


class Payload:
    def __init__(self, members: Mapping[str, object]) -> None:
        self._members = members

    def __getitem__(self, name: str) -> object:
        return self._members.get(name)

    def id(self, *names: str) -> str:
        """The first of these members that is present. Raises ArgumentInvalid if there is none."""
        value = next((self[name] for name in names if self[name] is not None), None)
        if not isinstance(value, str) or not 1 <= len(value) <= ID_LENGTH_MAX:
            raise ArgumentInvalid(names[0], f"must be a string of 1 to {ID_LENGTH_MAX} characters")
        return encodable(value)

    def event(self, known: Iterable[str]) -> str:
        name = self.id("hook_event_name")
        return name if name in known else UNKNOWN_EVENT

    def text(self, name: str) -> str:
        """The text of a member; empty if it is missing."""
        value = self[name]
        return encodable(value) if isinstance(value, str) else ""

    def folder(self) -> str | None:
        """The agent's working folder."""
        value = self["cwd"]
        if value is not None and not isinstance(value, str):
            raise ArgumentInvalid("cwd", "must be a string")
        return encodable(value) if value else None

    def agent(self) -> tuple[str, str]:
        """The id and the type of a subagent; empty for the main agent."""
        agent_id = word(self.text("agent_id"))
        return agent_id, word(self.text("agent_type")) if agent_id else ""

    def own_call(self) -> tuple[str, Mapping[str, object]] | None:
        """The tool and the arguments of a call of one of our tools; None for any other."""
        name, arguments = self.text("tool_name"), self["tool_input"]
        if not is_marked(name):
            return None
        return own_name_in(name), arguments if isinstance(arguments, Mapping) else {}


def encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def word(text: str) -> str:
    """A name for a table; empty, or UNNAMED if it is too long or not printable.

    A long name is not cut, because the scrubber could not recognise a secret that was cut.
    """
    name = text.strip()
    return name if len(name) <= WORD_LENGTH_MAX and name.isprintable() else UNNAMED


def call_id(*parts: str) -> str:
    """A hash of the parts, to recognise repeated reports; empty if a part is missing."""
    return hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest() if all(parts) else ""


def find_session_id(tool_name: str, result: str) -> str | None:
    """The session id in the result of one of our tools. Hosts may add lines after the result."""
    if not _verb(tool_name):
        return None
    try:
        members, _end = json.JSONDecoder().raw_decode(result.lstrip())
    except (ValueError, RecursionError):
        return None
    session_id = members.get("session_id") if isinstance(members, dict) else None
    return session_id if isinstance(session_id, str) and _SESSION_ID.fullmatch(session_id) else None


def _verb(tool_name: str) -> str:
    """The verb of one of our tools; empty for any other. Claude Code writes `mcp__SERVER__TOOL`."""
    verb, needs_proof = verb_of(tool_name)
    return verb if tool_name[:3].lower() == "mcp" and not needs_proof else ""


def tool_call(
    fields: Payload, conversation: str, result: str, *, failed: bool
) -> tuple[HookOperation | None, str | None]:
    """A tool call with its arguments and result, and the session that its result names.

    The operation is None if the service counts the call itself.
    """
    name, tool_input = fields.text("tool_name"), fields["tool_input"]
    if not word(name):
        raise ArgumentInvalid("tool_name", "must be a string that is not blank")
    session_id = find_session_id(name, result)
    if _verb(name) not in ("", ONLY_READING):
        return None, session_id
    content = f"{compact({} if tool_input is None else tool_input)}\n{result}"
    repeated_id = call_id(conversation, fields.text("tool_use_id"))
    return HookOperation(word(name), encodable(content), failed=failed, call_id=repeated_id), session_id


def message(conversation: str, turn: str, text: str) -> HookOperation | None:
    return HookOperation("message", text, call_id=call_id(conversation, turn, text)) if text else None


def prompt(conversation: str, turn: str, text: str) -> HookOperation | None:
    """A prompt of the user, or of the host on the user's behalf."""
    repeated_id = call_id(conversation, turn, "prompt", text)
    return HookOperation("prompt", text, call_id=repeated_id, by_user=True) if text else None


def compaction_summary(conversation: str, summary: str) -> HookOperation | None:
    """The summary that replaces everything in the context.

    A repeated report has the same id and is ignored; otherwise it would remove later operations.
    """
    repeated_id = call_id(conversation, "compaction_summary", summary)
    return HookOperation("compaction_summary", summary, call_id=repeated_id, compacts=True) if summary else None


def compaction(conversation: str, turn: str, *details: str) -> HookOperation:
    """The beginning of a compaction. It has no tokens: the instructions do not enter the context.

    Two compactions in one turn cannot be distinguished, so the second one counts as a repeated report.
    """
    content = ": ".join(filter(None, details))
    return HookOperation("compaction", content, tokens=0, call_id=call_id(conversation, f"compaction {turn} {content}"))
