"""The caller of a tool and its target session. Pure; knows no protocol."""

from __future__ import annotations

from dataclasses import dataclass

from contextfold.fold.ports.store import SessionKey
from contextfold.fold.project import Project, name_hash_of


@dataclass(frozen=True, slots=True)
class Caller:
    owner: str
    session_name: str | None = None
    # Set if the call may be repeated and must take effect once.
    operation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A session, and the path and name for a new one, both as the caller sent them."""

    key: SessionKey
    given_path: str
    given_name: str | None


def target_of(caller: Caller, project: Project) -> Target:
    name = caller.session_name
    return Target(SessionKey(caller.owner, project.hash, name_hash_of(name)), project.given, name)
