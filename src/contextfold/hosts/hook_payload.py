"""Reads the members of a hook's payload: as valid text, or with an error that names the member. Knows no host.

An optional member of the wrong type is treated as missing, because hosts change members with every release.
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
        """The first of these members that is present. Raises ArgumentInvalid if there is none."""
        value = next((self[name] for name in names if self[name] is not None), None)
        if not isinstance(value, str) or not 1 <= len(value) <= ID_LENGTH_MAX:
            raise ArgumentInvalid(names[0], f"must be a string of 1 to {ID_LENGTH_MAX} characters")
        return encodable(value)

    def event(self, known: Iterable[str], *names: str) -> str:
        name = self.id(*names)
        return name if name in known else UNKNOWN_EVENT

    def text(self, name: str) -> str:
        """The text of a member; empty if it is missing."""
        value = self[name]
        return encodable(value) if isinstance(value, str) else ""

    def folder(self, name: str) -> str | None:
        value = self[name]
        if value is not None and not isinstance(value, str):
            raise ArgumentInvalid(name, "must be a string")
        return encodable(value) if value else None

    def agent(self) -> str | None:
        """The type and id of a subagent; None for the main agent."""
        words = [word(self.text(name)) for name in ("agent_type", "agent_id")]
        return " ".join(filter(None, words)) if words[1] else None


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
