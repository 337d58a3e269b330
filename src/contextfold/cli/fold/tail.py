"""`context fold tail`: prints new events of all processes as they are committed."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
from typing import NamedTuple

from contextfold.cli.fold.session_access import (
    MAIN,
    AwaitedStore,
    add_session_options,
    escape_for_terminal,
    open_awaited_store,
    owner_of,
    session_address,
    write,
)
from contextfold.cli.output import print_on_terminal
from contextfold.cli.parser import CommandParser
from contextfold.cli.terminal import Line, Screen, stdout_screen, text_lines
from contextfold.common.canonical import encode
from contextfold.fold.events import (
    BranchCreated,
    BranchDiscarded,
    BranchFolded,
    Event,
    OperationCompleted,
    RequestSent,
    SessionExpired,
    SessionPlaced,
    SessionRolledBack,
    SessionStarted,
    WorkFolded,
    kind_of,
    members,
)
from contextfold.fold.project import project_at
from contextfold.fold.session import EMPTY, replay
from contextfold.fold.store import SessionKey, WatchedEvent

# The cursor before the first event.
START = "0"
ID_SHOWN = len("br_") + 4
ID_WIDTH = len("sess_") + 16
PROJECT_WIDTH = 12
PROJECT_WIDTH_NARROW = 6
PROJECTS_CACHED = 1_000
KIND_WIDTH = len("operation.completed")
WORD_WIDTH = len("discarded")
TOKENS_WIDTH = 8


def declare_tail(parser: CommandParser) -> None:
    parser.describe(
        """
        Print a line for everything that happens in a project's sessions, whichever process does it, until
        Ctrl-C. With --json, an object a line.
        """,
        "context fold tail",
        "context fold tail --all --since-start",
        "context fold tail --json | jq .event",
    )
    parser.add_switch("--all", "print events of every project")
    parser.add_switch("--since-start", "first print the events so far of live sessions")
    add_session_options(parser)
    parser.set_defaults(run=run_tail)


def run_tail(args: argparse.Namespace) -> None:
    try:
        with open_awaited_store(args) as store:
            address = None if args.all else session_address(args)
            key = address.key if address else None
            if address and address.name:
                found = store.find(address)
                key = found.key
                address = address._replace(project=project_at(found.state.project_path or address.project.path))
            owner = owner_of(args)
            after = START if args.since_start else store.run(store.store.cursor())
            print_on_terminal(
                f"following {address.description if address else f'every session of {owner}'}; Ctrl-C ends it"
            )
            store.run(_Tail(store, owner, key, args).follow(after))
    except KeyboardInterrupt:
        # Ctrl-C is the usual way to end the command.
        pass


class _Tail:
    def __init__(self, store: AwaitedStore, owner: str, key: SessionKey | None, args: argparse.Namespace) -> None:
        self._store = store.store
        self._owner = owner
        self._key = key
        self._is_json = args.json
        self._by_name = args.session is not None
        self._screen = stdout_screen()
        self._projects: dict[str, str] = {}

    async def follow(self, after: str) -> None:
        """Print events until the reader closes the pipe."""
        printing = asyncio.ensure_future(self._print_events(after))
        closing = asyncio.ensure_future(_reader_left())
        try:
            await asyncio.wait({printing, closing}, return_when=asyncio.FIRST_COMPLETED)
            if printing.done():
                printing.result()
        finally:
            for task in (printing, closing):
                task.cancel()
            await asyncio.gather(printing, closing, return_exceptions=True)

    async def _print_events(self, after: str) -> None:
        async for seen in self._store.watch(self._owner, after):
            if self._is_wanted(seen) and not write(await self._line(seen)):
                return

    def _is_wanted(self, seen: WatchedEvent) -> bool:
        """Whether an event belongs to the session. Without a name, all sessions of the project are shown."""
        if self._key is None:
            return True
        return seen.key == self._key if self._by_name else seen.key.project_hash == self._key.project_hash

    async def _line(self, seen: WatchedEvent) -> str:
        if self._is_json:
            return escape_for_terminal(encode({"session_id": seen.session_id, **members(seen.event)})) + "\n"
        project: Line = [] if self._key else [(await self._project(seen), "magenta"), "  "]
        when = (self._screen.moment(seen.event.at), "dim")
        # On a narrow screen the columns do not fit into one line.
        return self._screen.lines(
            [when, "  ", *project, *event_line(self._screen, seen.event)], wraps=self._screen.is_narrow
        )

    async def _project(self, seen: WatchedEvent) -> str:
        """The last part of the project's path, padded to a fixed width."""
        if seen.session_id not in self._projects:
            log = await self._store.load(seen.key)
            state = replay(log.events) if log else EMPTY
            if len(self._projects) >= PROJECTS_CACHED:
                self._projects.clear()
            is_it = state.session_id == seen.session_id
            self._projects[seen.session_id] = state.project_path if is_it else seen.session_id
        path = self._projects[seen.session_id]
        if not self._screen.is_terminal:
            return path
        name = path.rstrip("/").rpartition("/")[2] or path
        width = PROJECT_WIDTH_NARROW if self._screen.is_narrow else PROJECT_WIDTH
        return f"{name[:width]:<{width}}"


