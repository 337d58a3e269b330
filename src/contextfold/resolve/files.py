"""Finds caches, and reads and writes their files: only regular ones, without following links, with fsync after writing.

Knows paths and the system's errors, nothing of documents. Paths are bytes, so they do not depend on the locale.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress

from contextfold.common.canonical import Malformed
from contextfold.errors import CacheMissing, StorageFailed
from contextfold.resolve.cache_format import ABSENT, DEFAULT_CACHE, FINGERPRINT_FIELDS, MANIFEST_FILE

# O_NONBLOCK: opening a pipe must not wait for a writer.
READ_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
READ_BYTES = 1 << 20
# A cache is searched for in a folder and this many levels of subfolders, in at most so many folders of each level.
SEARCHED_LEVELS = 3
SEARCHED_FOLDERS_MAX = 500
# A larger file is refused before it is read: a sparse file needs little space on the disk but all of it in memory.
FILE_BYTES_MAX = 1 << 30
# From this number of files on, the whole file system is synced at once.
SYNC_TOGETHER_FROM = 500
# The names of folders that a build is writing, or is about to remove, end with these. They are not caches.
STAGING_SUFFIX = b".contextfold-building"
SET_ASIDE_SUFFIX = b".contextfold-replaced"
# Some file systems have inode numbers that do not fit into a signed 64-bit integer.
INODE_MASK = 2**63 - 1
# On other systems ctime is the time of creation, which a change of the file does not move.
CTIME_SHOWS_CHANGES = os.name == "posix"
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
# The errors of a path that leads to nothing, possibly through links.
LEADS_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
_NOT_A_FILE = {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EMLINK}


_ADVICE = {
    errno.EACCES: "give yourself the permission, or run as a user who has it",
    errno.EPERM: "give yourself the permission, or run as a user who has it",
    errno.ENOSPC: "free some space, then run this again",
    errno.EDQUOT: "free some space, then run this again",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), then run this again",
    errno.EROFS: "choose a path on a disk that may be written",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "it was removed during the operation; run the command again",
    errno.EMFILE: "raise the limit on open files (ulimit -n), then run this again",
}


class FileAbsent(Malformed):
    """There is no file at the path."""


class TooLarge(Malformed):
    """The file is larger than any that a build writes."""


class NotRegular(Malformed):
    """There is a folder, link, pipe or device instead of a regular file."""


def nearest_caches(folder: str) -> list[str]:
    """The default cache of a folder, else those nearest below it, else that of the nearest folder above it."""
    # `context build site/docs` is typed in the folder that has `site`, and so is the question after it.
    level = [folder]
    for _ in range(SEARCHED_LEVELS + 1):
        if found := [cache for name in level if is_cache(cache := os.path.join(name, DEFAULT_CACHE))]:
            return found
        level = list(itertools.islice(itertools.chain.from_iterable(map(_subfolders, level)), SEARCHED_FOLDERS_MAX))
    above, at = folder, os.path.dirname(folder)
    while at != above:
        candidate = os.path.join(at, DEFAULT_CACHE)
        if is_cache(candidate):
            return [candidate]
        above, at = at, os.path.dirname(at)
    raise CacheMissing(
        f"no {DEFAULT_CACHE} in {folder}, its subfolders or above; make one with `context build DIR`, or name one with "
        "--cache"
    )


def _subfolders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            return [os.path.join(folder, name) for name in names if not name.startswith(".")]
    except OSError:
        return []


def default_cache_of(path: str) -> str:
    """The cache at a path; for a folder of documents, its default cache."""
    own = os.path.join(path, DEFAULT_CACHE)
    return own if path and not is_cache(path) and is_cache(own) else path


def is_cache(path: str) -> bool:
    return os.path.isfile(os.path.join(path, MANIFEST_FILE))


def ignore_progress(_done: int, _total: int) -> None:
    """Discard the progress."""


def format_path(path: bytes) -> str:
    """A path as text for messages."""
    return os.fsdecode(path) or "''"


def storage_failed(doing: str, path: bytes, problem: OSError) -> StorageFailed:
    advice = _ADVICE.get(problem.errno or 0, "try again, and check the disk if it stays")
    return StorageFailed(f"{doing} {format_path(path)}: {problem.strerror or problem}; {advice}")


class StorageErrors:
    """Turns an OSError in a `with` block into StorageFailed, which says what was being done to a path."""

    def __init__(self, doing: str, path: bytes) -> None:
        self._doing = doing
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, problem: BaseException | None, _trace: object) -> None:
        if isinstance(problem, OSError):
            raise storage_failed(self._doing, self._path, problem) from problem


class Opened:
    """The descriptor of a file, which is closed at the end of the `with` block."""

    def __init__(self, path: bytes, flags: int, *, folder: int | None = None) -> None:
        self._descriptor = os.open(path, flags, 0o666, dir_fd=folder)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def read_regular(path: bytes) -> bytes:
    """Read a regular file. Links are not followed. Raises FileAbsent, NotRegular or TooLarge."""
    opened = open_regular(path)
    with StorageErrors("cannot read", path), opened as descriptor:
        size = _regular_size(descriptor)
        if size > FILE_BYTES_MAX:
            raise TooLarge(f"has {size:,} bytes; files of up to {FILE_BYTES_MAX:,} are read")
        return read_all(descriptor, size)


def open_regular(path: bytes) -> Opened:
    """Open what may be a regular file, without following a link. Raises FileAbsent or NotRegular."""
    try:
        return Opened(path, READ_FLAGS)
    except OSError as problem:
        if problem.errno in _NOT_THERE:
            raise FileAbsent("is missing") from problem
        if problem.errno in _NOT_A_FILE:
            raise NotRegular("is not a regular file") from problem
        raise storage_failed("cannot open", path, problem) from problem


def _regular_size(descriptor: int) -> int:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise NotRegular("is not a regular file")
    return status.st_size


def read_all(descriptor: int, expected_bytes: int) -> bytes:
    """Read the rest of a file; one system call is enough if the file has the expected size."""
    first = os.read(descriptor, expected_bytes + 1)
    if len(first) == expected_bytes:
        return first
    chunks = [first]
    while chunks[-1]:
        chunks.append(os.read(descriptor, READ_BYTES))
    return b"".join(chunks)


def is_folder(path: bytes) -> bool:
    """Whether there is a folder at the path. A link to a folder does not count."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError as problem:
        if problem.errno in _NOT_THERE:
            return False
        raise storage_failed("cannot look at", path, problem) from problem


