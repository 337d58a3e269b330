"""Finding and reading the documents below a folder. Knows the file system, nothing of caches.

A survey notes what every document's file looked like; comparing two surveys tells whether the folder held still while
it was read, so that a cache is always the folder as it was at one moment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import pairwise

from contextfold.common.record import Record
from contextfold.errors import SourceInvalid, StorageFailed
from contextfold.resolve.document import document_id
from contextfold.resolve.files import LEADS_NOWHERE, read_all, shown, storage_failed

DOCUMENT_SUFFIX = b".md"

# A pipe put in a document's place since the survey must not hang us.
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

State = tuple[int, int, int, int, int]  # size, mtime, ctime, inode, device


class Source(Record):
    id: str
    source: str  # the path relative to the sources, as it was
    path: bytes
    state: State

    @property
    def byte_count(self) -> int:
        return self.state[0]


def survey(sources: bytes) -> list[Source]:
    """Every document below the folder, by id."""
    found = sorted(_walk(sources), key=lambda source: source.id.encode())
    for earlier, later in pairwise(found):
        if earlier.id == later.id:
            raise SourceInvalid(
                f"{shown(earlier.path)} and {shown(later.path)} both become the document {later.id}; rename one of them"
            )
    return found


def _walk(sources: bytes) -> Iterator[Source]:
    folders = [b""]
    while folders:
        folder = folders.pop()
        for entry in _entries(os.path.join(sources, folder)):
            relative = os.path.join(folder, entry.name)
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(relative)
                elif entry.name.endswith(DOCUMENT_SUFFIX) and entry.name != DOCUMENT_SUFFIX:
                    status = os.stat(entry.path)
                    if stat.S_ISREG(status.st_mode):
                        yield _source(relative, entry.path, status)
            except OSError as problem:
                if not (problem.errno in LEADS_NOWHERE and entry.is_symlink()):
                    raise storage_failed("cannot look at", entry.path, problem) from problem


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as problem:
        raise storage_failed("cannot list", folder, problem) from problem


def _source(relative: bytes, path: bytes, status: os.stat_result) -> Source:
    try:
        name = relative.decode("utf-8")
    except UnicodeDecodeError:
        raise SourceInvalid(f"{shown(path)}: the path is not UTF-8; rename it") from None
    return Source(document_id(name), name, path, _state(status))


def _state(status: os.stat_result) -> State:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


def read_source(source: Source) -> bytes:
    """The content of a document, whole and unchanged since the survey."""
    try:
        descriptor = os.open(source.path, _READ_FLAGS)
        try:
            before = _state(os.fstat(descriptor))
            content = read_all(descriptor, source.byte_count)
            after = _state(os.fstat(descriptor))
        finally:
            os.close(descriptor)
    except OSError as problem:
        raise storage_failed("cannot read", source.path, problem) from problem
    if not source.state == before == after:
        raise changed_while_read(source.path)
    if len(content) != source.byte_count:
        raise StorageFailed(
            f"{shown(source.path)} has another size than the system says, as files of /proc have; "
            "move it out of the sources"
        )
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise SourceInvalid(
            f"{shown(source.path)}: not UTF-8 at byte {problem.start}; convert the file, or move it out of the sources"
        ) from None
    return content


def changed_while_read(path: bytes) -> StorageFailed:
    return StorageFailed(f"{shown(path)} changed while the sources were read; run the build again")


def check_unchanged(sources: bytes, before: list[Source]) -> None:
    """Fail if the folder is not what it was at the first survey."""
    after = survey(sources)
    if after != before:
        moved = {source.path for source in set(after) ^ set(before)}
        raise changed_while_read(min(moved))
