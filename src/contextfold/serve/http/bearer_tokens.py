"""Bearer tokens and their owners: a text file of owners and hashes, which is read again when it changes.

    # a comment
    alice sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

The tokens themselves are not stored, and no message quotes a line, which may contain a token by mistake. Knows files
and hashes, nothing of HTTP.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from typing import Protocol

from contextfold.errors import SettingsError
from contextfold.fold.store import LOCAL_OWNER
from contextfold.resolve.files import Opened, StorageErrors, read_all, replace_file
from contextfold.resolve.replace import delay_signals

# People and secret scanners recognise a token by this prefix.
PREFIX = "ctx_"
RANDOM_BYTES = 32
# A longer token of a caller is refused; valid tokens have 47 characters.
TOKEN_MAX_CHARS = 512
# The largest file; it has about forty thousand tokens.
FILE_MAX_BYTES = 4 << 20
OWNER_ONLY = 0o600
GROUP_AND_OTHERS = 0o077
# A file system's clock ticks every few milliseconds: a file changed twice within a tick looks the same both times.
# Until a change is older than this, the file is read at each look-up.
SETTLED_AFTER_NS = 100_000_000

_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_LOCK_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY


def make_token() -> str:
    """A new random token."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def hash_token(token: str) -> str:
    """The hash of a token. One round is enough, because 32 random bytes cannot be guessed."""
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def check_owner(owner: str) -> None:
    if not _OWNER.fullmatch(owner):
        raise SettingsError(
            "an owner is a letter or digit, then up to 63 letters, digits, dots, dashes, underscores or @; "
            f"{owner[:64]!r} is not"
        )


def parse_tokens(content: bytes, name: str) -> dict[str, str]:
    """Parse the file to owners by hash. Raises SettingsError with the name of the file and the line."""
    owners: dict[str, str] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        where = f"{name}, line {number}"
        try:
            words = line.decode("utf-8").split()
        except UnicodeDecodeError:
            raise SettingsError(f"{where}: this is not UTF-8 text; remove the line") from None
        if not words or words[0].startswith("#"):
            continue
        owner, digest = _parse_entry(words, where)
        if owners.setdefault(digest, owner) != owner:
            raise SettingsError(f"{where}: another owner has this very token; remove one of the two lines")
    return owners


def _parse_entry(words: list[str], where: str) -> tuple[str, str]:
    remedy = "write OWNER sha256:HEX, or let `context token` write it"
    match words:
        case [owner, digest] if _OWNER.fullmatch(owner) and _HASH.fullmatch(digest.lower()):
            return owner, digest.lower()
        case [owner, _] if not _OWNER.fullmatch(owner):
            raise SettingsError(f"{where}: the first word is no owner's name; {remedy}")
        case [_, _]:
            raise SettingsError(f"{where}: the second word is no sha256: with 64 hex digits; {remedy}")
    raise SettingsError(f"{where}: an entry has two words; {remedy}")


class Tokens(Protocol):
    """The tokens that a daemon accepts."""

    def owner_of(self, token: str) -> str | None:
        """The owner of a token; None if the token is not valid."""


class RunToken:
    """The only token of a daemon that one run has started for itself. Its owner is that of a daemon without tokens."""

    def __init__(self, token: str) -> None:
        self._hash = hash_token(token)

    def owner_of(self, token: str) -> str | None:
        """The owner of a token. Digests are compared, so the time it takes reveals nothing about a token."""
        return LOCAL_OWNER if hash_token(token[:TOKEN_MAX_CHARS]) == self._hash else None


class TokenFile:
    """The owners of tokens, from the current content of the file.

    While the file is missing, unreadable or malformed, no token is valid; `report` is called once for each state of the
    file.
    """

    def __init__(self, path: str, report: Callable[[str], None]) -> None:
        self._path = path
        self._report = report
        self._reported = ""
        self._owners, self._seen = _load(path)

    def owner_of(self, token: str) -> str | None:
        """The owner of a token. Digests are compared, so the time it takes reveals nothing about a token."""
        self._refresh()
        return self._owners.get(hash_token(token)) if len(token) <= TOKEN_MAX_CHARS else None

    def _refresh(self) -> None:
        try:
            if self._seen is not None and _identity(os.stat(self._path)) == self._seen:
                return
            self._owners, self._seen = _load(self._path)
            problem = ""
        except SettingsError as refusal:
            problem = str(refusal)
        except OSError as refusal:
            problem = str(_read_error(self._path, refusal))
        if problem:
            self._owners, self._seen = {}, None
        if problem != self._reported:
            self._report(f"no token is accepted: {problem}" if problem else f"{self._path} is valid again")
        self._reported = problem


def _load(path: str) -> tuple[dict[str, str], tuple[int, ...] | None]:
    """The owners by hash, and the identity of the file for which they are valid."""
    try:
        content, status = _read(path)
    except OSError as problem:
        raise _read_error(path, problem) from problem
    is_settled = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_AFTER_NS
    return parse_tokens(content, path), _identity(status) if is_settled else None


def _read(path: str) -> tuple[bytes, os.stat_result]:
    """The content and status of the file. Raises SettingsError if it must not be used."""
    descriptor = os.open(path, _READ_FLAGS)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SettingsError(f"{path} is not a file; give --token-file one that `context token` made")
        if status.st_mode & GROUP_AND_OTHERS:
            raise SettingsError(f"{path} is open to other users; close it with `chmod 600 {path}`")
        if status.st_size > FILE_MAX_BYTES:
            raise SettingsError(f"{path} has more than {FILE_MAX_BYTES >> 20} MiB; remove unused entries")
        return read_all(descriptor, status.st_size), status
    finally:
        os.close(descriptor)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read_error(path: str, problem: OSError) -> SettingsError:
    if isinstance(problem, FileNotFoundError):
        return SettingsError(f"there is no {path}; make it with `context token OWNER --token-file {path}`")
    return SettingsError(f"cannot read {path}: {problem.strerror}; give yourself the permission")


def add_token(path: str, owner: str) -> str:
    """Make a token for an owner and add its hash to the file. All other lines stay unchanged.

    A daemon may read the file at any time, and accepts no token while it is malformed. So the new text replaces the old
    one in one step, and a second writer waits.
    """
    check_owner(owner)
    # A symbolic link is not replaced; its target is.
    real = os.path.realpath(path)
    token = make_token()
    with (
        StorageErrors("cannot write", os.fsencode(real)),
        Opened(os.fsencode(os.path.dirname(real)), _LOCK_FLAGS) as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        with delay_signals():
            try:
                before, _ = _read(real)
            except FileNotFoundError:
                before = b""
            # An entry is not added to a malformed file.
            parse_tokens(before, real)
            end = b"" if before.endswith(b"\n") or not before else b"\n"
            entry = f"{owner} {hash_token(token)}\n".encode()
            replace_file(real, before + end + entry, new_mode=OWNER_ONLY)
    return token
