"""What `context install` and `context uninstall` do to the world: find a host's files, read them, show the difference,
put each new text in its place in one step, all of them or none. Knows paths, links, permissions and the environment;
what the texts should be is `contextfold.hosts.config_files`'s to say.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from contextfold.cli.output import is_agreed, is_attended, plain, say, tell_on_terminal
from contextfold.cli.parse import UsageError
from contextfold.common import signals
from contextfold.common.descriptors import write_all
from contextfold.common.record import Record
from contextfold.errors import StorageFailed
from contextfold.hosts.config_files import FOLDERS_MAX, Removal, Unfit
from contextfold.hosts.programs import HOSTS, Host
from contextfold.resolve.files import FileAbsent, NotRegular, read_regular, shown, storage_failed, sync
from contextfold.settings import CACHE_ROOT

COMMAND = "context"
EMPTY = "{}\n"
CONFIG_BYTES_MAX = 2 << 20
TAB = "    "  # on a terminal
OWNER_ONLY = 0o600
ANYBODY_S = 0o222
STAGED_SUFFIX = b".contextfold-new"
_STAGING_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class ConfigFile:
    """A host's configuration file: what is in it now, and another text in its place."""

    def __init__(self, host: Host, path: str) -> None:
        self.host = host
        self.path = path
        self._real = os.path.realpath(os.fsencode(path))  # a link stays one; what it leads to is edited
        self._status = self._look()
        self.text = self._read() if self._status else None

    def refuse(self, problem: Unfit) -> StorageFailed:
        return StorageFailed(f"{self.path} is left as it is: {problem}")

    @property
    def is_link(self) -> bool:
        return os.path.islink(self.path)

    def missing_folders(self) -> int:
        """How many folders have to be made before the file can be."""
        missing, folder = 0, os.path.dirname(self._real)
        while not os.path.isdir(folder):
            if os.path.lexists(folder):
                raise StorageFailed(f"{shown(folder)} is not a folder; move it away, then run this again")
            missing, folder = missing + 1, os.path.dirname(folder)
        if missing > FOLDERS_MAX:
            raise StorageFailed(
                f"there is no folder {shown(os.path.dirname(self._real))}, nor most of those above it; make it, or "
                f"start {self.host.title} once, then run this again"
            )
        return missing

    def write(self, text: str) -> None:
        """Put another text in the file's place, whole, durable, with the mode and owner the file had."""
        self.refuse_if_read_only()
        self._replace(text, self._status)

    def put_back(self, folders: int) -> None:
        """The file as it was when it was read, after this very run has changed it, and made this many folders."""
        changed = ConfigFile(self.host, self.path)
        if self.text is None:
            changed.delete(folders)
        else:
            changed._replace(self.text, self._status)

    def _replace(self, text: str, like: os.stat_result | None) -> None:
        folder = os.path.dirname(self._real)
        with signals.held_back():
            made = self._make_folders(folder)
            try:
                with self._staging() as staging:
                    _stage(staging, text.encode(), like)
                    self._refuse_if_changed()
                    os.rename(self._staged, self._real)
                made = []
            except OSError as problem:
                raise storage_failed("cannot write", self._real, problem) from problem
            finally:
                _remove_empty(made)
        sync(folder)

    def delete(self, folders: int) -> None:
        """Remove the file, and as many folders above it as were made for it, where nothing else is in them."""
        self.refuse_if_read_only()
        try:
            with signals.held_back(), self._staging():
                self._refuse_if_changed()
                os.unlink(self._real)
        except OSError as problem:
            raise storage_failed("cannot remove", self._real, problem) from problem
        above = [os.path.dirname(self._real)]
        while len(above) <= folders:
            above.append(os.path.dirname(above[-1]))
        _remove_empty(above[:folders])
        sync(next(folder for folder in above if os.path.isdir(folder)))

    @property
    def _staged(self) -> bytes:
        folder, name = os.path.split(self._real)
        return os.path.join(folder, b"." + name + STAGED_SUFFIX)

    @contextmanager
    def _staging(self) -> Iterator[int]:
        """A file beside ours, held by us alone. One without a holder is what a killed run left, and is taken over."""
        descriptor = os.open(self._staged, _STAGING_FLAGS, OWNER_ONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(descriptor)
            if not os.path.samestat(status, os.lstat(self._staged)):
                raise self._changed()
            if status.st_nlink > 1:
                raise StorageFailed(f"{shown(self._staged)} is a second name of another file; remove it first")
            os.ftruncate(descriptor, 0)
            try:
                yield descriptor
            finally:
                if os.path.lexists(self._staged):
                    os.unlink(self._staged)
        except (BlockingIOError, FileNotFoundError):
            raise self._changed() from None
        finally:
            os.close(descriptor)

    def _look(self) -> os.stat_result | None:
        try:
            status = os.lstat(self._real)
        except (FileNotFoundError, NotADirectoryError):
            if self.is_link:
                raise StorageFailed(f"{self.path} is a link that leads nowhere; mend or remove it first") from None
            return None
        except OSError as problem:
            raise storage_failed("cannot look at", self._real, problem) from problem
        if not stat.S_ISREG(status.st_mode):
            raise StorageFailed(f"{self.path} is not a file; move it away, then run this again")
        if status.st_nlink > 1:
            raise StorageFailed(
                f"{self.path} has a second name (a hard link), which would keep the old text; edit it by hand"
            )
        if status.st_size > CONFIG_BYTES_MAX:
            raise StorageFailed(f"{self.path} is larger than any configuration; look at what it is")
        return status

    def _read(self) -> str:
        try:
            return read_regular(self._real).decode("utf-8")
        except UnicodeDecodeError:
            raise StorageFailed(f"{self.path} is not UTF-8 text; save it as UTF-8, then run this again") from None
        except (FileAbsent, NotRegular):
            raise self._changed() from None

    def _make_folders(self, folder: bytes) -> list[bytes]:
        """Make the folders that are missing; those that were made, the innermost first."""
        wanted = [folder]
        for _ in range(self.missing_folders()):
            wanted.append(os.path.dirname(wanted[-1]))
        made: list[bytes] = []
        try:
            for path in reversed(wanted[:-1]):
                os.mkdir(path)
                made.insert(0, path)
        except OSError as problem:
            _remove_empty(made)
            raise storage_failed("cannot make", path, problem) from problem
        return made

    def refuse_if_read_only(self) -> None:
        """A rename would not ask. Whoever protected the file meant it, even against root."""
        if self._status and (not self._status.st_mode & ANYBODY_S or not os.access(self._real, os.W_OK)):
            raise StorageFailed(f"{self.path} is read-only; make it writable (chmod u+w), then run this again")

    def _refuse_if_changed(self) -> None:
        """The text was made from what was read: what somebody wrote since must not be lost."""
        try:
            now: os.stat_result | None = os.lstat(self._real)
        except FileNotFoundError:
            now = None
        if _identity(now) != _identity(self._status):
            raise self._changed()

    def _changed(self) -> StorageFailed:
        return StorageFailed(f"{self.path} was changed by somebody else just now; run this again")


class Change(Record):
    """What is to become of a file."""

    file: ConfigFile
    text: str | None  # none: it goes
    folders: int  # that have to be made before, or were made for it and go too

    @property
    def is_needed(self) -> bool:
        return self.text != self.file.text

    def make(self) -> None:
        if self.text is None:
            self.file.delete(self.folders)
        else:
            self.file.write(self.text)


def change_to(file: ConfigFile, removal: Removal) -> Change:
    """What is to become of a file that our things are taken out of."""
    if removal.text is None and file.is_link:  # install makes no links: whoever made this one wants a file at its end
        return Change(file, EMPTY, 0)
    return Change(file, removal.text, removal.folders)


def make_all(changes: list[Change]) -> None:
    """Change all the files, or none of them."""
    for change in changes:
        change.file.refuse_if_read_only()
    made: list[Change] = []
    with signals.held_back():
        try:
            for change in changes:
                change.make()
                made.insert(0, change)
        except Exception:
            for change in made:
                change.file.put_back(change.folders)
            raise


def made(changes: list[Change], values: Mapping[str, str], *, order: int = 1) -> bool:
    """Make the changes and print the difference; a person sees it first, and is asked."""
    is_asked = "yes" not in values and is_attended()
    if is_asked:
        show(changes)
        if not is_agreed("Change this?"):
            tell_on_terminal("nothing was changed")
            return False
    make_all(changes[::order])
    if not is_asked:
        show(changes)
    return True


class Places(Record):
    """Where a host keeps what a command is about."""

    host: Host
    server: str
    hooks: str  # empty if the host has none


def places(values: Mapping[str, str]) -> Places:
    """The files that a command's words mean."""
    host = HOSTS[values["host"]]
    if "user" in values or not host.project_file:
        if "project" in values:
            raise UsageError(f"--project is not for a user's own file; leave it out, or {_use_project(host)}")
        if "user" in values and not (host.user_files and host.project_file):
            raise UsageError(f"--user is not for {host.name}: it has one place only; leave it out")
        hooks = os.path.join(_home(), host.hooks.user_file) if host.hooks else ""
        return Places(host, _user_file(host), hooks)
    project = absolute(values.get("project", "."))
    if not os.path.isdir(project):
        raise StorageFailed(f"there is no folder {project}; give --project the folder that holds the project")
    hooks = os.path.join(project, host.hooks.project_file) if host.hooks else ""
    return Places(host, os.path.join(project, host.project_file), hooks)


def _use_project(host: Host) -> str:
    return "leave out --user" if host.project_file else "name a host that has a file in each project"


def _user_file(host: Host) -> str:
    below_home = host.user_files.get(sys.platform)
    if below_home is None:
        raise StorageFailed(f"where {host.title} keeps its configuration on {sys.platform} is not known to us")
    home = _home()
    base, config = os.environ.get("XDG_CONFIG_HOME", ""), ".config/"
    if below_home.startswith(config) and os.path.isabs(base):
        return os.path.join(base, below_home.removeprefix(config))
    return os.path.join(home, below_home)


def _home() -> str:
    home = os.path.expanduser("~")
    if not os.path.isabs(home) or os.environ.get("HOME") == "":
        raise StorageFailed("there is no home folder; set HOME to yours, then run this again")
    return home


def cache_root(values: Mapping[str, str]) -> str:
    """The folder of caches that the server is to offer."""
    given = values.get("cache-root") or os.environ.get(CACHE_ROOT, "")
    if not given:
        raise UsageError(f"missing --cache-root DIR, the folder that holds your caches (or set {CACHE_ROOT})")
    if not os.path.isdir(given):
        raise StorageFailed(f"there is no folder {given}; make it, or give --cache-root the one that holds your caches")
    return _writable_in_json(absolute(given))


def absolute(path: str) -> str:
    """A path from the root. Where it goes up again, only the system knows where from: a link may lead elsewhere."""
    try:
        return os.path.realpath(path) if ".." in path.split("/") else os.path.abspath(path)
    except FileNotFoundError:
        raise StorageFailed("the current folder is gone; change to one that is there, then run this again") from None


def executable() -> str:
    """The `context` that is running, by the name it was called: a link to it outlives what it leads to today."""
    beside = os.path.join(os.path.dirname(sys.executable), COMMAND)
    for candidate in (sys.argv[0], beside):
        if os.path.basename(candidate) == COMMAND and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return _writable_in_json(absolute(candidate))
    raise StorageFailed(f"there is no executable {beside}; install contextfold, then run its `context install`")


def _writable_in_json(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise StorageFailed(f"{path} is not UTF-8, so no JSON file can name it; choose another path") from None
    if "${" in path:
        raise StorageFailed(f"{path} has ${{ in it, which hosts take for a variable; choose another path")
    return path


def show(changes: list[Change]) -> None:
    """The difference, as a patch; on a terminal without what could draw on it."""
    patch = "".join(line for change in changes for line in _patch(change.file.path, change.file.text, change.text))
    if sys.stdout is not None and sys.stdout.isatty():
        patch = "".join(plain(line.rstrip("\r").replace("\t", TAB)) + "\n" for line in patch.split("\n")[:-1])
    say(patch)


def _patch(path: str, before: str | None, after: str | None) -> Iterator[str]:
    from difflib import unified_diff
    from re import split

    old, new = ([line for line in split("(?<=\n)", text or "") if line] for text in (before, after))
    old_name, new_name = (plain(path) if text is not None else "/dev/null" for text in (before, after))
    for line in unified_diff(old, new, old_name, new_name):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _stage(descriptor: int, content: bytes, like: os.stat_result | None) -> None:
    """Write the new file. It may hold others' secrets, so until it is whole nobody else may read it."""
    write_all(descriptor, content)
    if like:
        now = os.fstat(descriptor)
        if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
            os.fchown(descriptor, like.st_uid, like.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
    else:
        os.fchmod(descriptor, 0o666 & ~_umask())
    os.fsync(descriptor)


def _identity(status: os.stat_result | None) -> tuple[int, ...] | None:
    return status and (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _remove_empty(folders: list[bytes]) -> None:
    for folder in folders:
        try:
            os.rmdir(folder)
        except OSError:
            return  # somebody uses it
