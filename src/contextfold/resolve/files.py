"""Reading and writing single files as a cache needs it: only regular ones, never through a link, durable when written.

Knows paths and the system's errors, nothing of documents. Paths are bytes, so that no locale has a say in them.
"""

from __future__ import annotations

import errno
import os
import stat

from contextfold.errors import StorageFailed
from contextfold.resolve.layout import ABSENT, FINGERPRINT_FIELDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Sequence

READ_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not hang
    | getattr(os, "O_BINARY", 0)
)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
READ_BYTES = 1 << 20
# A larger file is refused before it is read: a sparse one costs nothing on a disk and everything in memory.
FILE_BYTES_MAX = 1 << 30
SYNC_TOGETHER_FROM = 500
# Of folders that a build is working on, or that one is about to remove: no caches yet, or no more.
STAGING_SUFFIX = b".contextfold-building"
SET_ASIDE_SUFFIX = b".contextfold-replaced"
INODE_MASK = 2**63 - 1  # some file systems number beyond what a signed integer holds
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
LEADS_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}  # of a path that may have links
_NOT_A_FILE = {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EMLINK}


_ADVICE = {
    errno.EACCES: "give yourself the permission, or run as a user who has it",
    errno.EPERM: "give yourself the permission, or run as a user who has it",
    errno.ENOSPC: "free some space, then run this again",
    errno.EDQUOT: "free some space, then run this again",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), then run this again",
    errno.EROFS: "choose a path on a disk that may be written",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "somebody removed it meanwhile; run this again",
    errno.EMFILE: "raise the limit on open files (ulimit -n), then run this again",
}


class FileAbsent(Exception):
    """No file at that path."""


class NotRegular(Exception):
    """A folder, link, pipe or device where a regular file should be."""


def shown(path: bytes) -> str:
    """A path as a person may see it."""
    return os.fsdecode(path)


def storage_failed(doing: str, path: bytes, problem: OSError) -> StorageFailed:
    advice = _ADVICE.get(problem.errno or 0, "try again, and check the disk if it stays")
    return StorageFailed(f"{doing} {shown(path)}: {problem.strerror or problem}; {advice}")


def read_regular(path: bytes) -> bytes:
    """The bytes of a regular file that is no link."""
    try:
        descriptor = os.open(path, READ_FLAGS)
    except OSError as problem:
        if problem.errno in _NOT_THERE:
            raise FileAbsent from problem
        if problem.errno in _NOT_A_FILE:
            raise NotRegular from problem
        raise storage_failed("cannot open", path, problem) from problem
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotRegular
        if status.st_size > FILE_BYTES_MAX:
            most = f"files of up to {FILE_BYTES_MAX:,} are read"
            raise StorageFailed(f"{shown(path)} has {status.st_size:,} bytes; {most}")
        return read_all(descriptor, status.st_size)
    except OSError as problem:
        raise storage_failed("cannot read", path, problem) from problem
    finally:
        os.close(descriptor)


def read_all(descriptor: int, expected_bytes: int) -> bytes:
    """The rest of a file, in one call if it has the size it is expected to have."""
    first = os.read(descriptor, expected_bytes + 1)
    if len(first) == expected_bytes:
        return first
    chunks = [first]
    while chunks[-1]:
        chunks.append(os.read(descriptor, READ_BYTES))
    return b"".join(chunks)


def read_part(path: bytes, offset: int, length: int) -> bytes:
    """Up to `length` bytes from the middle of a regular file; empty if there is none to read."""
    try:
        descriptor = os.open(path, READ_FLAGS)
    except OSError:
        return b""
    try:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, length)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def is_folder(path: bytes) -> bool:
    """Whether a folder, not a link to one, is there."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError as problem:
        if problem.errno in _NOT_THERE:
            return False
        raise storage_failed("cannot look at", path, problem) from problem


def regular_size(path: bytes) -> int:
    """The bytes of a regular file; 0 where there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def fingerprints(prefix: bytes, files: Iterable[bytes]) -> array[int]:
    """What tells whether files are as they were: one lstat each, four numbers each.

    This loop is most of a resolve over many unchanged documents; it is why nothing else is asked of each file.
    """
    from array import array

    seen: array[int] = array("q")
    extend, lstat = seen.extend, os.lstat
    for file in files:
        try:
            status = lstat(prefix + file)
            extend((status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino & INODE_MASK))
        except (OSError, OverflowError):  # looked at properly by whoever reads the file
            del seen[len(seen) // FINGERPRINT_FIELDS * FINGERPRINT_FIELDS :]
            extend(ABSENT)
    return seen


def few_fingerprints(prefix: bytes, files: Iterable[bytes]) -> tuple[int, ...]:
    """The same of a few files, for who must start quickly."""
    seen: tuple[int, ...] = ()
    for file in files:
        try:
            status = os.lstat(prefix + file)
            seen += (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino & INODE_MASK)
        except OSError:
            seen += ABSENT
    return seen


def write_new(path: bytes, content: bytes) -> None:
    """Create a file with this content. It may still be lost in a power cut until `make_durable` returns."""
    try:
        descriptor = os.open(path, _CREATE_FLAGS, 0o666)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)
    except OSError as problem:
        raise storage_failed("cannot write", path, problem) from problem


def make_durable(folder: bytes, files: Sequence[str]) -> None:
    """Have these files and folders, and the folder they are in, on the disk.

    One call for the whole file system costs a tenth of ten thousand calls, but waits for other programs' data as well;
    for a few files it is not worth that.
    """
    together = len(files) >= SYNC_TOGETHER_FROM and _sync_file_system(folder)
    for path in (folder,) if together else (*(os.path.join(folder, file.encode()) for file in files), folder):
        sync(path)


def sync(path: bytes) -> None:
    """Have a file's content, or a folder's names, on the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):  # some systems sync no folders
            raise storage_failed("cannot sync", path, problem) from problem


def _sync_file_system(folder: bytes) -> bool:
    """Have all of a file system on the disk; False where that cannot be asked for."""
    try:
        import ctypes

        descriptor = os.open(folder, os.O_RDONLY)
        try:
            return bool(ctypes.CDLL(None).syncfs(descriptor) == 0)
        finally:
            os.close(descriptor)
    except (ImportError, OSError, AttributeError):
        return False
