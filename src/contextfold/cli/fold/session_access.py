"""Opens the store and finds the session and branch for the `context fold` commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, Self, TypeVar, cast

from contextfold.app import make_policy, open_state_file
from contextfold.app import open_store as open_shared_store
from contextfold.cli.output import TURNING, is_terminal, print_answer, print_note
from contextfold.cli.parser import CommandParser
from contextfold.cli.setting_options import add_store_options, read_setting_options
from contextfold.cli.terminal import Screen, stdout_screen
from contextfold.common.answer_format import name_first
from contextfold.common.canonical import Encodable, encode
from contextfold.errors import ArgumentInvalid, BranchNotFound, SessionNotFound, StorageFailed, StoreInvalid
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.project import Project, hash_name, project_at
from contextfold.fold.service.session_views import FoundSession
from contextfold.fold.service.stored_sessions import SessionView, StoredSessions, thread_pages
from contextfold.fold.session import EMPTY, State
from contextfold.fold.store import LOCAL_OWNER, ArchivedThread, SessionKey, Store, StoreReader
from contextfold.settings import FoldSettings, read_fold_settings

T = TypeVar("T")
# The name of the main thread in an argument for a branch.
MAIN = "main"
BRANCH_PREFIX = "br_"
SESSION_PREFIX = "sess_"
NO_LIVE_SESSION = "no live session of {}; an agent's first request through the proxy, hook or call of a tool begins one"
# An error about an ambiguous prefix lists at most this many branches.
NAMED_MAX = 5
# A page of the archive ends after this many characters.
PAGE_CHARACTERS = 1_000_000


def add_owner_option(parser: CommandParser) -> None:
    parser.add_argument(
        "--owner",
        metavar="OWNER",
        default=LOCAL_OWNER,
        help="the owner, if the daemon uses tokens (default: %(default)s)",
    )


def add_session_options(parser: CommandParser) -> None:
    parser.add_argument("--project", metavar="DIR", help="the project's folder (default: the current one)")
    parser.add_argument(
        "--session", metavar="NAME", help="a session's name or id (default: the project's session active last)"
    )
    add_owner_option(parser)
    parser.add_switch("--json", "print JSON, for programs")
    add_store_options(parser)


def add_branch(parser: CommandParser) -> None:
    parser.add_argument("branch", metavar="BRANCH", help="a branch's id or a unique beginning of it")


class SessionAddress(NamedTuple):
    """What a command says of a session: owner, project, and name or id. `is_given` means that it names the project."""

    owner: str
    project: Project
    name: str | None
    is_given: bool

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.owner, self.project.hash, hash_name(self.name))

    @property
    def description(self) -> str:
        return self.project.path if self.name is None else f"{self.project.path}, session {self.name}"


class OpenStore:
    """An open store, for one operation at a time. It is closed at the end of a `with` statement."""

    def __init__(self, sessions: StoredSessions) -> None:
        self.sessions = sessions._replace(on_unreadable=_note_unreadable)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sessions.store.close()

    def find(self, address: SessionAddress) -> FoundSession:
        """The project's live session that was active last, or the one with this name or id. Its state may be empty."""
        return self.find_and_count(address)[0]

    def find_and_count(self, address: SessionAddress) -> tuple[FoundSession, int]:
        """The session, and the number of its project's other live sessions.

        If the user named no project, the nearest folder above it that has one counts, too.
        """
        if address.name and address.name.startswith(SESSION_PREFIX):
            key = self.sessions.store.find(address.owner, address.name)
            if key is not None:
                return FoundSession(key, self.sessions.look(key)), 0
        project = address.project
        while True:
            found, others = self.sessions.find_of_project(address.owner, project, address.name)
            if found:
                return found, others
            if address.is_given or project.path == "/":
                return FoundSession(address.key, EMPTY), 0
            project = project_at(os.path.dirname(project.path))

    def find_branch(self, address: SessionAddress, found: FoundSession, given: str) -> tuple[FoundSession, str | None]:
        """The session of a branch and the branch's id. `found` is the session that `find` has found at the address.

        A complete id is searched for in all sessions of the owner.
        """
        try:
            return found, branch_of(found.state, given)
        except BranchNotFound:
            if address.is_given or not given.startswith(BRANCH_PREFIX):
                raise
            for other in self.sessions.live(address.owner):
                if given in other.state.branches:
                    return other, given
            raise

    def find_archived(self, address: SessionAddress, given: str) -> tuple[FoundSession, str | None]:
        """A branch of a live session, or with its complete id any branch in the archive."""
        found = self.find(address)
        if given == MAIN and not found.state.revision:
            raise session_not_found(address)
        try:
            return self.find_branch(address, found, given)
        except BranchNotFound:
            whole = given if given.startswith(BRANCH_PREFIX) else BRANCH_PREFIX + given
            ended = (found._replace(key=key) for key in self._ended_keys(address))
            for candidate in (found, *ended):
                if any(self.pages(candidate, whole)):
                    return candidate, whole
            raise

    def pages(self, found: FoundSession, branch_id: str | None) -> Iterator[Sequence[ArchiveEntry]]:
        """The archived entries of a thread, some at a time."""
        key, state = found.key, found.state
        thread = ArchivedThread(key.owner, key.project_hash, branch_id, state.session_id or "")
        return thread_pages(self.sessions.store, thread, characters=PAGE_CHARACTERS)

    def _ended_keys(self, address: SessionAddress) -> Iterator[SessionKey]:
        """A key in each project of the owner's ended sessions; none if the user named a project."""
        if address.is_given:
            return
        seen = {address.project.path, None}
        for row in self.sessions.ended_rows(address.owner):
            if row["project_path"] and row["project_path"] not in seen:
                seen.add(row["project_path"])
                yield SessionKey(address.owner, project_at(row["project_path"]).hash, "")


