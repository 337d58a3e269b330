"""Export files: written under a temporary name and renamed, compressed if the name ends in .gz, verified on reading."""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, cast

from contextfold.errors import ExportInvalid, StorageFailed
from contextfold.fold.store_export import (
    KINDS,
    ExportRecord,
    encode_header,
    encode_record,
    encode_trailer,
    kind_of,
    read_export,
)

# One line, which is a record with one text, has at most this many bytes.
LINE_MAX: Final = 1 << 28
COMPRESSION_LEVEL: Final = 6
COPIED_BYTES: Final = 1 << 20
SUFFIX: Final = ".gz"

OnRecords = Callable[[Mapping[str, int]], None]


async def write_export(
    path: Path, records: AsyncIterator[ExportRecord], made_at: str, on_records: OnRecords = lambda _: None
) -> Mapping[str, int]:
    """Write a new file and return how many records of each kind it has.

    The header has the counts, so the records are first written to a temporary file without a name.
    """
    if path.exists():
        raise ExportInvalid(f"{path} exists: name a new file, or delete it first")
    counts: Counter[str] = Counter()
    try:
        with tempfile.TemporaryFile(dir=path.parent) as body:
            async for record in records:
                body.write(encode_record(record))
                counts[kind_of(record)] += 1
                on_records(counts)
            body.seek(0)
            _write_file(path, encode_header(counts, made_at), body)
    except OSError as problem:
        raise StorageFailed(f"cannot write {path}: {problem.strerror}") from problem
    return counts


def _write_file(path: Path, header: bytes, body: IO[bytes]) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as raw:
            file = _compressor(raw) if path.suffix == SUFFIX else raw
            file.write(header)
            digest = hashlib.sha256(header)
            while part := body.read(COPIED_BYTES):
                digest.update(part)
                file.write(part)
            file.write(encode_trailer(digest.hexdigest()))
            if file is not raw:
                file.close()
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _compressor(raw: IO[bytes]) -> IO[bytes]:
    """A compressor whose header has no name and no time, so that equal exports are equal files."""
    return cast("IO[bytes]", gzip.GzipFile("", "wb", COMPRESSION_LEVEL, raw, mtime=0))


def read_records(path: Path) -> Iterator[ExportRecord]:
    return read_export(_lines(path))


def verify(path: Path) -> Mapping[str, int]:
    """Read the whole file, raise if it is not complete and unaltered, and return the number of records of each kind."""
    counts = Counter(map(kind_of, read_records(path)))
    return {kind: counts[kind] for kind in KINDS}


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") if path.suffix == SUFFIX else path.open("rb") as file:
            while line := file.readline(LINE_MAX):
                yield line
    except EOFError as problem:
        raise ExportInvalid("the export file is not complete") from problem
    except (gzip.BadGzipFile, zlib.error) as problem:
        raise ExportInvalid(f"the export file cannot be decompressed: {problem}") from problem
    except OSError as problem:
        raise StorageFailed(f"cannot read {path}: {problem.strerror}") from problem
