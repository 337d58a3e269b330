"""Stores contents of any size as chunks in the archive stream. A record refers to them by a mark.

Chunks are written before the record. The chunks of a refused commit are never referred to, and are deleted with the
archive of the session.
"""

from __future__ import annotations

from typing import Final

from contextfold.errors import StoreInvalid
from contextfold.stores.nats.wire.jetstream import JetStream, new_mark
from contextfold.stores.nats.wire.records import ChunkReference
from contextfold.stores.nats.wire.stream_reader import StreamQuery, read_stored
from contextfold.stores.nats.wire.tasks import in_batches

CHUNK_BYTES: Final = 512 << 10
# This many chunks are written at once.
AT_ONCE: Final = 8


def most_in_one(js: JetStream) -> int:
    """The size of a message that every server accepts."""
    return min(CHUNK_BYTES, js.payload_most // 2 or CHUNK_BYTES)


async def write_chunks(js: JetStream, archived: str, data: bytes) -> ChunkReference:
    """Write chunks below the archive subject of a session or conversation."""
    size = most_in_one(js)
    starts = range(0, len(data), size)
    written = ChunkReference(new_mark(), len(starts))
    pieces = f"{archived}.pieces.{written.mark}"
    chunks = (js.put_last(f"{pieces}.{number}", data[at : at + size]) for number, at in enumerate(starts))
    await in_batches(chunks, AT_ONCE)
    return written


async def read_chunks(js: JetStream, archived: str, chunks: ChunkReference) -> bytes:
    # The first part of a subject of the archive is the name of its stream.
    query = StreamQuery(archived.partition(".")[0], f"{archived}.pieces.{chunks.mark}.*")
    pieces = {int(stored.subject.rpartition(".")[2]): stored.data async for stored in read_stored(js, query)}
    if len(pieces) != chunks.count:
        raise StoreInvalid(f"NATS has {len(pieces)} of the {chunks.count} pieces of a text")
    return b"".join(pieces[number] for number in range(chunks.count))
