"""Stores with all kinds of sessions in them, and everything that such a store returns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from contextfold.app import open_store
from contextfold.fold.ports.store import SessionKey, Store
from contextfold.fold.project import project_at
from contextfold.fold.service.callers import Caller, target_of
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.session import replay
from contextfold.fold.tool_arguments import branch_request, record_request, return_request, rollback_request
from contextfold.scrub.standard import standard_scrubber
from contextfold.settings import FoldSettings, fold_settings_from

Result = TypeVar("Result")
STRANGE = "'; DROP TABLE sessions; -- 😀 é e\u0301 \\ \" $1 ? .> *. /"
CONTROLS = "\0 \x1f \r\n \u2028 \x85"
PROJECT = "/work/app"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
LAST_YEAR = datetime(2025, 6, 1, tzinfo=UTC)
FIVE_MEGABYTES = 5_000_000
# This many operations do not fit into two parts.
MANY = 150
PAGE_MOST = 100_000


@dataclass(frozen=True, slots=True)
class NamedStore:
    """A store as it is named on the command line."""

    named: str
    flags: Mapping[str, str]

    @property
    def settings(self) -> FoldSettings:
        return fold_settings_from({}, {"store": self.named, **self.flags})

    def do(self, work: Callable[[Store], Awaitable[Result]]) -> Result:
        async def whole() -> Result:
            store = open_store(self.settings)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(whole())


def file_at(path: Path) -> NamedStore:
    return NamedStore(f"sqlite:{path}", {})


class Worker:
    """An agent that works on one session of an open store."""

    def __init__(
        self,
        store: Store,
        project: str = PROJECT,
        *,
        owner: str = "local",
        session: str | None = None,
        at: datetime | None = None,
    ) -> None:
        self.at = at
        self.service = FoldService(store, standard_scrubber(), clock=lambda: self.at or datetime.now(UTC))
        self._project, self._owner, self._session = project, owner, session

    @property
    def key(self) -> SessionKey:
        return target_of(self._caller(None), project_at(self._project)).key

    def _caller(self, operation_id: str | None) -> Caller:
        return Caller(self._owner, self._session, operation_id)

    def _with(self, **arguments: object) -> Mapping[str, object]:
        return {"project_path": self._project, **arguments}

    async def branch(self, description: str, *, as_operation: str | None = None) -> str:
        request = branch_request(self._with(description=description, prompt=f"Begin {description}"))
        outcome = await self.service.branch(self._caller(as_operation), request)
        return outcome.answer

    async def record(self, content: str, *, as_operation: str | None = None) -> str:
        request = record_request(self._with(type="Read", content=content))
        outcome = await self.service.record(self._caller(as_operation), request, "hook")
        return outcome.answer

    async def fold(self, message: str, *, as_operation: str | None = None) -> str:
        outcome = await self.service.fold(self._caller(as_operation), return_request(self._with(message=message)))
        return outcome.answer

    async def rollback(self, branch_id: str) -> None:
        await self.service.rollback(self._caller(None), rollback_request(self._with(branch_id=branch_id)))


async def fill(store: Store) -> None:
    """Live and ended sessions in all states, with owners and projects of unusual names."""
    await _ended(store)
    worker = Worker(store)
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
    await _many(store)
    for number in range(3):
        odd = Worker(store, f"/p {number}/{STRANGE}", owner=f"{STRANGE} {number}", session=f"{STRANGE}")
        await odd.branch(f"Odd {STRANGE}", as_operation=STRANGE)
        await odd.record(f"{STRANGE} {CONTROLS}")
        await odd.fold(f"odd {STRANGE}")
    await Worker(store, session="named").record("of a session with a name")


async def _ended(store: Store) -> None:
    """A session whose archive is deleted, one that is complete, and a later session of the same project for each."""
    for moment, text in ((LONG_AGO, "ancient"), (LAST_YEAR, "old")):
        worker = Worker(store, at=moment)
        await worker.branch(text, as_operation="of one that ended")
        for _ in range(3):
            # All of it together does not fit into one page.
            await worker.record(f"{text} operation " * 50_000)
        await worker.fold(f"{text} summary")
        await worker.branch(f"{text} and open")
        await Worker(store).service.end_idle()
    await store.retain("2021-01-01T00:00:00Z", "2019-01-01T00:00:00Z")


async def _many(store: Store) -> None:
    worker = Worker(store, "/work/long")
    for number in range(MANY):
        if number % 50 == 0:
            await worker.branch(f"branch {number}", as_operation=f"begin {number}")
        await worker.record(f"operation {number} " * 10, as_operation=f"op {number}" if number % 3 == 0 else None)
        if number % 50 == 49:
            await worker.fold(f"part {number} is done")


def branch_id_of(answer: str) -> str:
    return str(json.loads(answer)["branch_id"])


OWNERS = ("local", *(f"{STRANGE} {number}" for number in range(3)))
WORDS = ("ancient", "old", "inner", "outer", "odd", "part", "done")
OPERATIONS = ("first", "outer", "inner done", STRANGE, *(f"op {n}" for n in range(0, MANY, 3)), "of one that ended")


def all_of(place: NamedStore) -> Any:
    """Everything that such a store can be asked for."""
    return place.do(_all_of)


async def _all_of(store: Store) -> Any:
    told: list[Any] = [await store.count()]
    for owner in OWNERS:
        found = {summary for word in WORDS for summary in await store.search(owner, word, None, 1000)}
        told.append(sorted(found, key=str))
        branches = {(summary.project_hash, summary.branch_id) for summary in found}
        for listed in await store.sessions(owner, limit=1000):
            log = await store.load(listed.key)
            assert log is not None
            state = replay(log.events)
            told += [listed, log.session_id, list(log.events), state]
            told += [await store.receipt(listed.key, operation) for operation in OPERATIONS]
            branches |= {(listed.key.project_hash, branch_id) for branch_id in state.branches}
            told.append(await _trajectory(store, owner, listed.key.project_hash, None, log.session_id))
        told += [await _trajectory(store, owner, *where, "") for where in sorted(branches)]
    return told


async def _trajectory(store: Store, owner: str, project: str, branch_id: str | None, session_id: str) -> Any:
    found = await store.trajectory(owner, project, branch_id, session_id=session_id, limit=PAGE_MOST)
    return found and (list(found.entries), sorted(map(tuple, found.rollbacks)))


def flags_of(*places: NamedStore) -> Sequence[str]:
    return [word for place in places for name, value in place.flags.items() for word in (f"--{name}", value)]
