"""The four streams of an installation: created if missing, refused if they are not ours or of a newer format."""

from __future__ import annotations

from typing import Any, Final

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.stores.nats.wire.jetstream import NO_STREAM, STREAM_THERE, JetStream, JetStreamError
from contextfold.stores.nats.wire.names import SubjectNames

FORMAT: Final = "1"
# The key in a stream's metadata.
FORMAT_KEY: Final = "contextfold.format"
_SECOND: Final = 1_000_000_000


def wanted(names: SubjectNames, replicas: int) -> dict[str, dict[str, Any]]:
    """The configuration of each stream."""
    every: dict[str, Any] = {
        "storage": "file",
        "retention": "limits",
        # If an operator sets a limit, stored messages are more valuable than new ones.
        "discard": "new",
        "num_replicas": replicas or 1,
        "allow_direct": False,
        "max_msgs_per_subject": -1,
        "metadata": {FORMAT_KEY: FORMAT},
    }
    last_alone = {"max_msgs_per_subject": 1, "discard": "old"}
    expires = {"allow_msg_ttl": True, "subject_delete_marker_ttl": _SECOND}
    special: dict[str, dict[str, Any]] = {
        names.log: {},
        names.events: expires,
        names.state: {**last_alone, **expires},
        names.archive: last_alone,
    }
    republished = {stream: {"republish": rule} for stream, rule in names.republished.items()}
    return {
        stream: {"name": stream, "subjects": subjects, **every, **special[stream], **republished.get(stream, {})}
        for stream, subjects in names.subjects.items()
    }


async def prepare(js: JetStream, *, may_make: bool = True) -> None:
    """Check every stream before the connection is used, and create those that are missing if that is permitted."""
    replicas = js.options.replicas if may_make else 0
    for stream, config in wanted(SubjectNames(js.options.prefix), replicas).items():
        try:
            found = await js.api(f"STREAM.INFO.{stream}", ignored=(NO_STREAM,))
            if not found and not may_make:
                raise StoreInvalid(f"NATS has no stream {stream}, so no sessions: check --nats-prefix and the servers")
            if found:
                await _check(js, stream, found["config"], replicas)
            else:
                # Another daemon may create the same stream at this moment.
                await js.api(f"STREAM.CREATE.{stream}", config, ignored=(STREAM_THERE,))
        except JetStreamError as problem:
            raise StoreInvalid(f"NATS: stream {stream}: {problem.text}") from problem
        except StoreUnavailable as problem:
            if not js.has_jetstream:
                raise StoreInvalid(
                    "NATS: this server has no JetStream; start it with `-js`, or name another"
                ) from problem
            raise


async def _check(js: JetStream, stream: str, config: dict[str, Any], replicas: int) -> None:
    format_ = (config.get("metadata") or {}).get(FORMAT_KEY)
    if format_ is None:
        raise StoreInvalid(f"NATS has a stream {stream} that was not created by contextfold: use another --nats-prefix")
    if format_ != FORMAT:
        raise StoreInvalid(f"NATS has sessions in format {format_}, from a newer version; this one reads {FORMAT}")
    if replicas and config["num_replicas"] != replicas:
        await js.api(f"STREAM.UPDATE.{stream}", {**config, "num_replicas": replicas})
