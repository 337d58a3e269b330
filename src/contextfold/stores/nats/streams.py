"""The streams of an installation and the names of their subjects.

A subject is split at dots, and `*` and `>` are wildcards. Every part that comes from outside is therefore written with
letters, digits, `_` and `-` only; any other byte is written as `=XX` and an empty part as `=`. No owner, path or name
can address another owner's subjects, and each can be read back.

The four streams are created if they are missing, and refused if they are not ours or of a newer format.
"""

from __future__ import annotations

import re
from typing import Any, Final

from nats.js.api import DiscardPolicy, RePublish, RetentionPolicy, StorageType, StreamConfig

from contextfold.errors import StoreInvalid
from contextfold.fold.store import SessionKey
from contextfold.stores.nats.jetstream import NO_STREAM, STREAM_THERE, JetStream, JetStreamError, NoResponder

# An empty part; the main thread, where a branch could be named; the project of what belongs to no project.
NOTHING: Final = "="
# Replaces the prefix of an installation that has none. No prefix can have an underscore.
NO_PREFIX: Final = "_root"
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPED: Final = re.compile(rb"=([0-9A-F]{2})")
FORMAT: Final = "1"
# The key in a stream's metadata.
FORMAT_KEY: Final = "contextfold.format"


def escape_part(text: str) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    return _UNSAFE.sub(lambda match: b"=%02X" % match[0][0], raw).decode("ascii") or NOTHING


def unescape_part(part: str) -> str:
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
        # The time that the store has seen (`fold.store_clock`).
        self.clock = self.daemon_note("clock")
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
                self.events: RePublish(f"{session}.events.>", "$1.$2.$3.events.>"),
                self.state: RePublish(f"{session}.*.*", "$1.$2.$3.$4.$5"),
            }
        )

    # ---- the log

    def log_of(self, key: SessionKey) -> str:
        return f"{self.log}.{escape_part(key.owner)}.{escape_part(key.project_hash)}.{escape_part(key.name_hash)}"

    def log_of_owner(self, owner: str) -> str:
        return f"{self.log}.{escape_part(owner)}.*.*"

    def key_of(self, log_subject: str) -> SessionKey:
        return SessionKey(*map(unescape_part, log_subject.split(".")[1:]))

    # ---- what other programs watch

    def session(self, key: SessionKey, session_id: str) -> str:
        return f"{self.base}.{escape_part(key.owner)}.{escape_part(key.project_hash)}.{escape_part(session_id)}"

    def branch(self, session: str, branch_id: str) -> str:
        return f"{session}.branches.{escape_part(branch_id)}"

    def session_state(self, session: str) -> str:
        return f"{session}.meta.session_state"

    def daemon_note(self, name: str) -> str:
        """A message of a daemon about itself or about its work."""
        return f"{self.state}.alive.{name}"

    # ---- the archive

    def archived(self, key: SessionKey, session_id: str) -> str:
        return f"{self.archive}.{escape_part(key.owner)}.{escape_part(key.project_hash)}.{escape_part(session_id)}"

    def archived_of(self, owner: str, project_hash: str | None, kind: str) -> str:
        project = "*" if project_hash is None else escape_part(project_hash)
        return f"{self.archive}.{escape_part(owner)}.{project}.*.{kind}"

    def conversation(self, owner: str, conversation: str) -> str:
        return f"{self.archive}.{escape_part(owner)}.{NOTHING}.{escape_part(conversation)}"


def stream_configs(names: SubjectNames, replicas: int) -> dict[str, StreamConfig]:
    """The configuration of each stream."""
    every = StreamConfig(
        storage=StorageType.FILE,
        retention=RetentionPolicy.LIMITS,
        # If an operator sets a limit, stored messages are more valuable than new ones.
        discard=DiscardPolicy.NEW,
        num_replicas=replicas or 1,
        allow_direct=False,
        metadata={FORMAT_KEY: FORMAT},
    )
    last_alone: dict[str, Any] = {"max_msgs_per_subject": 1, "discard": DiscardPolicy.OLD}
    expires: dict[str, Any] = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 1}
    special: dict[str, dict[str, Any]] = {
        names.log: {},
        names.events: expires,
        names.state: {**last_alone, **expires},
        names.archive: last_alone,
    }
    return {
        stream: every.evolve(name=stream, subjects=subjects, republish=names.republished.get(stream), **special[stream])
        for stream, subjects in names.subjects.items()
    }


async def prepare_streams(js: JetStream, *, may_make: bool = True) -> None:
    """Check every stream before the connection is used, and create those that are missing if that is permitted."""
    replicas = js.options.replicas if may_make else 0
    for stream, config in stream_configs(SubjectNames(js.options.prefix), replicas).items():
        try:
            await _prepare_stream(js, stream, config, replicas, may_make=may_make)
        except JetStreamError as problem:
            raise StoreInvalid(f"NATS: stream {stream}: {problem.text}") from problem
        except NoResponder as problem:
            raise StoreInvalid("NATS: this server has no JetStream; start it with `-js`, or name another") from problem


async def _prepare_stream(js: JetStream, stream: str, config: StreamConfig, replicas: int, *, may_make: bool) -> None:
    try:
        found = (await js.info(stream)).config
    except JetStreamError as problem:
        if problem.err_code != NO_STREAM:
            raise
        if not may_make:
            raise StoreInvalid(
                f"NATS has no stream {stream}, so no sessions: check --nats-prefix and the servers"
            ) from problem
        try:
            await js.call(f"API.STREAM.CREATE.{stream}", lambda context: context.add_stream(config))
        except JetStreamError as conflict:
            # Another daemon may create the same stream at this moment.
            if conflict.err_code != STREAM_THERE:
                raise
        return
    format_ = (found.metadata or {}).get(FORMAT_KEY)
    if format_ is None:
        raise StoreInvalid(f"NATS has a stream {stream} that was not created by contextfold: use another --nats-prefix")
    if format_ != FORMAT:
        raise StoreInvalid(f"NATS has sessions in format {format_}, from a newer version; this one reads {FORMAT}")
    if replicas and found.num_replicas != replicas:
        changed = found.evolve(num_replicas=replicas)
        await js.call(f"API.STREAM.UPDATE.{stream}", lambda context: context.update_stream(changed))
