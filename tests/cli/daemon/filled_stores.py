"""Stores with every kind of session, and everything that can be read from such a store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from contextfold.app import open_store
from contextfold.common.canonical import encode
from contextfold.fold.project import Caller, project_at, target_of
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.session import replay
from contextfold.fold.store import ArchivedThread, SessionKey, Store
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.settings import FoldSettings, read_fold_settings

Result = TypeVar("Result")
HOSTILE_NAME = "'; DROP TABLE sessions; -- 😀 é e\u0301 \\ \" $1 ? .> *. /"
CONTROLS = "\0 \x1f \r\n \u2028 \x85"
PROJECT = "/work/app"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
LAST_YEAR = datetime(2025, 6, 1, tzinfo=UTC)
FIVE_MEGABYTES = 5_000_000
# Operations of the longest session.
OPERATION_COUNT = 150
PAGE_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class NamedStore:
    """A store, as its name and options on the command line."""

    name: str
    options: Mapping[str, str]

    @property
    def settings(self) -> FoldSettings:
        return read_fold_settings({}, {"store": self.name, **self.options})

    def run(self, work: Callable[[Store], Awaitable[Result]]) -> Result:
        async def open_and_run() -> Result:
            store = open_store(self.settings)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(open_and_run())


def sqlite_store(path: Path) -> NamedStore:
    return NamedStore(f"sqlite:{path}", {})


class SessionWorker:
    """An agent that works on one session of an open store."""

    def __init__(
        self,
        store: Store,
        project: str = PROJECT,
        *,
        owner: str = "local",
        session: str | None = None,
        now: datetime | None = None,
    ) -> None:
        self.now = now
        self.service = FoldService(store, standard_scrubber(), clock=lambda: self.now or datetime.now(UTC))
        self._project, self._owner, self._session = project, owner, session

    @property
    def key(self) -> SessionKey:
        return target_of(self._caller(None), project_at(self._project)).key

    def _caller(self, operation_id: str | None) -> Caller:
        return Caller(self._owner, self._session, operation_id)

    def _with(self, **arguments: object) -> Mapping[str, object]:
        return {"project_path": self._project, **arguments}

    async def branch(self, description: str, *, as_operation: str | None = None) -> str:
        request = self._with(description=description, prompt=f"Begin {description}")
        outcome = await self.service.open_branch(self._caller(as_operation), request)
        return encode(outcome.answer)

    async def record(self, content: str, *, as_operation: str | None = None) -> str:
        request = self._with(type="Read", content=content)
        outcome = await self.service.record(self._caller(as_operation), request, "hook")
        return encode(outcome.answer)

    async def fold(self, message: str, *, as_operation: str | None = None) -> str:
        outcome = await self.service.return_branch(self._caller(as_operation), self._with(message=message))
        return encode(outcome.answer)

    async def rollback(self, branch_id: str) -> None:
        await self.service.roll_back(self._caller(None), self._with(branch_id=branch_id))


async def fill(store: Store) -> None:
    """Fills a store with live and ended sessions in every state, some with hostile names of owners and projects."""
    await _fill_ended_sessions(store)
    worker = SessionWorker(store)
    await worker.record("short", as_operation="first")
    outer = branch_id_of(await worker.branch("Outer", as_operation="outer"))
    await worker.record("x" * FIVE_MEGABYTES)
    inner = branch_id_of(await worker.branch("Inner"))
    await worker.fold("inner is done", as_operation="inner done")
    await worker.fold("outer is done")
    await worker.branch("Later")
    # This undoes both folds, so that folding again makes new summaries.
    await worker.rollback(inner)
    await worker.fold("inner is done again")
    await worker.fold("outer is done again")
    await worker.branch("Open")
    assert outer != inner
    await _fill_long_session(store)
    for number in range(3):
        hostile = SessionWorker(
            store, f"/p {number}/{HOSTILE_NAME}", owner=f"{HOSTILE_NAME} {number}", session=f"{HOSTILE_NAME}"
        )
        await hostile.branch(f"Odd {HOSTILE_NAME}", as_operation=HOSTILE_NAME)
        await hostile.record(f"{HOSTILE_NAME} {CONTROLS}")
        await hostile.fold(f"odd {HOSTILE_NAME}")
    await SessionWorker(store, session="named").record("of a session with a name")


async def _fill_ended_sessions(store: Store) -> None:
    """Fills in two ended sessions, each before later work on the project; the archive of the older one is deleted."""
    for moment, text in ((LONG_AGO, "ancient"), (LAST_YEAR, "old")):
        worker = SessionWorker(store, now=moment)
        await worker.branch(text, as_operation="of one that ended")
        for _ in range(3):
            # The three operations do not fit into one page.
            await worker.record(f"{text} operation " * 50_000)
        await worker.fold(f"{text} summary")
        await worker.branch(f"{text} and open")
        await SessionWorker(store).service.end_idle()
    await store.retain("2021-01-01T00:00:00Z", "2019-01-01T00:00:00Z")


async def _fill_long_session(store: Store) -> None:
    worker = SessionWorker(store, "/work/long")
    for number in range(OPERATION_COUNT):
        if number % 50 == 0:
            await worker.branch(f"branch {number}", as_operation=f"begin {number}")
        await worker.record(f"operation {number} " * 10, as_operation=f"op {number}" if number % 3 == 0 else None)
        if number % 50 == 49:
            await worker.fold(f"part {number} is done")


def branch_id_of(answer: str) -> str:
    return str(json.loads(answer)["branch_id"])


OWNERS = ("local", *(f"{HOSTILE_NAME} {number}" for number in range(3)))
WORDS = ("ancient", "old", "inner", "outer", "odd", "part", "done")
OPERATIONS = (
    "first",
    "outer",
    "inner done",
    HOSTILE_NAME,
    *(f"op {n}" for n in range(0, OPERATION_COUNT, 3)),
    "of one that ended",
)


def contents_of(store: NamedStore) -> Any:
    """Everything that can be read from such a store."""
    return store.run(_contents)


async def _contents(store: Store) -> Any:
    contents: list[Any] = [await store.count()]
    for owner in OWNERS:
        summaries = {summary for word in WORDS for summary in await store.search(owner, word, None, 1000)}
        contents.append(sorted(summaries, key=str))
        branches = {(summary.project_hash, summary.branch_id) for summary in summaries}
        for listed in await store.sessions(owner, limit=1000):
            log = await store.load(listed.key)
            assert log is not None
            state = replay(log.events)
            contents += [listed, log.session_id, list(log.events), state]
            contents += [await store.receipt(listed.key, operation) for operation in OPERATIONS]
            branches |= {(listed.key.project_hash, branch_id) for branch_id in state.branches}
            contents.append(await _trajectory(store, owner, listed.key.project_hash, None, log.session_id))
        contents += [await _trajectory(store, owner, *branch, "") for branch in sorted(branches)]
    return contents


async def _trajectory(store: Store, owner: str, project: str, branch_id: str | None, session_id: str) -> Any:
    trajectory = await store.trajectory(ArchivedThread(owner, project, branch_id, session_id), limit=PAGE_LIMIT)
    return trajectory and (list(trajectory.entries), sorted((start, end) for start, end in trajectory.rollbacks))


def options_of(*stores: NamedStore) -> Sequence[str]:
    return [word for store in stores for name, value in store.options.items() for word in (f"--{name}", value)]
