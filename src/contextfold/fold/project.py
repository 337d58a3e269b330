"""Projects, and the sessions in them that callers address. Checks and normalises project paths and session names.

Reads no disk: the daemon may run on another machine.
"""

from hashlib import sha256
from typing import NamedTuple

from contextfold.errors import ArgumentInvalid
from contextfold.fold.store import SessionKey

PATH_LENGTH_MAX = 4_096
NAME_LENGTH_MAX = 200
HASH_LENGTH = 16
# The project in the key of a session that began before its project was known.
NO_PROJECT = "0" * HASH_LENGTH


class Project(NamedTuple):
    """A project. `path` is normalised and identifies it; `given` is the path as the caller sent it.

    Secrets are searched for in `given`, because normalising may hide one.
    """

    path: str
    given: str

    @property
    def hash(self) -> str:
        return hash_text(self.path)[:HASH_LENGTH]


_CONTROLS = frozenset(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
_FIRST_SURROGATE, _LAST_SURROGATE = "\ud800", "\udfff"


def normalise_path(path: str) -> str:
    """An absolute path without `.`, `..`, doubled or trailing separators: POSIX, Windows drive or share."""
    if len(path) > PATH_LENGTH_MAX or not _CONTROLS.isdisjoint(path):
        raise ArgumentInvalid("project_path", f"must have no control characters and at most {PATH_LENGTH_MAX}")
    if path.startswith("/"):
        return "/" + "/".join(_steps(path.split("/")))
    if path[:1].isascii() and path[:1].isalpha() and path[1:2] == ":" and path[2:3] in ("\\", "/"):
        return path[0].upper() + ":\\" + "\\".join(_steps(_split(path[3:])))
    if path.startswith("\\\\"):
        server, share, *steps = [*filter(None, _split(path)), "", ""]
        # A `..` does not lead out of a share.
        return "\\\\" + "\\".join([server, share, *_steps(steps)]).rstrip("\\")
    raise ArgumentInvalid("project_path", "must be absolute, like /home/me/project")


def _split(path: str) -> list[str]:
    return path.replace("/", "\\").split("\\")


def display_path(scrubbed_path: str) -> str:
    """Normalise a redacted path for display; cut it if redactions have made it too long."""
    try:
        return normalise_path(scrubbed_path)
    except ArgumentInvalid:
        return scrubbed_path[:PATH_LENGTH_MAX]


def project_at(path: str) -> Project:
    return Project(normalise_path(path), path)


def hash_text(text: str) -> str:
    return sha256(text.encode("utf-8")).hexdigest()


def hash_name(name: str | None) -> str:
    """What identifies a session in its project; empty for the session without a name."""
    if name is None:
        return ""
    is_text = _CONTROLS.isdisjoint(name) and not any(_FIRST_SURROGATE <= c <= _LAST_SURROGATE for c in name)
    if not 1 <= len(name) <= NAME_LENGTH_MAX or not is_text or not name.strip():
        raise ArgumentInvalid("session", f"must be a name of 1 to {NAME_LENGTH_MAX} characters, none of them control")
    return hash_text(name)


def _steps(pieces: list[str]) -> list[str]:
    steps: list[str] = []
    for piece in pieces:
        if piece == ".." and steps:
            steps.pop()
        elif piece not in ("", ".", ".."):
            steps.append(piece)
    return steps


class Conversation(NamedTuple):
    """One conversation with one model, as its host names it. A subagent has a conversation of its own."""

    # The host's id; or if it has none, a hash of the first messages.
    id: str
    # The host's id of the subagent; empty for the main agent.
    agent: str = ""
    # Whether the id is the host's.
    is_named: bool = True
    # Distinguishes conversations that begin with the same messages.
    number: int = 0

    @property
    def hash(self) -> str:
        """What identifies its session, beside owner and project. No name of a session has this hash."""
        return hash_text(f"\0conversation\0{self.id}\0{self.agent}\0{self.number}")


class Target(NamedTuple):
    """A session, and what a new one begins with, as the caller sent it. An empty path means that none is known yet."""

    key: SessionKey
    given_path: str
    given_name: str | None
    conversation: Conversation | None = None


class Caller(NamedTuple):
    owner: str
    session_name: str | None = None
    # Set if the call may be repeated and must take effect once.
    operation_id: str | None = None
    # The run that the call belongs to (`context run`), and the host's id of the call; empty if they are not known.
    run: str = ""
    call_id: str = ""
    # The session of the conversation that made the call, if it is known.
    session: Target | None = None
    # The project of the run.
    project: Project | None = None


def target_of(caller: Caller, project: Project | None) -> Target:
    """The session of a call: that of its conversation, else the one that the caller names, else the project's."""
    if caller.session is not None:
        return caller.session
    project = project or caller.project
    if project is None:
        raise ArgumentInvalid("project_path", "is required: the conversation of this call is not known")
    name = caller.session_name
    return Target(SessionKey(caller.owner, project.hash, hash_name(name)), project.given, name)


def conversation_target(owner: str, conversation: Conversation, project: Project | None, name: str | None) -> Target:
    """A new session of a conversation."""
    project_hash = project.hash if project else NO_PROJECT
    return Target(
        SessionKey(owner, project_hash, conversation.hash), project.given if project else "", name, conversation
    )
