"""Reads contents of Gemini's `generateContent`. Knows its roles and parts, nothing of folding.

The API accepts the names of members in camel case and with underscores, and so does this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from contextfold.fold.messages.apis.facts import (
    BY_NAME,
    PROMPT,
    SAID,
    UNKNOWN,
    Call,
    CallNumbers,
    Fact,
    Members,
    Result,
    block_members,
    has_quoted_user,
    is_host_text,
    items_of,
    made,
)
from contextfold.fold.messages.own_tools import call_of

_CALL = ("functionCall", "function_call")
_RESPONSE = ("functionResponse", "function_response")
_SHOWN = frozenset({"text", "inlineData", "inline_data", "fileData", "file_data"})
# Code that the provider runs; call and result are in the same content.
_HOSTED = frozenset({"executableCode", "executable_code", "codeExecutionResult", "code_execution_result"})
_SHOWN_OR_HOSTED = _SHOWN | _HOSTED
# The members of a part in addition to its data.
_ABOUT = frozenset({"thought", "thoughtSignature", "thought_signature", "videoMetadata", "video_metadata"})


def reader() -> Callable[[Members], Fact]:
    """Make a reader for the contents of one request, in order."""
    numbers = CallNumbers()

    def read(content: Members) -> Fact:
        role = content.get("role", "user")
        parts = items_of(content.get("parts"))
        if parts and role == "model":
            return _model(parts, numbers)
        numbers.end_turn()
        return _user(parts, numbers) if parts and role == "user" else UNKNOWN

    return read


def is_result(part: Members) -> bool:
    about = block_members(response_of(part))
    return bool(id_of(about)) and isinstance(about.get("name"), str)


def call_of_part(part: Members) -> object:
    return _member(part, _CALL)


def response_of(part: Members) -> object:
    return _member(part, _RESPONSE)


def response_path(part: Members) -> tuple[str, ...]:
    return (_RESPONSE[0] if _RESPONSE[0] in part else _RESPONSE[1], "response")


def is_words(part: Members, *, beside_result: bool) -> bool:
    """Whether the user wrote or attached a part of a user's content."""
    if response_of(part) is not None:
        return False
    return not (beside_result and "text" in part and is_host_text(part["text"]))


def _user(parts: Sequence[object], numbers: CallNumbers) -> Fact:
    results: list[Result] = []
    flaw, has_words, quotes = "", False, False
    for part in parts:
        members: Members = part if type(part) is dict else block_members(part)
        response = response_of(members)
        if response is not None:
            about: Members = response if type(response) is dict else block_members(response)
            result_id, content = id_of(about), about.get("response")
            if result_id and isinstance(about.get("name"), str):
                results.append(made(Result, (numbers.of_result(result_id), content, False)))
                quotes = quotes or has_quoted_user(content)
            else:
                flaw = "unknown_content"
        elif _SHOWN.isdisjoint(members):
            flaw = "unknown_content"
        elif not is_host_text(members.get("text")):
            has_words = True
    if not results:
        return UNKNOWN if flaw else PROMPT
    return made(Fact, ("input", (), tuple(results), flaw, False, False, False, has_words, quotes, False))


def _model(parts: Sequence[object], numbers: CallNumbers) -> Fact:
    calls: list[Call] = []
    flaw = ""
    for part in parts:
        members: Members = part if type(part) is dict else block_members(part)
        asked = call_of_part(members)
        if asked is not None:
            about: Members = asked if type(asked) is dict else block_members(asked)
            call_id, name = id_of(about), about.get("name")
            call = call_of(numbers.of_call(call_id), name) if call_id and isinstance(name, str) else None
            if call:
                calls.append(call)
            else:
                flaw = "unknown_content"
        elif _SHOWN_OR_HOSTED.isdisjoint(members) and not (members and members.keys() <= _ABOUT):
            flaw = "unknown_content"
    if not (calls or flaw):
        return SAID
    return made(Fact, ("model", tuple(calls), (), flaw, False, False, False, False, False, False))


def _member(part: Members, names: tuple[str, str]) -> object:
    return part.get(names[0], part.get(names[1]))


def id_of(about: Members) -> str:
    """The call's id, or a substitute: calls without ids are paired by name and order."""
    given, name = about.get("id"), about.get("name")
    if isinstance(given, str) and given:
        return given
    return BY_NAME + name if isinstance(name, str) and name else ""
