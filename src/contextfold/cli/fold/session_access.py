"""What the `context fold` commands share: the store itself, whose session is meant, which branch. Draws nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from contextfold.app import serial_fold
from contextfold.cli.output import TURNING, say, tell_on_terminal
from contextfold.common.canonical import Encodable, encode
from contextfold.errors import ArgumentInvalid, BranchNotFound, SessionNotFound, StorageFailed, StoreInvalid
from contextfold.fold.project import Project, project_at
from contextfold.fold.service.callers import Caller, target_of
from contextfold.fold.service.overview import Overview
from contextfold.fold.session import State
from contextfold.fold.store import SessionKey
from contextfold.serve.http.bearer_tokens import LOCAL_OWNER
from contextfold.serve.serial_fold import SerialFold
from contextfold.settings import fold_settings_from

MAIN = "main"  # what the main thread is called where a branch could be named
BRANCH_PREFIX = "br_"
NAMED_MOST = 5  # branches that an ambiguous beginning is answered with

Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Whose session is meant, and of which project."""

    owner: str
    project: Project
    name: str | None

    @property
    def key(self) -> SessionKey:
        return target_of(Caller(self.owner, self.name), self.project).key

    @property
    def told(self) -> str:
        return self.project.path if self.name is None else f"{self.project.path}, session {self.name}"


@dataclass(frozen=True, slots=True)
class Desk:
    """The store, asked one thing at a time."""

    fold: SerialFold
    overview: Overview

    def look(self, place: Place) -> State:
        """The live session of a place; the empty one if there is none."""
        return self.fold.run(self.fold.service.look(place.key))


@contextmanager
def at_desk(values: Values) -> Iterator[Desk]:
    """The store itself, whether or not a daemon has it open too. A file is never made here."""
    settings = fold_settings_from(os.environ, values)
    if settings.nats is None and not os.path.exists(settings.store):
        raise StoreInvalid(
            f"there is no store yet: {settings.store} is not there; `context serve` makes it, --store names another"
        )
    fold = serial_fold(settings, may_migrate=False)
    try:
        yield Desk(fold, Overview(fold.service))
    finally:
        fold.close()


def owner_of(values: Values) -> str:
    return legible("--owner", values.get("owner", LOCAL_OWNER))


def project_of(values: Values) -> Project:
    return project_at(legible("--project", os.path.abspath(values.get("project") or os.curdir)))


def place_of(values: Values) -> Place:
    name = legible("--session", values["session"]) if "session" in values else None
    return Place(owner_of(values), project_of(values), name)


def legible(called: str, text: str) -> str:
    """A word of the command line that is text: keys are made of it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ArgumentInvalid(called, "must be UTF-8") from None
    return text


def branch_of(state: State, given: str) -> str | None:
    """The id that somebody means by it, or by its beginning; None is the main thread."""
    if given == MAIN:
        return None
    legible("BRANCH", given)
    if given in state.branches:
        return given
    begins = [known for known in state.branches if known.removeprefix(BRANCH_PREFIX).startswith(_stem(given))]
    if len(begins) == 1 and _stem(given):
        return begins[0]
    if begins:
        named = ", ".join(begins[:NAMED_MOST]) + (", …" if len(begins) > NAMED_MOST else "")
        raise ArgumentInvalid("BRANCH", f"begins several ids: {named}; give more of it")
    raise no_branch(given, state.session_id)


def no_branch(given: str, session_id: str | None) -> BranchNotFound:
    problem = BranchNotFound(given, session_id)
    problem.reason = (
        "`context fold list` shows the branches of this session; one of an ended session needs its whole id"
    )
    return problem


def no_session(place: Place) -> SessionNotFound:
    problem = SessionNotFound(place.told)
    problem.reason = NO_SESSION_REASON
    return problem


NO_SESSION_REASON = "`context fold status --all` lists the sessions there are; --project and --session name one"


def tell_no_session(place: Place) -> None:
    tell_on_terminal(f"no session for {place.told}; {NO_SESSION_REASON}")


def tell(text: str) -> bool:
    """Write an answer; False if its reader has left, who then has what was wanted."""
    try:
        say(text)
    except StorageFailed as problem:
        if isinstance(problem.__cause__, BrokenPipeError):
            return False
        raise
    return True


def tell_json(value: Encodable) -> bool:
    """JSON, the same on a terminal but that nothing in it can draw; False if nobody reads any more."""
    return tell(drawn_as_json(encode(value)) + "\n")


def drawn_as_json(told: str) -> str:
    """On a terminal, what could draw there is escaped, as JSON allows; a pipe gets it as it is."""
    if sys.stdout is None or not sys.stdout.isatty():
        return told
    return "".join(f"\\u{ord(c):04x}" if c in TURNING or "\x7f" <= c < "\xa0" else c for c in told)


def _stem(given: str) -> str:
    return given.removeprefix(BRANCH_PREFIX)
