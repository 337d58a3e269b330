"""Fills a store for the tests of the page: `seed.py STORE story`, `… ended`, `… damaged`, `… many SESSIONS BRANCHES`,
`… busy OPERATIONS [STEPS]`.

It uses the service with a simulated clock, so that the work of an hour takes a second.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from contextfold.fold.messages import Fold, Receipt
from contextfold.fold.project import Caller, project_at, target_of
from contextfold.fold.sent_request import RequestReport, Usage
from contextfold.fold.service.fold_service import FoldService
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.stores.sqlite.store import SqliteStore

# This many sessions are written at a time, because the store combines concurrent commits.
AT_ONCE = 64
OWNER = "local"
# A request has this many tokens before its first message.
SYSTEM_TOKENS = 2_400


class SimulatedClock:
    """A clock that moves only when `wait` is called."""

    def __init__(self, minutes_ago: float) -> None:
        self.now = datetime.now(UTC) - timedelta(minutes=minutes_ago)

    def __call__(self) -> datetime:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now = min(self.now + timedelta(seconds=seconds), datetime.now(UTC))


class ModelConversation:
    """The requests of an agent to its model, reported to the session as by the proxy, without texts."""

    def __init__(self, service: FoldService, caller: Caller, project: str) -> None:
        self._service, self._target = service, target_of(caller, project_at(project))
        # The main thread comes first, then the open branches.
        self._ids, self._tokens = [""], [SYSTEM_TOKENS]
        # No fold in this list is inside another.
        self._folds: list[Fold] = []
        self._requests = self._cached = 0

    def open_branch(self, branch_id: str) -> None:
        self._ids.append(branch_id)
        self._tokens.append(0)

    def add_text(self, text: str) -> None:
        self._tokens[-1] += len(text) // 4

    def folds(self, summary: str) -> None:
        branch_id, tokens = self._ids.pop(), self._tokens.pop()
        tokens_before = sum(self._tokens)
        inner = [fold for fold in self._folds if fold.kept_tokens >= tokens_before]
        self._folds = [fold for fold in self._folds if fold not in inner]
        self._folds.append(Fold(branch_id, 4, 6, 3, tokens + sum(fold.tokens for fold in inner), tokens_before))
        self._cached = min(self._cached, tokens_before)
        self.add_text(summary)

    def roll_back(self, branch_id: str) -> None:
        """Discarded work stays in the conversation, as part of the parent thread."""
        while self._ids[-1] != branch_id:
            self._ids.pop()
            self._tokens[-2:] = [sum(self._tokens[-2:])]

    def pause(self) -> None:
        """A pause after which the provider's cache is empty."""
        self._cached = 0

    async def send_request(self) -> None:
        self._requests += 1
        size = sum(self._tokens)
        usage = Usage(12, self._cached, size - self._cached, 350)
        size_without_folding = size + sum(fold.tokens for fold in self._folds)
        turns, first = 3 * len(self._folds), 4 if self._folds else None
        receipt = Receipt(
            size_without_folding, size, turns_dropped=turns, first_changed=first, folds=tuple(self._folds)
        )
        report = RequestReport(f"r{self._requests}", "anthropic", "a-model", receipt, usage)
        self._service.reports.receive(self._target, report)
        await self._service.reports.settle(self._target.key)
        self._cached = size


