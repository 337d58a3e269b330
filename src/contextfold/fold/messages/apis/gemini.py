"""Reads contents of Gemini's `generateContent`. Knows its roles and parts, nothing of folding.

The API accepts the names of members in camel case and with underscores, and so does this module.
"""

from __future__ import annotations

from collections.abc import Sequence

from contextfold.fold.messages.facts import (
    BY_NAME,
    MODEL_TEXT,
    PROMPT,
    UNKNOWN,
    Api,
    Call,
    Fact,
    Members,
    Result,
    block_members,
    items_of,
)
from contextfold.fold.messages.own_tools import call_of
from contextfold.fold.messages.user_words import is_host_text

_CALL = ("functionCall", "function_call")
_RESPONSE = ("functionResponse", "function_response")
_SIGNATURE = ("thoughtSignature", "thought_signature")
_SHOWN = frozenset({"text", "inlineData", "inline_data", "fileData", "file_data"})
# Code that the provider runs; call and result are in the same content.
_HOSTED = frozenset({"executableCode", "executable_code", "codeExecutionResult", "code_execution_result"})
_SHOWN_OR_HOSTED = _SHOWN | _HOSTED
# The members of a part in addition to its data.
_ABOUT = frozenset({"thought", *_SIGNATURE, "videoMetadata", "video_metadata"})


def read(content: Members) -> Fact:
    role = content.get("role", "user")
    parts = items_of(content.get("parts"))
    if not parts or role not in ("model", "user"):
        return UNKNOWN
    return _read_model(parts) if role == "model" else _read_user(parts)


def is_result(part: Members) -> bool:
    about = block_members(_member(part, _RESPONSE))
    return bool(_id_of(about)) and isinstance(about.get("name"), str)


def response_path(part: Members) -> tuple[str, ...]:
    return (_RESPONSE[0] if _RESPONSE[0] in part else _RESPONSE[1], "response")


def arguments_path(part: Members) -> tuple[str, ...]:
    return (_CALL[0] if _CALL[0] in part else _CALL[1], "args")


def is_words(part: Members, beside_result: bool) -> bool:
    """Whether the user wrote or attached a part of a user's content."""
    if _member(part, _RESPONSE) is not None:
        return False
    return not (beside_result and "text" in part and is_host_text(part["text"]))


def _read_user(parts: Sequence[object]) -> Fact:
    results: list[Result] = []
    flaw, has_words = "", False
    for part in parts:
        members = block_members(part)
        response = _member(members, _RESPONSE)
        if response is not None:
            about = block_members(response)
            result_id, content = _id_of(about), about.get("response")
            if files := about.get("parts"):
                # The model reads them with the response, which is therefore not only a text.
                content = {**block_members(content), "parts": files}
            if result_id and isinstance(about.get("name"), str):
                results.append(Result(result_id, content, part=members))
            else:
                flaw = "unknown_content"
        elif _SHOWN.isdisjoint(members):
            flaw = "unknown_content"
        elif not is_host_text(members.get("text")):
            has_words = True
    if not results:
        return UNKNOWN if flaw else PROMPT
    return Fact("input", results=tuple(results), flaw=flaw, has_words=has_words)


def _read_model(parts: Sequence[object]) -> Fact:
    calls: list[Call] = []
    is_signed: bool | None = None
    flaw = ""
    for part in parts:
        members = block_members(part)
        asked = _member(members, _CALL)
        if asked is not None:
            if is_signed is None:
                is_signed = bool(_member(members, _SIGNATURE))
            about = block_members(asked)
            call = call_of(members, _id_of(about), about.get("name"), about.get("args"))
            if call:
                calls.append(call)
            else:
                flaw = "unknown_content"
        elif _SHOWN_OR_HOSTED.isdisjoint(members) and not (members and members.keys() <= _ABOUT):
            flaw = "unknown_content"
    if not (calls or flaw):
        return MODEL_TEXT
    return Fact("model", tuple(calls), flaw=flaw, is_signed=is_signed)


def _member(part: Members, names: tuple[str, str]) -> object:
    return part.get(names[0], part.get(names[1]))


def _id_of(about: Members) -> str:
    """The call's id, or a substitute: calls without ids are paired by name and order."""
    given, name = about.get("id"), about.get("name")
    if isinstance(given, str) and given:
        return given
    return BY_NAME + name if isinstance(name, str) and name else ""


API = Api(
    "contents",
    read,
    response_path,
    arguments_path,
    "parts",
    is_result=is_result,
    has_object_results=True,
    parts_name="parts",
    has_alternating_roles=True,
    is_words=is_words,
    numbers_calls=True,
)
