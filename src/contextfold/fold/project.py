"""Where work belongs: a project by its path, a session by its name. Lexical only: the daemon may be elsewhere."""

from __future__ import annotations

import hashlib
import re

from contextfold.common.dataclass import dataclass
from contextfold.errors import ArgumentInvalid

PATH_LENGTH_MAX = 4_096
NAME_LENGTH_MAX = 200
HASH_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Project:
    path: str  # normalised: what tells projects apart
    given: str  # as it was sent: what is looked through for secrets, since normalising may hide what makes one

    @property
    def hash(self) -> str:
        return hashed(self.path)[:HASH_LENGTH]


_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOT_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def normalised(path: str) -> str:
    """An absolute path without `.`, `..`, doubled or trailing separators: POSIX, Windows drive or share."""
    if len(path) > PATH_LENGTH_MAX or _CONTROL.search(path):
        raise ArgumentInvalid("project_path", f"must have no control characters and at most {PATH_LENGTH_MAX}")
    if path.startswith("/"):
        return "/" + "/".join(_steps(path.split("/")))
    if _DRIVE.match(path):
        return path[0].upper() + ":\\" + "\\".join(_steps(re.split(r"[\\/]", path[3:])))
    if path.startswith("\\\\"):
        server, share, *steps = [*filter(None, re.split(r"[\\/]", path)), "", ""]
        return "\\\\" + "\\".join([server, share, *_steps(steps)]).rstrip("\\")  # nothing leads out of a share
    raise ArgumentInvalid("project_path", "must be absolute, like /home/me/project")


def displayed(scrubbed_path: str) -> str:
    """A path as it is shown, which redactions may have made longer than a path may be."""
    try:
        return normalised(scrubbed_path)
    except ArgumentInvalid:
        return scrubbed_path[:PATH_LENGTH_MAX]


def project_at(path: str) -> Project:
    return Project(normalised(path), path)


def hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def check_session_name(name: str) -> str:
    if not 1 <= len(name) <= NAME_LENGTH_MAX or _NOT_TEXT.search(name) or not name.strip():
        raise ArgumentInvalid("session", f"must be a name of 1 to {NAME_LENGTH_MAX} characters, none of them control")
    return name


def _steps(pieces: list[str]) -> list[str]:
    steps: list[str] = []
    for piece in pieces:
        if piece == ".." and steps:
            steps.pop()
        elif piece not in ("", ".", ".."):
            steps.append(piece)
    return steps
