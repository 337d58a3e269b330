"""Streams and subjects of an installation, and keys as parts of them. Knows no connection and no payload.

A subject is split at dots, and `*` and `>` stand for any part. So every part that comes from outside is written with
letters, digits, `_` and `-` alone, each other byte as `=XX`, and an empty one as `=`: no owner, path or name can reach
beyond its own place, and each comes back as it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from contextfold.fold.store import SessionKey

NOTHING: Final = "="  # an empty part; and the main thread, where a branch could stand
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPED: Final = re.compile(rb"=([0-9A-F]{2})")


def escaped(text: str) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    return _UNSAFE.sub(lambda found: b"=%02X" % found[0][0], raw).decode("ascii") or NOTHING


def unescaped(part: str) -> str:
    if part == NOTHING:
        return ""
    raw = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), part.encode("ascii"))
    return raw.decode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Names:
    """What an installation calls its things. A prefix has no underscore, so no other's is ours with something added."""

    prefix: str

    @property
    def log(self) -> str:
        return f"{self.prefix}_log"

    @property
    def events(self) -> str:
        return f"{self.prefix}_events"

    @property
    def state(self) -> str:
        return f"{self.prefix}_state"

    @property
    def archive(self) -> str:
        return f"{self.prefix}_archive"

    @property
    def subjects(self) -> dict[str, list[str]]:
        """Of each stream."""
        session = f"{self.prefix}.*.*.*"
        return {
            self.log: [f"{self.log}.*.*.*"],
            self.events: [f"{session}.events.>"],
            self.state: [f"{session}.branches.*", f"{session}.meta.*", f"{self.state}.alive.*"],
            self.archive: [f"{self.archive}.*.*.*.>"],
        }

    # ---- the log

    def log_of(self, key: SessionKey) -> str:
        return f"{self.log}.{escaped(key.owner)}.{escaped(key.project_hash)}.{escaped(key.name_hash)}"

    def log_of_owner(self, owner: str) -> str:
        return f"{self.log}.{escaped(owner)}.*.*"

    @property
    def every_log(self) -> str:
        return f"{self.log}.*.*.*"

    def key_of(self, log_subject: str) -> SessionKey:
        return SessionKey(*map(unescaped, log_subject.split(".")[1:]))

    # ---- what others watch

    def session(self, key: SessionKey, session_id: str) -> str:
        return f"{self.prefix}.{escaped(key.owner)}.{escaped(key.project_hash)}.{escaped(session_id)}"

    def branch(self, session: str, branch_id: str) -> str:
        return f"{session}.branches.{escaped(branch_id)}"

    def session_state(self, session: str) -> str:
        return f"{session}.meta.session_state"

    @property
    def every_session_state(self) -> str:
        return f"{self.prefix}.*.*.*.meta.session_state"

    def alive(self, who: str) -> str:
        return f"{self.state}.alive.{who}"

    # ---- the archive

    def archived(self, key: SessionKey, session_id: str) -> str:
        return f"{self.archive}.{escaped(key.owner)}.{escaped(key.project_hash)}.{escaped(session_id)}"

    def archived_of(self, owner: str, project_hash: str | None, kind: str) -> str:
        project = "*" if project_hash is None else escaped(project_hash)
        return f"{self.archive}.{escaped(owner)}.{project}.*.{kind}"

    @property
    def every_end(self) -> str:
        return f"{self.archive}.*.*.*.ended"
