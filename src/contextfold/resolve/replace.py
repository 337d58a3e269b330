"""Replaces a folder with a new one in one step, for one builder at a time. Knows folders, not their contents.

The new folder is made as a staging folder beside the target. Its builder holds a lock on it, which the system releases
when the process ends. A staging folder without a lock was left behind by a killed build; the next build empties and
uses it. A single system call exchanges the finished folder with the old one, so a reader sees one or the other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator

from contextfold.errors import CacheExists, StorageFailed
from contextfold.resolve.files import SET_ASIDE_SUFFIX, STAGING_SUFFIX, StorageErrors, format_path, is_folder, sync

# A system without advisory locks stops a second builder only at the rename.
try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

# A longer target name is shortened in the names of the staging folders, to stay within the limits of file systems.
NAME_BYTES = 200
LOCK_ATTEMPTS = 10

_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextlib.contextmanager
def delay_signals() -> Iterator[None]:
    """Delay SIGINT, SIGTERM and SIGHUP until the end of the `with` block."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Staging:
    """A staging folder. `commit` moves it to the target; without a commit it is removed at the end of the block.

    With `force` an existing folder is replaced, if it is empty or `may_replace` is true for it.
    """

    def __init__(self, target: bytes, *, force: bool, may_replace: Callable[[bytes], bool]) -> None:
        self._may_replace = may_replace
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
            with StorageErrors("cannot prepare", self.path):
                with delay_signals():
                    self._take()
                self._recover()
                self._check_target()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _take(self) -> None:
        """Create or take over the staging folder, lock it and empty it."""
        for _ in range(LOCK_ATTEMPTS):
            try:
                self._make_parents()
                os.mkdir(self.path)
            except FileNotFoundError:
                # A failed build has removed the parent folder that it had created.
                continue
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
                # Its builder finished after the `mkdir` above failed.
                pass
            self._unlock()
        raise self._busy()

    def _make_parents(self) -> None:
        """Make the missing parents of the target; remember them, the innermost first."""
        folder = self._parent
        while folder and not os.path.exists(folder):
            if folder not in self._made_parents:
                self._made_parents.append(folder)
            folder = os.path.dirname(folder)
        os.makedirs(self._parent, exist_ok=True)

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
            f"another build is writing {format_path(self.target)}; wait for it to end, then run this again"
            + ("" if fcntl else f" (if none is running, delete {format_path(self.path)})")
        )

    def _recover(self) -> None:
        """Complete or undo the exchange of a build that was killed between its two renames."""
        if os.path.lexists(self._set_aside):
            if os.path.islink(self._set_aside):
                # No build makes a link. It was planted, and what it leads to is not ours.
                os.unlink(self._set_aside)
            elif os.path.lexists(self.target):
                _remove(self._set_aside)
            else:
                os.rename(self._set_aside, self.target)

    def _check_target(self) -> None:
        """Raise an error if the target must not be replaced."""
        if not os.path.lexists(self.target):
            return
        if not self._force:
            raise CacheExists(
                f"{format_path(self.target)} is already there; add --force to replace it, or choose another path"
            )
        if os.path.ismount(self.target):
            raise StorageFailed(
                f"{format_path(self.target)} is a mount point, which cannot be replaced; choose a path inside it"
            )
        if not is_folder(self.target):
            raise StorageFailed(
                f"{format_path(self.target)} is not a folder, so --force leaves it alone; choose another path"
            )
        if os.listdir(self.target) and not self._may_replace(self.target):
            raise StorageFailed(
                f"{format_path(self.target)} is neither empty nor a cache that contextfold made, so a build leaves it "
                "alone, with --force too; choose another path"
            )

    def commit(self) -> None:
        """Move the folder to the target and remove the old one. Signals are delayed until both are done."""
        with delay_signals():
            self._put_in_place()
            self._leave()

    def _put_in_place(self) -> None:
        with StorageErrors("cannot put the new cache at", self.target):
            self._check_target()
            if os.path.lexists(self.target):
                # The old folder becomes the staging folder by the exchange; the lock stops other builds from using it.
                self._lock(self.target)
                if not _rename_with(_EXCHANGE, self.path, self.target):
                    self._exchange_in_two_steps()
            else:
                if not _rename_with(_NO_REPLACE, self.path, self.target):
                    os.rename(self.path, self.target)
                # From now on a folder at the staging path belongs to another builder.
                self._owned = False
            sync(self._parent)
            self._made_parents = []

    def _exchange_in_two_steps(self) -> None:
        """Exchange the folders with plain renames. If the process is killed in between, the next build recovers."""
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
        for folder in self._made_parents:
            try:
                os.rmdir(folder)
            except OSError:
                # Another program has put something into the folder.
                break
        self._made_parents = []
        self._unlock()


def _real_target(target: bytes, *, force: bool) -> bytes:
    """The path of the cache without trailing slashes. With `force`, a link is resolved: its target is replaced.

    A link that leads out of its own folder is refused. It may have come with a cloned repository, and what it leads to
    was not named by the person who runs the build.
    """
    stripped = target
    while stripped.endswith((b"/", b"/.")) and stripped.strip(b"/"):
        stripped = stripped.removesuffix(b".").rstrip(b"/")
    if not force or not os.path.isdir(stripped):
        return stripped
    real = os.path.realpath(stripped)
    if os.path.islink(stripped):
        folder = os.path.realpath(os.path.dirname(stripped) or b".")
        if os.path.commonpath([real, folder]) != folder:
            raise StorageFailed(
                f"{format_path(stripped)} is a link to {format_path(real)}, outside of its folder, so it is not "
                "replaced; remove the link, or give --cache the folder itself"
            )
    return real


def _short(name: bytes) -> bytes:
    if len(name) <= NAME_BYTES:
        return name
    return name[:NAME_BYTES] + b"-" + hashlib.sha256(name).hexdigest()[:8].encode()


def _empty(folder: bytes) -> None:
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                _remove(entry.path)
            else:
                os.unlink(entry.path)


def _remove(folder: bytes) -> None:
    """Remove a folder and its read-only subfolders; ignore what cannot be removed. Links are not followed."""
    if os.path.islink(folder):
        with contextlib.suppress(OSError):
            os.unlink(folder)
        return
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
    """Rename with a flag of renameat2 or renamex_np; False if the system does not support it."""
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
