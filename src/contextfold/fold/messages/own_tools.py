"""Recognises calls of our own tools and reads their results. Knows names and result members, no message format.

Clients rename tools and wrap results. A name with a client's usual mark is sufficient. A name with only `SERVER_` as a
prefix could belong to any tool: it must be confirmed by the request's list of tools, or by a result with all the
members that only our results have.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from contextfold.fold.messages.facts import HOSTED, Call, Members, Result, block_members, items_of
from contextfold.fold.messages.user_words import own_length

# Matching a longer name takes too long: the patterns' time grows faster than linearly.
NAME_LENGTH_MAX = 256
# Our own results are much shorter; text that a client adds at their end is not read.
RESULT_LENGTH_MAX = 65_536
SCRIPT_LENGTH_MAX = 65_536
TOOLS_MAX = 10_000

# Why there is no outcome: the call failed, its result has no outcome, or the tool is not ours.
NoOutcome = Literal["failed", "unreadable", "foreign"]

_VERBS = "branch|return|fold|rollback|record|branch_status"
_OTHERS = "list_branches|expand|recall"
# `mcp__SERVER__TOOL`, `SERVER.TOOL`, `SERVER-TOOL`, `MCP:TOOL`, `SERVER/TOOL`, `mcp_SERVER_TOOL`, `mcp0_TOOL`; and
# `TOOL_mcp_SERVER`.
_MARKED = (
    re.compile(rf"(?:.*(?:__|[.:/-])|(?i:mcp)(?:_.+|\d+)_)?context_({_VERBS}|{_OTHERS})", re.DOTALL),
    re.compile(rf"context_({_VERBS}|{_OTHERS})_mcp_.+", re.DOTALL),
)
# `SERVER_TOOL`
_BARE = re.compile(rf"(.+_)context_({_VERBS})", re.DOTALL)
# A call in a script, which a client gives to a tool of its own: `await tools.mcp__SERVER__TOOL({…})`.
_IN_SCRIPT = re.compile(r"\btools\s*+(?:\.\s*+|\[\s*+[\"'])([A-Za-z0-9_]{1,256}+)(?:[\"']\s*+\])?+\s*+\(")
# The longest name comes first.
_OWN_NAME = re.compile(rf"context_(branch_status|{_VERBS}|{_OTHERS})")
_ANY_OF_OURS = re.compile(rf"(.*)context_({_VERBS}|{_OTHERS})", re.DOTALL)

# A client may put a result into a string of its own JSON (with backslashes) or print it as Python does (with single
# quotes). The patterns begin with the name; the quote before it is checked behind it.
_QUOTE = r"\\*+[\"']"
_COLON = rf"{_QUOTE}\s*+:\s*+"


def _member(name: str, value: str) -> re.Pattern[str]:
    return re.compile(f"{name}(?<=[\"']{name}){_COLON}{value}")


_BRANCH_ID = _member("branch_id", rf"{_QUOTE}(br_[0-9A-Za-z_-]{{1,64}})")
_SESSION_ID = _member("session_id", rf"{_QUOTE}(sess_[0-9A-Za-z_-]{{1,64}})")
_ROLLED_BACK = _member("rolled_back_to", rf"{_QUOTE}br_")
# The match ends at the next list if this one has no end.
_DISCARDED = _member("branches_discarded", r"\[([^\[\]]*+)\]")
_REMEMBERED_ID = re.compile("call:[0-9a-f]{32}")
_ID = re.compile(r"br_[0-9A-Za-z_-]{1,64}")
_FAILED = (
    _member("error", "(?!null|None)"),
    _member("current_status", "(?!null|None)"),
    _member("isError", "[tT]rue"),
)
# A member that every result of this tool has and results of other tools hardly ever have.
_CONFIRMING = {
    "branch": _member("parent_branch_id", ""),
    "return": _member("folded_at", ""),
    "fold": _member("folded_at", ""),
    "rollback": _member("branches_discarded", ""),
    "record": _member("context_state", ""),
    "branch_status": _member("branch_path", ""),
}


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of one of our calls, from its result. It is stored and used by later projections."""

    verb: str
    branch_id: str = ""
    session_id: str = ""
    discarded: tuple[str, ...] = ()


def verb_of(tool_name: str) -> tuple[str, bool]:
    """The verb of one of our tools, and whether its name needs confirmation; an empty verb for any other tool."""
    if marked := _marked_tool(tool_name):
        return (marked, False) if marked in _VERBS.split("|") else ("", False)
    bare = _BARE.fullmatch(tool_name) if len(tool_name) <= NAME_LENGTH_MAX else None
    return (bare[2], True) if bare else ("", False)


def remembered_id(call_id: str) -> str:
    """The form in which a call id is remembered: a hash, because a client chooses its ids and may put anything in them.

    An id that is remembered already stays the same.
    """
    if _REMEMBERED_ID.fullmatch(call_id):
        return call_id
    return f"call:{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def call_of(part: Members, call_id: object, name: object, arguments: object = None) -> Call | None:
    """A call; None if it has no id or no name."""
    if not (isinstance(call_id, str) and call_id and isinstance(name, str)):
        return None
    verb, needs_proof = verb_of(name)
    return Call(call_id, name, "context_" in name, verb, needs_proof, arguments, part)


def script_call(part: Members, call_id: object, name: object, script: object) -> Call | None:
    """A call of a tool that runs a script. It counts as a call of ours if the script calls one of our verbs, once.

    What the script does with the result is not known, so the result must confirm it. The call has our tool's name only
    if the script calls no other tools.
    """
    call = call_of(part, call_id, name)
    ours, others = tools_in_script(script)
    if call is None:
        return None
    if not ours:
        return call._replace(called=tuple(others))
    verbs = [verb for verb, _ in map(verb_of, ours) if verb]
    return call._replace(
        name=call.name if others else ours[0],
        may_be_ours=True,
        verb=verbs[0] if len(verbs) == 1 else "",
        needs_proof=True,
        called=(*ours, *others),
    )