class SeedAgent:
    """One agent on one project."""

    def __init__(self, service: FoldService, clock: SimulatedClock, project: str, name: str | None = None) -> None:
        self._service, self._clock, self._project = service, clock, project
        self._caller = Caller(OWNER, name)
        self.model: ModelConversation | None = None

    def use_proxy(self) -> None:
        self.model = ModelConversation(self._service, self._caller, self._project)

    async def branch(self, description: str, prompt: str) -> str:
        self._clock.wait(7)
        arguments = {"description": description, "prompt": prompt, "project_path": self._project}
        outcome = await self._service.open_branch(self._caller, arguments)
        branch_id: str = outcome.answer["branch_id"]
        if self.model:
            self.model.open_branch(branch_id)
        return branch_id

    async def record(self, kind: str, text: str, *, failed: bool = False, times: int = 1) -> None:
        self._clock.wait(23)
        arguments: dict[str, Any] = {"type": kind, "content": text * times, "project_path": self._project}
        await self._service.record(self._caller, arguments | {"failed": failed}, "hook")
        if self.model:
            self.model.add_text(text * times)
            await self.model.send_request()

    async def fold(self, summary: str, *, after_a_pause: bool = False) -> None:
        self._clock.wait(11)
        await self._service.return_branch(self._caller, {"message": summary, "project_path": self._project})
        if self.model:
            self.model.folds(summary)
            if after_a_pause:
                self.model.pause()
            await self.model.send_request()

    async def rollback(self, branch_id: str) -> None:
        self._clock.wait(15)
        arguments = {"branch_id": branch_id, "project_path": self._project, "restore_state": True}
        await self._service.roll_back(self._caller, arguments)
        if self.model:
            self.model.roll_back(branch_id)


SOURCE = """export async function checkSession(request: Request, store: SessionStore): Promise<Session> {
  const token = readCookie(request, "sid");
  if (!token) throw new Unauthorized("no session cookie");
  const session = await store.find(hash(token));
  if (!session) throw new Unauthorized("unknown session");
  if (session.expiresAt < Date.now() / 1000) throw new Unauthorized("session expired");
  return session;
}
"""
TRACE = """FAIL  test/login.test.ts > login > keeps a user signed in across a deploy
AssertionError: expected 401 to be 200
    at test/login.test.ts:48:31
"""
GREP = """src/auth/session.ts:31:  if (session.expiresAt < Date.now() / 1000) throw new Unauthorized("session expired");
src/auth/session.ts:64:  const expiresAt = Date.now() + TTL_MS;
src/auth/refresh.ts:19:  if (session.expiresAt - Date.now() < REFRESH_MS) return renew(session);
src/jobs/cleanup.ts:12:  await store.deleteWhere("expiresAt < ?", Date.now());
"""


async def login_bug(agent: SeedAgent) -> None:
    """An agent that finds a bug in a login, fails at first and then fixes it, with requests through the proxy."""
    agent.use_proxy()
    await agent.record("Message", "Users are signed out after every deploy. Find out why and fix it, with a test.")
    await agent.record("Read", SOURCE, times=42)
    await agent.branch(
        "Find where the session is refused", "Follow a request from the cookie to the 401. Name the line."
    )
    await agent.record("Grep", GREP, times=35)
    await agent.record("Read", SOURCE, times=70)
    await agent.branch("Reproduce it in a test", "Write a failing test that deploys between two requests.")
    await agent.record("Write", SOURCE, times=21)
    await agent.record("Bash", TRACE, failed=True, times=63)
    secret = "ghp_" + "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY2zA4"
    await agent.record("Bash", f"{TRACE}    env: API_TOKEN={secret}\n", failed=True)
    await agent.fold(
        "test/login.test.ts now has a failing test: two requests with the store reopened between them. The second "
        "one gets 401 `session expired` although the cookie is 40 seconds old."
    )
    await agent.record("Read", GREP, times=84)
    await agent.fold(
        "The session is refused in src/auth/session.ts:31. `expiresAt` is written in milliseconds (line 64) but "
        "compared in seconds there; the in-memory cache hid it, and a deploy empties that cache. refresh.ts and "
        "cleanup.ts use milliseconds correctly."
    )
    before = await agent.branch("Store seconds everywhere", "Change every writer and reader of expiresAt to seconds.")
    await agent.record("Edit", SOURCE, times=28)
    await agent.branch("Migrate the rows that exist", "Write a migration from milliseconds to seconds.")
    await agent.record("Write", SOURCE, times=35)
    await agent.record("Bash", "migration 0042 failed: column expires_at is indexed\n", failed=True, times=140)
    await agent.rollback(before)
    await agent.fold(
        "Not worth it: a migration of live rows for what one comparison fixes. Nothing was changed.", after_a_pause=True
    )
    await agent.branch("Compare in milliseconds", "Fix session.ts:31 alone and make the failing test pass.")
    await agent.record("Edit", SOURCE, times=14)
    await agent.record("Bash", "PASS  test/login.test.ts (14 tests)\n", times=84)
    await agent.branch("Look for the same mistake elsewhere", "Search for comparisons of times in different units.")
    await agent.record("Grep", GREP, times=56)