def event_line(screen: Screen, event: Event) -> Line:
    """An event as a line: kind, thread and tokens, in the same columns for every kind."""
    described = _describe(event)
    thread, change, style = screen.short(described.thread, ID_SHOWN), described.change, described.style
    tokens = "" if change is None else f"{'-' if change < 0 else '+'}{screen.figure(abs(change))}"
    if isinstance(event, OperationCompleted) and event.compacts:
        tokens = f"={screen.figure(event.tokens)}"
    if not screen.is_terminal:
        failed = " failed" if isinstance(event, OperationCompleted) and event.failed else ""
        return [
            f"{kind_of(event):<{KIND_WIDTH}}  {thread:<{ID_WIDTH}}  {tokens:>{TOKENS_WIDTH}}  {described.text}{failed}"
        ]
    return [
        (described.mark if screen.is_narrow else f"{described.mark} {described.word:<{WORD_WIDTH}}", style),
        (f"  {thread:<{ID_SHOWN}}", "dim"),
        (f"  {tokens:>{TOKENS_WIDTH}}", style if isinstance(event, BranchFolded | WorkFolded) else ""),
        f"  {described.text}",
    ]


class _Described(NamedTuple):
    """What a line says about an event. `change` is that of the tokens in the context, if there is one."""

    mark: str
    word: str
    style: str
    thread: str
    text: str
    change: int | None = None


def _describe(event: Event) -> _Described:  # noqa: PLR0911 - one return for each kind
    match event:
        case SessionStarted():
            project = event.project_path + (f" · {event.name}" if event.name else "")
            return _Described("○", "started", "bold", event.session_id, project)
        case SessionPlaced():
            return _Described("○", "project", "dim", MAIN, event.project_path)
        case SessionExpired():
            return _Described("○", "ended", "dim", event.session_id, "without activity")
        case RequestSent():
            sent = f"{event.model}, {event.tokens_after} of {event.tokens_before} tokens sent"
            reason = f", not folded: {event.reason}" if event.reason else ""
            change = event.tokens_after - event.tokens_before
            return _Described("→", "request", "dim", event.api, sent + reason, change or None)
        case BranchCreated():
            return _Described("●", "branch", "bold cyan", event.branch_id, event.description, event.tokens)
        case OperationCompleted():
            mark, word, style = ("✗", "failed", "red") if event.failed else ("·", "operation", "")
            text = f"{event.type} ({event.source})"
            return _Described(mark, word, style, event.branch_id or MAIN, text, event.tokens)
        case WorkFolded() | BranchFolded():
            change = event.summary_tokens - event.tokens_folded
            return _Described("✓", "folded", "green", event.branch_id, _fold_text(event), change)
        case BranchDiscarded():
            return _Described("✗", "discarded", "dim", event.branch_id, "")
        case SessionRolledBack():
            text = "to where it began" if event.restore_state else "later branches discarded, the rest kept"
            return _Described("↶", "rollback", "yellow", event.branch_id, text)


def _fold_text(event: WorkFolded | BranchFolded) -> str:
    if isinstance(event, WorkFolded):
        return event.description
    return "with the branch around it" if event.forced else next(iter(text_lines(event.summary)), "")


async def _reader_left() -> None:
    """Wait until the reader closes the pipe on stdout; without end if stdout is not a pipe."""
    left = asyncio.Event()
    descriptor = _pipe()
    if descriptor is None:
        await left.wait()
        return
    loop = asyncio.get_running_loop()
    # The writing end of a pipe becomes readable only when the reading end was closed.
    loop.add_reader(descriptor, left.set)
    try:
        await left.wait()
    finally:
        loop.remove_reader(descriptor)


def _pipe() -> int | None:
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError):
        # Stdout is closed, or a stream in memory.
        return None
    return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