def tools_in_script(script: object) -> tuple[list[str], list[str]]:
    """The names of the tools that a script calls: of ours, and of others."""
    text = script[:SCRIPT_LENGTH_MAX] if isinstance(script, str) else ""
    names = [match[1] for match in _IN_SCRIPT.finditer(text)]
    return [name for name in names if is_marked(name)], [name for name in names if not is_marked(name)]


def hosted_call(part: Members) -> Call:
    """A call that the provider runs in the same turn."""
    name = part.get("name")
    verb, needs_proof = verb_of(name) if isinstance(name, str) else ("", False)
    return Call("", str(name), True, verb, needs_proof, part=part) if verb else HOSTED


def confirm_names(tools: Iterable[str]) -> frozenset[str]:
    """The names in a request's list of tools that are ours because at least two of our tools have the same prefix."""
    by_prefix: dict[str, list[str]] = {}
    for name in tools:
        match = _ANY_OF_OURS.fullmatch(name) if "context_" in name and len(name) <= NAME_LENGTH_MAX else None
        if match:
            by_prefix.setdefault(match[1], []).append(name)
    return frozenset(name for names in by_prefix.values() if len(set(names)) > 1 for name in names)


def select_our_tools(names: Collection[str]) -> frozenset[str]:
    """Those names of a request's tools that are ours."""
    return confirm_names(names) | {name for name in names if is_marked(name)}


def is_marked(name: str) -> bool:
    """Whether the name alone shows that a tool is ours."""
    return bool(_marked_tool(name))


def _marked_tool(name: str) -> str:
    """The tool of ours that a name with a client's usual mark names; empty for any other name."""
    if "context_" not in name or len(name) > NAME_LENGTH_MAX:
        return ""
    found = (pattern.fullmatch(name) for pattern in _MARKED)
    return next((match[1] for match in found if match), "")


def may_be_ours(name: str) -> bool:
    """Whether a name contains that of one of our tools."""
    return _OWN_NAME.search(name) is not None


def own_name_in(text: str) -> str:
    """The first name of one of our tools in a text, as we call it; empty if there is none."""
    found = _OWN_NAME.search(text)
    return found[0] if found else ""


def list_tool_names(tools: object, messages: object) -> list[str]:
    """The names of a request's tools, in the formats of the four APIs."""
    names = (name_of(block_members(definition)) for definition in list_definitions(tools, messages))
    return [name for name in names if isinstance(name, str)]


def list_definitions(tools: object, messages: object) -> list[object]:
    """The definitions of tools in a request: those in `tools`, and those that its messages add."""
    listed = [definition for tool in (items_of(tools) or ())[:TOOLS_MAX] for definition in _definitions_in(tool)]
    for message in items_of(messages) or ():
        members = block_members(message)
        if members.get("type") in ("tool_search_output", "additional_tools"):
            added = items_of(members.get("tools")) or ()
            listed += [definition for tool in added[:TOOLS_MAX] for definition in _definitions_in(tool)]
        elif members.get("role") == "system":
            for block in map(block_members, items_of(members.get("content")) or ()):
                if block.get("type") == "tool_addition":
                    listed.append(block_members(block.get("tool")).get("definition"))
    return listed


def _definitions_in(tool: object) -> Sequence[object]:
    """The definitions in an element of `tools`: itself, or those that it lists, as a namespace does."""
    members = block_members(tool)
    listed = members.get("functionDeclarations") or members.get("function_declarations")
    if members.get("type") == "namespace":
        listed = members.get("tools")
    return (items_of(listed) or ())[:TOOLS_MAX] if listed else (tool,)


def name_of(definition: Members) -> object:
    return definition["name"] if "name" in definition else block_members(definition.get("function")).get("name")


def read_result(call: Call, result: Result, confirmed: Collection[str]) -> CallOutcome | NoOutcome:
    """The outcome in the result of one of our calls, or the reason why there is none."""
    text = _text_of(result.content)[:RESULT_LENGTH_MAX]
    is_ours = not call.needs_proof or call.name in confirmed or _CONFIRMING[call.verb].search(text) is not None
    failed = result.failed or any(pattern.search(text) for pattern in _FAILED)
    if failed or not is_ours:
        return "failed" if is_ours else "foreign"
    return _outcome_in(text, call.verb) or "unreadable"


def _outcome_in(text: str, verb: str) -> CallOutcome | None:
    named = _SESSION_ID.search(text)
    session_id = named[1] if named else ""
    if verb in ("branch", "return", "fold"):
        branch = _BRANCH_ID.search(text)
        return CallOutcome(verb, branch[1], session_id) if branch else None
    if verb != "rollback":
        return CallOutcome(verb, "", session_id)
    if _ROLLED_BACK.search(text) is None:
        return None
    discarded = _DISCARDED.search(text)
    return CallOutcome(verb, "", session_id, tuple(_ID.findall(discarded[1])) if discarded else ())


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content[: own_length(content)]
    if isinstance(content, Mapping):
        if len(content) == 1 and isinstance(only := content.get("output", content.get("result")), str):
            return only[: own_length(only)]
        values = {
            name: value[: own_length(value)] if isinstance(value, str) else value for name, value in content.items()
        }
        try:
            return json.dumps(values, default=block_members)
        except (TypeError, ValueError, RecursionError):
            return ""
    texts = (block_members(block).get("text") for block in items_of(content) or ())
    return "\n".join(text[: own_length(text)] for text in texts if isinstance(text, str))