async def full_thread(agent: SeedAgent) -> None:
    for _ in range(12):
        await agent.record("Read", SOURCE, times=16)
    await agent.branch("Explain the slow query", "Why does the report take 40 s?")
    await agent.record("Bash", TRACE, times=4)


async def some_work(agent: SeedAgent) -> None:
    await agent.record("Read", SOURCE, times=40)
    await agent.branch("Bring the changelog up to date", "Write the entries since 2.3.")
    await agent.record("Bash", GREP, times=90)
    await agent.fold("CHANGELOG.md has the entries since 2.3: four fixes, one new flag.")


async def short_work(agent: SeedAgent) -> None:
    await agent.record("Read", SOURCE, times=12)


# The items are the project, the session's name, the age in minutes, and the work.
Scene = tuple[str, str | None, float, Callable[[SeedAgent], Any]]
STORY: list[Scene] = [
    ("/home/ana/work/docs-site", None, 600, some_work),
    ("/home/ana/work/infra", None, 420, short_work),
    ("/home/ana/work/api-gateway", "review", 190, some_work),
    ("/home/ana/work/reports", None, 75, full_thread),
    ("/home/ana/work/shop", "second agent", 55, some_work),
    ("/home/ana/work/shop", None, 9, login_bug),
]


# Idle for longer than a session stays live.
ENDED: list[Scene] = [("/home/ana/work/docs-site", None, 48 * 60, some_work)]


async def play(store: SqliteStore, scenes: list[Scene]) -> None:
    for project, name, minutes_ago, work in scenes:
        clock = SimulatedClock(minutes_ago)
        await work(SeedAgent(FoldService(store, standard_scrubber(), clock=clock), clock, project, name))


async def many(store: SqliteStore, sessions: int, branches: int) -> None:
    """Sessions with this many branches each: the last one is open, the others are folded."""
    clock = SimulatedClock(60)
    service = FoldService(store, standard_scrubber(), clock=clock)

    async def fill_session(number: int) -> None:
        agent = SeedAgent(service, clock, f"/home/ana/many/project-{number:04}")
        for branch in range(branches):
            await agent.branch(f"Piece of work {branch + 1}", "Look into it and say what you found.")
            await agent.record("Read", SOURCE, times=2)
            if branch < branches - 1:
                await agent.fold(f"Piece {branch + 1} is done; nothing else to say.")

    for first in range(0, sessions, AT_ONCE):
        await asyncio.gather(*(fill_session(number) for number in range(first, min(first + AT_ONCE, sessions))))


async def busy(store: SqliteStore, operations: int, steps: int = 0) -> None:
    """One session with one open branch, which has this many operations and folded branches."""
    clock = SimulatedClock(operations / 2)
    agent = SeedAgent(FoldService(store, standard_scrubber(), clock=clock), clock, "/home/ana/many/project-0000")
    await agent.branch("Busy work", "Go through all of it.")
    for number in range(steps):
        await agent.branch(f"Small step {number + 1}", "Look into it and say what you found.")
        await agent.fold("Done.")
    for number in range(operations):
        await agent.record("Read", f"Step {number + 1}: looked at one more, nothing unusual was seen.")


async def main(path: str, scene: str, *sizes: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    store = SqliteStore(path)
    try:
        if scene == "many":
            await many(store, *map(int, sizes))
        elif scene == "busy":
            await busy(store, *map(int, sizes))
        else:
            await play(store, {"story": STORY, "ended": ENDED, "damaged": [*ENDED, *STORY[-3:]]}[scene])
    finally:
        await store.close()
    if scene == "damaged":
        # The ended session and a live one lack an event.
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("DELETE FROM events WHERE n = 2 AND session IN (1, 2)")
            connection.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
