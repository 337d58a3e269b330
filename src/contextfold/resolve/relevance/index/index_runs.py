"""Runs: the terms of some documents in temporary files of a build, which are merged at its end."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator

from contextfold.resolve.relevance.index.index_merge import ENTRY_BYTES, Term

# A run has at most this many entries, which bounds the memory of a build.
RUN_MAX_ENTRIES = 3_000_000
RUN_PREFIX = "relevance-run-"
BUFFER_BYTES = 1 << 20
# All runs are read at the same time.
READ_BUFFER_BYTES = 1 << 16
KEY_LENGTH_BYTES = 4
ENTRY_COUNT_BYTES = 8


def write_run(folder: int, name: str, terms: Iterable[tuple[bytes, array[int]]]) -> None:
    with open(new_file(folder, RUN_PREFIX + name), "wb", buffering=BUFFER_BYTES) as file:
        for key, entries in terms:
            file.write(len(key).to_bytes(KEY_LENGTH_BYTES, "little"))
            file.write(key)
            file.write(len(entries).to_bytes(ENTRY_COUNT_BYTES, "little"))
            entries.tofile(file)


def new_file(folder: int, name: str) -> int:
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)


def runs_in(folder: int) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith(RUN_PREFIX))


def read_run(folder: int, name: str) -> Iterator[Term]:
    with open(os.open(name, os.O_RDONLY, dir_fd=folder), "rb", buffering=READ_BUFFER_BYTES) as file:
        while length := file.read(KEY_LENGTH_BYTES):
            key = file.read(int.from_bytes(length, "little"))
            entries: array[int] = array("Q")
            entries.frombytes(file.read(ENTRY_BYTES * int.from_bytes(file.read(ENTRY_COUNT_BYTES), "little")))
            yield key, entries
