"""Reads the configuration files of agent programs, replaces all of them or none, and shows the difference.

Knows paths, links, permissions and the environment. `contextfold.hosts.config_files` decides what the texts should be.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import unified_diff
from re import split
from typing import NamedTuple

from contextfold.cli.output import ask_yes_no, can_ask, is_terminal, plain, print_answer, print_on_terminal
from contextfold.cli.parser import UsageError
from contextfold.common.posix import delay_signals, write_all
from contextfold.errors import StorageFailed
from contextfold.hosts.config_files import Unfit
from contextfold.hosts.programs import COMMAND, HOSTS, SKILL, Host
from contextfold.resolve.files import FileAbsent, NotRegular, format_path, read_regular, storage_failed, sync
from contextfold.settings import CACHE_ROOT

EMPTY_JSON = "{}\n"
CONFIG_BYTES_MAX = 8 << 20
# A tab is shown as these spaces.
TAB = "    "
WRITABLE_BY_ANYBODY = 0o222
OWNER_ONLY = 0o600
STAGED_SUFFIX = b".contextfold-new"
_STAGING_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class ConfigFile:
    """A configuration file: reads its text, which is None if there is no file, and replaces it."""

    def __init__(self, path: str) -> None:
        self.path = path
        # A link is not replaced; its target is edited.
        self._real = os.path.realpath(os.fsencode(path))
        self._status = self._look()
        self.text = self._read() if self._status else None

    @property
    def is_link(self) -> bool:
        return os.path.islink(self.path)

    def change(self, text: str | None, *, like: os.stat_result | None = None) -> None:
        """Replace the text atomically and durably, with the same mode and owner; None removes the file.

        Missing folders are made.
        """
        self.refuse_if_read_only()
        folder = os.path.dirname(self._real)
        with delay_signals():
            try:
                if text is not None:
                    os.makedirs(folder, exist_ok=True)
                with self._staging() as staging:
                    if text is not None:
                        _stage(staging, text.encode(), like or self._status)
                    self._refuse_if_changed()
                    if text is None:
                        os.unlink(self._real)
                    else:
                        os.rename(self._staged, self._real)
            except (FileExistsError, NotADirectoryError):
                raise StorageFailed(
                    f"{format_path(folder)} is not a folder; move it away, then run this again"
                ) from None
            except OSError as problem:
                doing = "cannot remove" if text is None else "cannot write"
                raise storage_failed(doing, self._real, problem) from problem
        sync(folder)

    def restore(self) -> None:
        """Restore the original text after `change`."""
        ConfigFile(self.path).change(self.text, like=self._status)

    @property
    def _staged(self) -> bytes:
        folder, name = os.path.split(self._real)
        return os.path.join(folder, b"." + name + STAGED_SUFFIX)

    @contextmanager
    def _staging(self) -> Iterator[int]:
        """A locked temporary file beside the target. One without a lock was left by a killed process and is reused.

        It may contain secrets, so only the owner can read it until its mode is set.
        """
        descriptor = os.open(self._staged, _STAGING_FLAGS, OWNER_ONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(descriptor)
            if not os.path.samestat(status, os.lstat(self._staged)):
                raise self._changed()
            if status.st_nlink > 1:
                raise StorageFailed(f"{format_path(self._staged)} is a second name of another file; remove it first")
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
                raise StorageFailed(f"{self.path} is a link that leads nowhere; correct or remove it first") from None
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

    def refuse_if_read_only(self) -> None:
        """Raise an error if the file is read-only. A rename would replace it in spite of its permissions."""
        if self._status and (not self._status.st_mode & WRITABLE_BY_ANYBODY or not os.access(self._real, os.W_OK)):
            raise StorageFailed(f"{self.path} is read-only; make it writable (chmod u+w), then run this again")

    def _refuse_if_changed(self) -> None:
        """Raise an error if the file has changed since it was read; writing would lose the change."""
        if ConfigFile(self.path).text != self.text:
            raise self._changed()

    def _changed(self) -> StorageFailed:
        return StorageFailed(f"{self.path} was changed by another program just now; run the command again")


class FileChange(NamedTuple):
    """A file and its new text; None removes the file."""

    file: ConfigFile
    text: str | None

    @property
    def is_needed(self) -> bool:
        return self.text != self.file.text


def plan_edit(file: ConfigFile, edit: Callable[[str | None], str | None]) -> FileChange:
    """The change of a file's text. A file that is left without content is removed, unless it is a link's target."""
    try:
        text = edit(file.text)
    except Unfit as problem:
        raise StorageFailed(f"{file.path} is left as it is: {problem}") from problem
    if text is None and file.is_link:
        text = "" if file.path.endswith(".toml") else EMPTY_JSON
    return FileChange(file, text)


def make_all(changes: list[FileChange]) -> None:
    """Change all the files, or none of them."""
    for change in changes:
        change.file.refuse_if_read_only()
    done: list[FileChange] = []
    with delay_signals():
        try:
            for change in changes:
                change.file.change(change.text)
                done.insert(0, change)
        except Exception:
            for change in done:
                change.file.restore()
            raise


def confirm_and_make(changes: list[FileChange], args: argparse.Namespace) -> bool:
    """Make the changes and print the difference; False if they are not made.

    On a terminal, show the difference first and ask for consent. With --dry-run, only show it.
    """
    if args.dry_run:
        show(changes)
        print_on_terminal("nothing was changed; leave out --dry-run to do it")
        return False
    is_asked = not args.yes and can_ask()
    if is_asked:
        show(changes)
        if not ask_yes_no("Change this?"):
            print_on_terminal("nothing was changed")
            return False
    make_all(changes)
    if not is_asked:
        show(changes)
    return True


class HostFiles(NamedTuple):
    """The files of a host; empty if it has none. `project` is empty if they are the user's own."""

    host: Host
    server: str
    hooks: str
    skill: str
    project: str


