"""The service with a clock that the test sets: expiry, two daemons at once, search, and failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from contextfold.errors import BranchNotFound, ScrubFailed, StoreInvalid
from contextfold.fold.ports.store import Store
from contextfold.fold.project import project_at
from contextfold.fold.service.activity import Activity
from contextfold.fold.service.callers import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.policy import FoldPolicy
from contextfold.fold.session import SessionLimits
from contextfold.fold.tool_arguments import (
    RecallRequest,
    branch_request,
    expand_request,
    look_request,
    record_request,
    return_request,
    rollback_request,
)
from contextfold.scrub.standard import standard_scrubber
from contextfold.stores.memory import MemoryStore
from contextfold.stores.sqlite.store import SqliteStore
from tests.support.clauses import covers

PROJECT = {"project_path": "/work/app"}
ME = Caller("local")
SCRUBBER = standard_scrubber()
DAY = timedelta(days=1)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class Desk:
    """A service together with what a test inspects."""

    def __init__(self, store: Store, policy: FoldPolicy) -> None:
        self.clock = Clock()
        self.noted: list[Activity] = []
        self.store = store
        self.policy = policy
        self.service = self.another()

    def another(self) -> FoldService:
        """A second service on the same store, as after a restart or in a second daemon."""
        return FoldService(self.store, SCRUBBER, self.policy, clock=self.clock, note=self.noted.append)

    async def branch(self, caller: Caller = ME) -> Any:
        request = branch_request({"description": "d", "prompt": "p", **PROJECT})
        return json.loads((await self.service.branch(caller, request)).answer)

    async def fold(self, message: str = "done", caller: Caller = ME) -> Any:
        request = return_request({"message": message, **PROJECT})
        return json.loads((await self.service.fold(caller, request)).answer)

    async def status(self) -> Any:
        return json.loads((await self.service.status(ME, look_request(PROJECT))).answer)

    async def expand(self, branch_id: str) -> Any:
        request = expand_request({"branch_id": branch_id, **PROJECT})
        return json.loads((await self.service.expand(ME, request)).answer)


Run = Callable[[Callable[[Desk], Awaitable[None]]], None]
POLICY = FoldPolicy(archive_days=2, summary_days=4)


@pytest.fixture(params=["memory", "sqlite"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    def run(act: Callable[[Desk], Awaitable[None]]) -> None:
        async def whole() -> None:
            store: Store = MemoryStore() if request.param == "memory" else SqliteStore.open(tmp_path / "state.db")
            try:
                await act(Desk(store, POLICY))
            finally:
                await store.close()

        asyncio.run(whole())

    return run


class TestExpiry:
    @covers("folding.md#session", "seed-004#nats-subject-hierarchy", "store.md#expiry")
    def test_a_session_ends_after_24_hours_without_a_change(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            first = await desk.branch()
            desk.clock.now += DAY - timedelta(seconds=1)
            assert (await desk.status())["session_id"] == first["session_id"]
            # Reading the status does not extend the session's life.
            desk.clock.now += timedelta(seconds=1)
            assert (await desk.status())["session_id"] is None
            second = await desk.branch()
            assert second["session_id"] != first["session_id"]
            assert second["parent_branch_id"] is None

        run(act)

    def test_a_change_keeps_it_alive(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            first = await desk.branch()
            for _ in range(3):
                desk.clock.now += DAY - timedelta(seconds=1)
                assert (await desk.branch())["session_id"] == first["session_id"]

        run(act)

    @covers("seed-004#nats-subject-hierarchy", "store.md#expiry")
    def test_a_sweep_ends_it_by_itself(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            await desk.branch()
            assert await desk.store.count() == 1
            assert await desk.service.end_idle() == 0
            desk.clock.now += DAY
            assert await desk.service.end_idle() == 1
            assert await desk.store.count() == 0

        run(act)

    @covers("folding.md#session")
    def test_a_call_sent_again_after_the_end_is_a_new_call(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            caller = Caller("local", operation_id="once")
            first = await desk.branch(caller)
            assert await desk.branch(caller) == first
            desk.clock.now += DAY
            second = await desk.branch(caller)
            assert second["session_id"] != first["session_id"]
            assert (await desk.status())["active_branch_id"] == second["branch_id"]

        run(act)

    def test_what_a_branch_did_is_there_when_its_session_is_gone(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            branch_id = (await desk.branch())["branch_id"]
            await desk.fold("the cause was a comma")
            desk.clock.now += DAY
            await desk.service.end_idle()
            assert [entry["kind"] for entry in (await desk.expand(branch_id))["entries"]] == ["prompt", "summary"]

        run(act)

    @covers("store.md#expiry")
    def test_archive_and_summaries_go_after_their_own_days(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            branch_id = (await desk.branch())["branch_id"]
            await desk.fold("the cause was a comma")
            desk.clock.now += 3 * DAY
            await desk.service.end_idle()
            await desk.service.forget()
            with pytest.raises(BranchNotFound):
                await desk.expand(branch_id)
            assert len(await desk.service.search("local", "comma", None)) == 1
            desk.clock.now += 2 * DAY
            await desk.service.forget()
            assert await desk.service.search("local", "comma", None) == []

        run(act)

    def test_a_clock_that_jumps_back_keeps_the_log_in_order(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            first = await desk.branch()
            desk.clock.now -= timedelta(days=300)
            second = await desk.branch()
            assert second["created_at"] == first["created_at"]
            assert second["session_id"] == first["session_id"]

        run(act)


class TestTwoAtOnce:
    def test_the_slower_of_two_daemons_decides_again(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            await desk.branch()
            other = desk.another()
            await other.record(ME, record_request({"type": "t", "tokens": 5, **PROJECT}), "reported")
            # This branch is decided on a state that is one event old.
            await desk.branch()
            await other.rollback(
                ME, rollback_request({"branch_id": (await desk.status())["branch_path"][1], **PROJECT})
            )
            assert (await desk.fold())["summary"]["tokens_folded"] == 1

        run(act)

    def test_nobody_is_refused_by_a_state_that_is_old(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            await desk.service.record(ME, record_request({"type": "t", "tokens": 5, **PROJECT}), "reported")
            other = desk.another()
            await other.branch(ME, branch_request({"description": "d", "prompt": "p", **PROJECT}))
            # The desk's cached state has no branch yet.
            assert (await desk.fold())["context_state"]["active_branch_id"] is None

        run(act)

    def test_a_lost_race_is_noted(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            other = desk.another()
            request = record_request({"type": "t", "tokens": 1, **PROJECT})
            for service in (desk.service, other, desk.service, other):
                await service.record(ME, request, "reported")
            # The other daemon committed first both times.
            assert sum(noted.conflicts for noted in desk.noted) == 2

        run(act)

    def test_one_call_sent_to_both_has_one_effect(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            other = desk.another()
            caller = Caller("local", operation_id="once")
            request = record_request({"type": "t", "tokens": 5, **PROJECT})
            outcomes = await asyncio.gather(
                *(service.record(caller, request, "reported") for service in (desk.service, other) for _ in range(5))
            )
            assert len({outcome.answer for outcome in outcomes}) == 1
            assert (await desk.status())["token_breakdown"]["main_thread"] == 5
            await desk.branch()
            told = json.loads((await other.status(ME, look_request(PROJECT))).answer)
            assert told == await desk.status()

        run(act)

    def test_many_calls_on_one_session_all_count(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            services = [desk.service, desk.another(), desk.another()]
            request = record_request({"type": "t", "tokens": 1, **PROJECT})
            await asyncio.gather(*(services[number % 3].record(ME, request, "reported") for number in range(30)))
            assert (await desk.status())["token_breakdown"]["main_thread"] == 30

        run(act)


class TestWhatIsNoted:
    def test_a_call_that_is_sent_again_is_counted_once(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            caller = Caller("local", operation_id="once")
            for _ in range(3):
                await desk.branch(caller)
            # The two events are the start of the session and the branch.
            assert [len(noted.events) for noted in desk.noted if noted.events] == [2]

        run(act)


class TestSearch:
    def test_a_fold_that_was_undone_is_not_found_until_it_is_made_again(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            branch_id = (await desk.branch())["branch_id"]
            await desk.fold("the cause was a comma")
            assert len(await desk.service.search("local", "comma", None)) == 1
            request = rollback_request({"branch_id": branch_id, **PROJECT})
            await desk.service.rollback(ME, request)
            assert await desk.service.search("local", "comma", None) == []
            await desk.fold("a comma after all")
            assert [found.summary for found in await desk.service.search("local", "comma", None)] == [
                "a comma after all"
            ]

        run(act)

    def test_a_branch_that_was_folded_with_the_one_around_it_is_found_by_what_it_did(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            outer = (await desk.branch())["branch_id"]
            inner = (await desk.branch())["branch_id"]
            await desk.service.record(ME, record_request({"type": "t", "content": "ECONNRESET", **PROJECT}), "reported")
            await desk.service.fold(ME, return_request({"message": "done", "branch_id": outer, **PROJECT}))
            assert {found.branch_id for found in await desk.service.search("local", "d", None)} == {outer, inner}
            recalled = await desk.service.recalls.answer("local", RecallRequest("ECONNRESET"))
            assert [fold.id for fold in recalled.folds] == [inner]

        run(act)


class TestExpanding:
    def test_a_page_reads_no_more_than_it_needs(self, run: Run) -> None:
        async def act(desk: Desk) -> None:
            branch_id = (await desk.branch())["branch_id"]
            for _ in range(5):
                content = record_request({"type": "t", "content": "x" * 100_000, **PROJECT})
                await desk.service.record(ME, content, "reported")
            where = ("local", project_at("/work/app").hash, branch_id)
            read = await desk.store.trajectory(*where, limit=64, characters=1_000)
            assert read
            assert [entry.kind for entry in read.entries] == ["prompt", "operation"]

        run(act)


class TestFailingClosed:
    def test_if_scrubbing_fails_the_call_fails_and_nothing_is_kept(self) -> None:
        class Broken:
            def scrub(self, text: str) -> Any:
                raise RuntimeError(text)

        async def act() -> None:
            store = MemoryStore()
            service = FoldService(store, Broken())
            with pytest.raises(ScrubFailed) as failed:
                await service.branch(ME, branch_request({"description": "d", "prompt": "secret", **PROJECT}))
            assert "secret" not in f"{failed.value.reason} {failed.value.message} {failed.value.data}"
            assert await store.count() == 0
            assert service.safe_error(BranchNotFound("secret", None)) == ("Internal error", {})

        asyncio.run(act())

    def test_a_log_that_does_not_follow_is_told_as_such(self) -> None:
        class Gap(MemoryStore):
            async def load(self, *given: Any) -> Any:
                log = await super().load(*given)
                return type(log)(log.session_id, log.events[1:]) if log else None

        async def act() -> None:
            store = Gap()
            await FoldService(store, SCRUBBER).branch(
                ME, branch_request({"description": "d", "prompt": "p", **PROJECT})
            )
            with pytest.raises(StoreInvalid):
                await FoldService(store, SCRUBBER).status(ME, look_request(PROJECT))

        asyncio.run(act())


def test_the_default_limits_are_those_of_the_specification() -> None:
    assert SessionLimits() == SessionLimits(context_tokens=None, is_hard=False, depth=8, branches=1_000)
    policy = FoldPolicy()
    assert (policy.counter, policy.idle_s, policy.thresholds.medium, policy.thresholds.high) == ("v0", 86_400, 50, 70)


@covers("folding.md#project")
def test_a_project_hash_is_16_hex_digits_of_the_normalised_paths_sha256() -> None:
    import hashlib

    assert project_at("/a/./b//").hash == hashlib.sha256(b"/a/b").hexdigest()[:16]


@pytest.mark.parametrize(
    ("given", "normalised"),
    [
        ("/", "/"),
        ("//", "/"),
        ("/a/b/", "/a/b"),
        ("/a/../../b", "/b"),
        ("/a b/ü", "/a b/ü"),
        ("c:/x/./y", "C:\\x\\y"),
        ("C:\\x\\..\\y\\", "C:\\y"),
        ("\\\\server\\share\\x", "\\\\server\\share\\x"),
        ("\\\\server\\share\\..\\..\\other", "\\\\server\\share\\other"),
        ("\\\\server", "\\\\server"),
    ],
)
def test_a_path_is_normalised_as_text(given: str, normalised: str) -> None:
    assert project_at(given).path == normalised
