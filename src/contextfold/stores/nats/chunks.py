"""Contents of any size, as chunks in the archive stream, found by the mark that a record refers to.

They are written before that record. What a commit that was refused leaves is never referred to, and is deleted with the
archive of its session.
"""

from __future__ import annotations

import asyncio
from typing import Final

from contextfold.errors import StoreInvalid
from contextfold.stores.nats.connection import OutcomeUnknown
from contextfold.stores.nats.jetstream import JetStream, new_mark
from contextfold.stores.nats.records import ChunkReference, cut
from contextfold.stores.nats.stream_reader import StreamQuery, read_to

PIECE_BYTES: Final = 512 << 10
# Chunks that are written at once.
AT_ONCE: Final = 8
TRIES: Final = 3


def most_in_one(wire: JetStream) -> int:
    """The size of a message that every server accepts."""
    return min(PIECE_BYTES, wire.payload_most // 2 or PIECE_BYTES)


async def write_pieces(wire: JetStream, archived: str, data: bytes) -> ChunkReference:
    """Write chunks below the archive subject of a session."""
    pieces = list(cut(data, most_in_one(wire)))
    written = ChunkReference(new_mark(), len(pieces))
    for start in range(0, len(pieces), AT_ONCE):
        some = enumerate(pieces[start : start + AT_ONCE], start)
        await asyncio.gather(*(_write(wire, f"{archived}.pieces.{written.mark}.{place}", each) for place, each in some))
    return written


async def _write(wire: JetStream, subject: str, piece: bytes) -> None:
    """Writing a chunk twice does no harm: the stream has the last message of each subject."""
    for left in reversed(range(TRIES)):
        try:
            await wire.put(subject, piece)
        except OutcomeUnknown:
            if not left:
                raise
        else:
            return


async def read_pieces(wire: JetStream, stream: str, archived: str, pieces: ChunkReference) -> bytes:
    subjects = f"{archived}.pieces.{pieces.mark}.*"
    last = await wire.last(stream, subjects)
    found: dict[int, bytes] = {}
    if last is not None:
        async for stored in read_to(wire, StreamQuery(stream, subjects), last.seq):
            found[int(stored.subject.rpartition(".")[2])] = stored.data
    if len(found) != pieces.count:
        raise StoreInvalid(f"NATS has {len(found)} of the {pieces.count} pieces of a text")
    return b"".join(found[place] for place in range(pieces.count))