def files_of(args: argparse.Namespace) -> HostFiles:
    """The files of the user, if the host has them, or those of the project that --project names."""
    host = HOSTS[args.host]
    if args.project is not None and args.user:
        raise UsageError("--project and --user exclude each other; give one of them")
    if args.user and not host.user_file:
        raise UsageError(f"--user is not for {host.name}, which has files in projects only; leave it out")
    if args.project is not None and not host.project_file:
        raise UsageError(f"--project is not for {host.name}, which has files of the user only; leave it out")
    if host.user_file and args.project is None:
        project, folder = "", _home()
        server, hooks = _user_file(host), host.hooks.user_file
    else:
        project = folder = absolute(args.project or ".")
        server, hooks = os.path.join(project, host.project_file), host.hooks.project_file
    if project and not os.path.isdir(project):
        raise StorageFailed(f"there is no folder {project}; give --project the folder that holds the project")
    found = HostFiles(
        host,
        server,
        os.path.join(folder, hooks) if hooks else "",
        os.path.join(folder, host.skills, SKILL) if host.skills else "",
        project,
    )
    if project:
        for path in filter(None, (found.server, found.hooks, found.skill)):
            _refuse_link_outside(path, project)
    return found


def _refuse_link_outside(path: str, project: str) -> None:
    """Refuse a file that a link in the project leads to. The link may have come with a cloned repository."""
    real, folder = os.path.realpath(path), os.path.realpath(project)
    if os.path.commonpath([real, folder]) != folder:
        raise StorageFailed(
            f"{path} leads by a link to {real}, outside of the project, so it is left alone; remove the link first"
        )


def _user_file(host: Host) -> str:
    if sys.platform not in ("linux", "darwin"):
        raise StorageFailed(f"the configuration file of {host.title} on {sys.platform} is not known to us")
    below_home = (sys.platform == "darwin" and host.macos_file) or host.user_file
    base, config = os.environ.get("XDG_CONFIG_HOME", ""), ".config/"
    if below_home.startswith(config) and os.path.isabs(base):
        return os.path.join(base, below_home.removeprefix(config))
    return os.path.join(_home(), below_home)


def _home() -> str:
    home = os.path.expanduser("~")
    if not os.path.isabs(home) or os.environ.get("HOME") == "":
        raise StorageFailed("there is no home folder; set HOME to yours, then run this again")
    return home


def cache_root(args: argparse.Namespace) -> str:
    """The folder of caches that the server offers."""
    given = args.cache_root or os.environ.get(CACHE_ROOT, "")
    if not given:
        raise UsageError(f"missing --cache-root DIR, the folder that holds your caches (or set {CACHE_ROOT})")
    if not os.path.isdir(given):
        raise StorageFailed(f"there is no folder {given}; make it, or give --cache-root the one that holds your caches")
    return _writable_in_json(absolute(given))


def absolute(path: str) -> str:
    """An absolute path. A path with `..` is resolved by the system, because it may contain links."""
    try:
        return os.path.realpath(path) if ".." in path.split("/") else os.path.abspath(path)
    except FileNotFoundError:
        raise StorageFailed("the current folder is gone; change to one that is there, then run this again") from None


def executable() -> str:
    """The path by which `context` was called. A link is not resolved, because its target may change."""
    beside = os.path.join(os.path.dirname(sys.executable), COMMAND)
    for candidate in (sys.argv[0], beside):
        if (
            os.path.basename(candidate) in (COMMAND, "contextfold")
            and os.path.isfile(candidate)
            and os.access(candidate, os.X_OK)
        ):
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


def show(changes: list[FileChange]) -> None:
    """Print the difference as a patch. On a terminal, control characters are escaped."""
    patch = "".join(line for change in changes for line in _patch(change.file.path, change.file.text, change.text))
    if is_terminal(sys.stdout):
        patch = "".join(plain(line.rstrip("\r").replace("\t", TAB)) + "\n" for line in patch.split("\n")[:-1])
    print_answer(patch)


def _patch(path: str, before: str | None, after: str | None) -> Iterator[str]:
    old, new = ([line for line in split("(?<=\n)", text or "") if line] for text in (before, after))
    old_name, new_name = (plain(path) if text is not None else "/dev/null" for text in (before, after))
    for line in unified_diff(old, new, old_name, new_name):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _stage(descriptor: int, content: bytes, like: os.stat_result | None) -> None:
    """Write the new file, with the mode and the owner of the old one."""
    write_all(descriptor, content)
    now = os.fstat(descriptor)
    if like and (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(descriptor, like.st_uid, like.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode) if like else 0o666 & ~_umask())
    os.fsync(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
