"""A hook's payload, member by member: text that can be encoded, or an error that names the member. Knows no host.

Whatever may be absent or odd without harm reads as absent: hosts add members and change them with every release.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from contextfold.errors import ArgumentInvalid

ID_LENGTH_MAX = 200
WORD_LENGTH_MAX = 128
UNNAMED = "unnamed"
UNKNOWN_EVENT = "other"


class Payload:
    def __init__(self, members: Mapping[str, object]) -> None:
        self._members = members

    def __getitem__(self, name: str) -> object:
        return self._members.get(name)

    def id(self, *names: str) -> str:
        """The first of these that is there; there must be one."""
        found = next((self[name] for name in names if self[name] is not None), None)
        if not isinstance(found, str) or not 1 <= len(found) <= ID_LENGTH_MAX:
            raise ArgumentInvalid(names[0], f"must be a string of 1 to {ID_LENGTH_MAX} characters")
        return encodable(found)

    def event(self, known: Iterable[str], *names: str) -> str:
        name = self.id(*names)
        return name if name in known else UNKNOWN_EVENT

    def text(self, name: str) -> str:
        """Empty if there is none."""
        found = self[name]
        return encodable(found) if isinstance(found, str) else ""

    def folder(self, name: str) -> str | None:
        found = self[name]
        if found is not None and not isinstance(found, str):
            raise ArgumentInvalid(name, "must be a string")
        return encodable(found) if found else None

    def agent(self) -> str | None:
        """A subagent, by its type and its id."""
        words = [word(self.text(name)) for name in ("agent_type", "agent_id")]
        return " ".join(filter(None, words)) if words[1] else None


def encodable(text: str) -> str:
    """The same text, with what no encoding has replaced."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def word(text: str) -> str:
    """A name as it may stand in a table, or empty. What is none is not made one: cut, a secret would not be known."""
    name = text.strip()
    return name if len(name) <= WORD_LENGTH_MAX and name.isprintable() else UNNAMED


def call_id(*parts: str) -> str:
    """The same for the same parts; empty if one is missing, since nothing tells then."""
    return hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest() if all(parts) else ""
