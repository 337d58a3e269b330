"""Who calls, and which session a call is for. Pure; knows no wire."""

from __future__ import annotations

from contextfold.common.dataclass import dataclass
from contextfold.fold.ports.store import SessionKey
from contextfold.fold.project import Project, check_session_name, hashed


@dataclass(frozen=True, slots=True)
class Caller:
    owner: str
    session_name: str | None = None
    # Set where a call may be sent again and must have its effect once.
    operation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A session, and the path and name it would begin with, both as they were sent."""

    key: SessionKey
    given_path: str
    given_name: str | None


def target_of(caller: Caller, project: Project) -> Target:
    name = caller.session_name
    name_hash = "" if name is None else hashed(check_session_name(name))
    return Target(SessionKey(caller.owner, project.hash, name_hash), project.given, name)
