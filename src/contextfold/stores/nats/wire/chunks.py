"""Stores contents of any size as chunks in the archive stream. A record refers to them by a mark.

Chunks are written before the record. The chunks of a refused commit are never referred to, and are deleted with the
archive of the session.
"""

from __future__ import annotations

import asyncio
from typing import Final

from contextfold.errors import StoreInvalid
from contextfold.stores.nats.wire.connection import OutcomeUnknown
from contextfold.stores.nats.wire.jetstream import JetStream, new_mark
from contextfold.stores.nats.wire.records import ChunkReference, cut
from contextfold.stores.nats.wire.stream_reader import StreamQuery, read_stored

CHUNK_BYTES: Final = 512 << 10
# This many chunks are written at once.
AT_ONCE: Final = 8
TRIES: Final = 3


def most_in_one(js: JetStream) -> int:
    """The size of a message that every server accepts."""
    return min(CHUNK_BYTES, js.payload_most // 2 or CHUNK_BYTES)


async def write_chunks(js: JetStream, archived: str, data: bytes) -> ChunkReference:
    """Write chunks below the archive subject of a session."""
    chunks = list(cut(data, most_in_one(js)))
    written = ChunkReference(new_mark(), len(chunks))
    for start in range(0, len(chunks), AT_ONCE):
        some = enumerate(chunks[start : start + AT_ONCE], start)
        await asyncio.gather(*(_write(js, f"{archived}.pieces.{written.mark}.{number}", each) for number, each in some))
    return written


async def _write(js: JetStream, subject: str, piece: bytes) -> None:
    """Writing a chunk twice does no harm: the stream has the last message of each subject."""
    for left in reversed(range(TRIES)):
        try:
            await js.put(subject, piece)
        except OutcomeUnknown:
            if not left:
                raise
        else:
            return


async def read_chunks(js: JetStream, stream: str, archived: str, chunks: ChunkReference) -> bytes:
    subjects = f"{archived}.pieces.{chunks.mark}.*"
    pieces = {
        int(stored.subject.rpartition(".")[2]): stored.data
        async for stored in read_stored(js, StreamQuery(stream, subjects))
    }
    if len(pieces) != chunks.count:
        raise StoreInvalid(f"NATS has {len(pieces)} of the {chunks.count} pieces of a text")
    return b"".join(pieces[number] for number in range(chunks.count))