def regular_size(path: bytes) -> int:
    """The size of a regular file in bytes; 0 if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def fingerprints(prefix: bytes, files: Iterable[bytes]) -> array[int]:
    """The fingerprints of files: four numbers for each, from one `lstat`. A change of a file changes its fingerprint.

    This loop takes most of the time of a resolve over many unchanged documents, so it does nothing else.
    """
    seen: array[int] = array("q")
    extend, lstat = seen.extend, os.lstat
    for file in files:
        try:
            status = lstat(prefix + file)
            extend((status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino & INODE_MASK))
        except (OSError, OverflowError):
            # The function that reads the file reports the error.
            del seen[len(seen) // FINGERPRINT_FIELDS * FINGERPRINT_FIELDS :]
            extend(ABSENT)
    return seen


def write_new(path: bytes, content: bytes, *, folder: int | None = None, synced: bool = False) -> None:
    """Create a file with this content, in a folder that may be given by its descriptor.

    A power cut may lose a file that is not `synced` until `make_durable` has returned.
    """
    with StorageErrors("cannot write", path), Opened(path, _CREATE_FLAGS, folder=folder) as descriptor:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if synced:
            os.fsync(descriptor)


def replace_file(path: str, content: bytes, *, new_mode: int = 0o666) -> None:
    """Replace a file's content in one step. Its mode and owner stay; a new file has `new_mode`.

    A link stays, and its target is replaced.
    """
    real = os.path.realpath(path)
    folder, name = os.path.split(real)
    # Two processes may replace the file at once: each has a temporary file of its own.
    staged = os.path.join(folder, f".{name}.contextfold-{os.getpid()}")
    with StorageErrors("cannot write", os.fsencode(real)):
        before = os.stat(real) if os.path.exists(real) else None
        # A process with this number that was killed may have left it.
        with suppress(FileNotFoundError):
            os.unlink(staged)
        try:
            with open(os.open(staged, _CREATE_FLAGS, new_mode), "wb") as file:
                if before is not None:
                    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                        os.fchown(file.fileno(), before.st_uid, before.st_gid)
                    os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(staged, real)
        except BaseException:
            os.unlink(staged)
            raise
    sync(os.fsencode(folder))


def make_durable(folder: bytes, files: Sequence[str]) -> None:
    """Sync these files and folders, and the folder that contains them, to the disk.

    One sync of the whole file system takes a tenth of the time of ten thousand single ones, but it also waits for the
    data of other programs. So a few files are synced one by one.
    """
    together = len(files) >= SYNC_TOGETHER_FROM and _sync_file_system(folder)
    for path in (folder,) if together else (*(os.path.join(folder, file.encode()) for file in files), folder):
        sync(path)


def sync(path: bytes) -> None:
    """Sync a file's content, or a folder's entries, to the disk."""
    try:
        with Opened(path, os.O_RDONLY) as descriptor:
            os.fsync(descriptor)
    except OSError as problem:
        # Some systems cannot sync folders.
        if problem.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise storage_failed("cannot sync", path, problem) from problem


def _sync_file_system(folder: bytes) -> bool:
    """Sync a whole file system to the disk; False if the system cannot do that."""
    try:
        import ctypes

        with Opened(folder, os.O_RDONLY) as descriptor:
            return bool(ctypes.CDLL(None).syncfs(descriptor) == 0)
    except (ImportError, OSError, AttributeError):
        return False
