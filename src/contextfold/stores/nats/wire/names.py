"""Names of the streams and subjects of an installation. Knows no connection and no payload.

A subject is split at dots, and `*` and `>` are wildcards. Every part that comes from outside is therefore written with
letters, digits, `_` and `-` only; any other byte is written as `=XX` and an empty part as `=`. No owner, path or name
can address another owner's subjects, and each can be read back.
"""

from __future__ import annotations

import re
from typing import Final

from contextfold.fold.ports.store import SessionKey

# An empty part; the main thread, where a branch could be named; the project of what belongs to no project.
NOTHING: Final = "="
# Replaces the prefix of an installation that has none. No prefix can have an underscore.
NO_PREFIX: Final = "_root"
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPED: Final = re.compile(rb"=([0-9A-F]{2})")


def escaped(text: str) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    return _UNSAFE.sub(lambda match: b"=%02X" % match[0][0], raw).decode("ascii") or NOTHING


def unescaped(part: str) -> str:
    if part == NOTHING:
        return ""
    raw = _ESCAPED.sub(lambda match: bytes.fromhex(match[1].decode()), part.encode("ascii"))
    return raw.decode("utf-8", "surrogatepass")


def session_part(subject: str) -> str:
    """The part of an archive subject that names the session or conversation."""
    return ".".join(subject.split(".")[:4])


class SubjectNames:
    """The names of an installation. A prefix has no underscore, so no installation's streams begin with another's."""

    def __init__(self, prefix: str) -> None:
        base = self.base = prefix or NO_PREFIX
        self.log, self.events = f"{base}_log", f"{base}_events"
        self.state, self.archive = f"{base}_state", f"{base}_archive"
        session = f"{base}.*.*.*"
        self.every_log = f"{self.log}.*.*.*"
        self.every_session_state = f"{session}.meta.session_state"
        self.every_end = f"{self.archive}.*.*.*.ended"
        self.every_left_out = f"{self.archive}.*.{NOTHING}.*.left_out.>"
        self.every_conversation = f"{self.archive}.*.{NOTHING}.*.requests"
        # The subjects of each stream.
        self.subjects = {
            self.log: [self.every_log],
            self.events: [f"{session}.events.>"],
            self.state: [f"{session}.branches.*", f"{session}.meta.*", f"{self.state}.alive.*"],
            self.archive: [f"{self.archive}.*.*.*.>"],
        }
        # Where the server publishes messages a second time, if there is no prefix. A stream cannot have a subject whose
        # first part is a wildcard, because that would include the server's own subjects. So messages are stored below
        # NO_PREFIX, and subscribers get them on the subject without it.
        self.republished = (
            {}
            if prefix
            else {
                self.events: {"src": f"{session}.events.>", "dest": "$1.$2.$3.events.>"},
                self.state: {"src": f"{session}.*.*", "dest": "$1.$2.$3.$4.$5"},
            }
        )

    # ---- the log

    def log_of(self, key: SessionKey) -> str:
        return f"{self.log}.{escaped(key.owner)}.{escaped(key.project_hash)}.{escaped(key.name_hash)}"

    def log_of_owner(self, owner: str) -> str:
        return f"{self.log}.{escaped(owner)}.*.*"

    def key_of(self, log_subject: str) -> SessionKey:
        return SessionKey(*map(unescaped, log_subject.split(".")[1:]))

    # ---- what other programs watch

    def session(self, key: SessionKey, session_id: str) -> str:
        return f"{self.base}.{escaped(key.owner)}.{escaped(key.project_hash)}.{escaped(session_id)}"

    def branch(self, session: str, branch_id: str) -> str:
        return f"{session}.branches.{escaped(branch_id)}"

    def session_state(self, session: str) -> str:
        return f"{session}.meta.session_state"

    def alive(self, name: str) -> str:
        """A message of a daemon about itself or about its work."""
        return f"{self.state}.alive.{name}"

    # ---- the archive

    def archived(self, key: SessionKey, session_id: str) -> str:
        return f"{self.archive}.{escaped(key.owner)}.{escaped(key.project_hash)}.{escaped(session_id)}"

    def archived_of(self, owner: str, project_hash: str | None, kind: str) -> str:
        project = "*" if project_hash is None else escaped(project_hash)
        return f"{self.archive}.{escaped(owner)}.{project}.*.{kind}"

    def conversation(self, owner: str, conversation: str) -> str:
        return f"{self.archive}.{escaped(owner)}.{NOTHING}.{escaped(conversation)}"
