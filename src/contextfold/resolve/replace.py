"""Putting a finished folder in its place in one step, with one builder at a time. Knows folders, not what is in them.

A staging folder stands beside the target under a name of its own. Its builder holds a lock on it that dies with the
process, so a staging folder without a lock is what a killed build left behind, and the next build empties and takes it.
The finished folder trades places with the old one in a single system call: whoever looks sees the old one or the new.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import sys
from types import TracebackType

from contextfold.common import signals
from contextfold.errors import CacheExists, StorageFailed
from contextfold.resolve.files import SET_ASIDE_SUFFIX, STAGING_SUFFIX, is_folder, shown, storage_failed, sync
from contextfold.resolve.layout import MANIFEST_FILE

try:
    import fcntl
except ImportError:  # no advisory locks on this system: a second builder is stopped by the rename alone
    fcntl = None  # type: ignore[assignment]

NAME_BYTES = 200  # of the target's name, so that ours stays within what file systems allow
LOCK_ATTEMPTS = 10

_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


class Staging:
    """A folder that `commit` puts at the target, and that is gone afterwards if nothing did."""

    def __init__(self, target: bytes, *, force: bool) -> None:
        self.target = _real_target(target, force=force)
        if not self.target:
            raise StorageFailed("the path of the cache is empty; give --cache a folder to make")
        self._force = force
        parent, name = os.path.split(self.target)
        self._parent = parent or b"."
        stem = os.path.join(self._parent, b"." + _short(name))
        self.path = stem + STAGING_SUFFIX
        self._set_aside = stem + SET_ASIDE_SUFFIX
        self._locks: list[int] = []
        self._owned = False
        self._made_parents: list[bytes] = []

    def __enter__(self) -> Staging:
        try:
            with signals.held_back():
                self._take()
            self._recover()
            self._check_target()
        except OSError as problem:
            self._leave()
            raise storage_failed("cannot prepare", self.path, problem) from problem
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _take(self) -> None:
        """Hold the staging folder, empty and locked."""
        for _ in range(LOCK_ATTEMPTS):
            try:
                self._made_parents += _make_parents(self._parent)
                os.mkdir(self.path)
            except FileNotFoundError:
                continue  # a failed build took back the parent it had made
            except FileExistsError:
                if fcntl is None:
                    raise self._busy() from None
            try:
                lock = self._lock(self.path)
                if lock is None or os.path.samestat(os.fstat(lock), os.lstat(self.path)):
                    self._owned = True
                    _empty(self.path)
                    return
            except FileNotFoundError:
                pass  # its builder finished between our two looks
            self._unlock()
        raise self._busy()

    def _lock(self, folder: bytes) -> int | None:
        if fcntl is None:
            return None
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._locks.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._unlock()
            raise self._busy() from None
        return lock

    def _unlock(self) -> None:
        while self._locks:
            os.close(self._locks.pop())

    def _busy(self) -> StorageFailed:
        return StorageFailed(
            f"another build is writing {shown(self.target)}; wait for it to end, then run this again"
            + ("" if fcntl else f" (if none is running, delete {shown(self.path)})")
        )

    def _recover(self) -> None:
        """Bring back a cache that a build killed between its renames had set aside, or finish what it was about."""
        if os.path.lexists(self._set_aside):
            if os.path.lexists(self.target):
                _remove(self._set_aside)  # the new one was in place already
            else:
                os.rename(self._set_aside, self.target)

    def _check_target(self) -> None:
        """Refuse what must not be replaced, before any work is done."""
        if not os.path.lexists(self.target):
            return
        if not self._force:
            raise CacheExists(
                f"{shown(self.target)} is already there; add --force to replace it, or choose another path"
            )
        if os.path.ismount(self.target):
            raise StorageFailed(
                f"{shown(self.target)} is a mount point, which cannot be replaced; choose a path inside it"
            )
        if not is_folder(self.target):
            raise StorageFailed(
                f"{shown(self.target)} is not a folder, so --force leaves it alone; choose another path"
            )
        if os.listdir(self.target) and not os.path.isfile(os.path.join(self.target, os.fsencode(MANIFEST_FILE))):
            raise StorageFailed(
                f"{shown(self.target)} is neither empty nor a cache (it has no {MANIFEST_FILE}), so --force leaves it "
                "alone; choose another path"
            )

    def commit(self) -> None:
        """Put the folder at the target, and remove what was there. No signal comes in between."""
        with signals.held_back():
            self._put_in_place()
            self._leave()

    def _put_in_place(self) -> None:
        try:
            self._check_target()
            if os.path.lexists(self.target):
                self._lock(self.target)  # so that no other build takes what we are about to remove for its own
                if not _rename_with(_EXCHANGE, self.path, self.target):
                    self._exchange_in_two_steps()
            else:
                if not _rename_with(_NO_REPLACE, self.path, self.target):
                    os.rename(self.path, self.target)
                self._owned = False  # the name is free: what stands there from now on is another builder's
            sync(self._parent)
            self._made_parents = []
        except OSError as problem:
            raise storage_failed("cannot put the new cache at", self.target, problem) from problem

    def _exchange_in_two_steps(self) -> None:
        """Where the system has no exchange. Killed in between, the next build brings the old folder back."""
        os.rename(self.target, self._set_aside)
        try:
            os.rename(self.path, self.target)
        except OSError:
            os.rename(self._set_aside, self.target)
            raise
        os.rename(self._set_aside, self.path)

    def _leave(self) -> None:
        if self._owned:
            self._owned = False
            _remove(self.path)
        for folder in reversed(self._made_parents):
            try:
                os.rmdir(folder)
            except OSError:
                break  # somebody uses it
        self._made_parents = []
        self._unlock()


def _real_target(target: bytes, *, force: bool) -> bytes:
    """The path to be built: without trailing slashes, and behind a link where --force may replace what it leads to."""
    stripped = target
    while stripped.endswith((b"/", b"/.")) and stripped.strip(b"/"):
        stripped = stripped.removesuffix(b".").rstrip(b"/")
    return os.path.realpath(stripped) if force and os.path.isdir(stripped) else stripped


def _short(name: bytes) -> bytes:
    if len(name) <= NAME_BYTES:
        return name
    return name[:NAME_BYTES] + b"-" + hashlib.sha256(name).hexdigest()[:8].encode()


def _make_parents(folder: bytes) -> list[bytes]:
    """Make a folder and whatever it needs above it; those that were made, the outermost first."""
    if folder in (b".", b"/") or _exists(folder):
        return []
    made = _make_parents(os.path.dirname(folder) or b".")
    try:
        os.mkdir(folder)
    except FileExistsError:
        return made  # another build was quicker
    return [*made, folder]


def _exists(path: bytes) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _empty(folder: bytes) -> None:
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                _remove(entry.path)
            else:
                os.unlink(entry.path)


def _remove(folder: bytes) -> None:
    """Remove a folder as far as possible, read-only folders in it included."""
    for path, folders, _ in os.walk(folder):
        for inner in (path, *(os.path.join(path, name) for name in folders)):
            if not os.path.islink(inner):
                with contextlib.suppress(OSError):
                    os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


# Flags of renameat2 on Linux and of renamex_np on macOS.
_NO_REPLACE, _EXCHANGE = {"linux": (1, 2), "darwin": (4, 2)}.get(sys.platform, (0, 0))
_AT_FDCWD = -100


def _rename_with(flag: int, old: bytes, new: bytes) -> bool:
    """Rename with a promise the plain call does not give; False where the system cannot give it."""
    try:
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "linux":
            failed = library.renameat2(_AT_FDCWD, old, _AT_FDCWD, new, flag)
        elif sys.platform == "darwin":
            failed = library.renamex_np(old, new, flag)
        else:
            return False
    except (ImportError, OSError, AttributeError):
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), new)