def _note_unreadable(session_id: str) -> None:
    print_note(f"the log of {session_id} cannot be read, so its figures are missing here: run `context store verify`")


class AwaitedStore(OpenStore):
    """A store on NATS, or one that the folding service changes: its calls are awaited in an event loop."""

    def __init__(self, settings: FoldSettings) -> None:
        """Open the store. Neither a missing file nor a missing prefix is created."""
        self.settings = settings
        self.store: Store = open_shared_store(settings, may_migrate=False)
        # Commands that read a file need no event loop.
        import asyncio

        self._runner = asyncio.Runner()
        reader = cast("StoreReader", BlockingReader(self.store, self.run))
        super().__init__(StoredSessions(reader, make_policy(settings)))

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._runner.close()


class BlockingReader:
    """The methods of a store, each of which runs in the event loop of a command until it is done."""

    def __init__(self, store: Store, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._store, self._run = store, run

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)
        return lambda *arguments, **options: self._run(method(*arguments, **options))


def open_store(args: argparse.Namespace) -> OpenStore:
    """Open the store for reading. A daemon may have it open, too. A missing file is not created."""
    settings = store_settings(args)
    if settings.nats is None:
        return OpenStore(open_state_file(settings))
    return AwaitedStore(settings)


def open_awaited_store(args: argparse.Namespace) -> AwaitedStore:
    return AwaitedStore(store_settings(args))


def store_settings(args: argparse.Namespace) -> FoldSettings:
    settings = read_fold_settings(os.environ, read_setting_options(args))
    if settings.nats is None and not os.path.exists(settings.store):
        problem = StoreInvalid(
            f"{settings.store} is not there; `context run` and `context serve` make it, --store names another"
        )
        problem.message = "Nothing has been recorded yet"
        raise problem
    return settings


def owner_of(args: argparse.Namespace) -> str:
    return utf8_text("--owner", args.owner)


def project_of(args: argparse.Namespace) -> Project:
    return project_at(utf8_text("--project", os.path.abspath(args.project or os.curdir)))


def session_address(args: argparse.Namespace) -> SessionAddress:
    name = utf8_text("--session", args.session) if args.session is not None else None
    return SessionAddress(owner_of(args), project_of(args), name, is_given=args.project is not None)


def utf8_text(called: str, text: str) -> str:
    """Check that an argument is valid UTF-8, because it becomes part of a key."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ArgumentInvalid(called, "must be UTF-8") from None
    return text


def branch_of(state: State, given: str) -> str | None:
    """The id of a branch, given by its id or a unique prefix; None for the main thread."""
    if given == MAIN:
        return None
    utf8_text("BRANCH", given)
    if given in state.branches:
        return given
    stem = given.removeprefix(BRANCH_PREFIX)
    begins = [known for known in state.branches if known.removeprefix(BRANCH_PREFIX).startswith(stem)]
    if len(begins) == 1 and stem:
        return begins[0]
    if begins:
        named = name_first(begins, NAMED_MAX)
        raise ArgumentInvalid("BRANCH", f"is the prefix of several ids: {named}; give more of it")
    problem = BranchNotFound(given, state.session_id)
    problem.reason = (
        "`context fold list` shows the branches of this session; one of an ended session needs its whole id"
    )
    raise problem


def session_not_found(address: SessionAddress) -> SessionNotFound:
    problem = SessionNotFound(address.description)
    problem.reason = "`context fold status --all` lists the sessions there are; --project and --session name one"
    return problem


def write(text: str) -> bool:
    """Write to stdout; False if the reader has closed the pipe, which is not an error."""
    try:
        print_answer(text)
    except StorageFailed as problem:
        if isinstance(problem.__cause__, BrokenPipeError):
            return False
        raise
    return True


def write_json(value: Encodable) -> bool:
    """Write JSON; on a terminal with control characters escaped. False if the reader has closed the pipe."""
    return write(escape_for_terminal(encode(value)) + "\n")


def write_rows(
    args: argparse.Namespace,
    rows: Sequence[SessionView],
    table: Callable[[Screen, Sequence[SessionView]], str],
    *,
    note_if_empty: str,
) -> None:
    """Write sessions as JSON or as a table, or a note if there are none."""
    if args.json:
        write_json({"sessions": rows})
    elif rows:
        write(table(stdout_screen(), rows))
    else:
        print_note(note_if_empty)


def write_live_sessions(
    args: argparse.Namespace,
    view: Callable[[StoredSessions, FoundSession], SessionView],
    table: Callable[[Screen, Sequence[SessionView]], str],
) -> None:
    """Write a view of every live session of the owner, the latest activity first."""
    owner = owner_of(args)
    with open_store(args) as store:
        rows = [view(store.sessions, found) for found in store.sessions.live(owner)]
    write_rows(args, rows, table, note_if_empty=NO_LIVE_SESSION.format(owner))


def escape_for_terminal(text: str) -> str:
    """Escape control characters in JSON if stdout is a terminal."""
    if not is_terminal(sys.stdout):
        return text
    return "".join(f"\\u{ord(c):04x}" if c in TURNING or "\x7f" <= c < "\xa0" else c for c in text)
