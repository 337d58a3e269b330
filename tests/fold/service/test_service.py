"""The service with a clock that the test sets: expiry, two daemons at once, search, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from contextfold.common.canonical import encode
from contextfold.errors import BranchNotFound, ScrubFailed, StoreInvalid
from contextfold.fold.policy import FoldPolicy
from contextfold.fold.project import Caller, project_at
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.reports import Activity
from contextfold.fold.session import SessionLimits
from contextfold.fold.store import ArchivedThread, Store
from contextfold.fold.tool_calls import (
    RecallRequest,
)
from contextfold.scrub.scrubber import standard_scrubber
from tests.support.temporary_store import TemporaryStore

PROJECT = {"project_path": "/work/app"}
ME = Caller("local")
SCRUBBER = standard_scrubber()
DAY = timedelta(days=1)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class ServiceHarness:
    """A service together with what a test inspects."""

    def __init__(self, store: Store, policy: FoldPolicy) -> None:
        self.clock = Clock()
        self.activities: list[Activity] = []
        self.store = store
        self.policy = policy
        self.service = self.another_service()

    def another_service(self) -> FoldService:
        """A second service on the same store, as after a restart or in a second daemon."""
        return FoldService(self.store, SCRUBBER, self.policy, clock=self.clock, note=self.activities.append)

    async def branch(self, caller: Caller = ME) -> Any:
        request = {"description": "d", "prompt": "p", **PROJECT}
        return (await self.service.open_branch(caller, request)).answer

    async def fold(self, message: str = "done", caller: Caller = ME) -> Any:
        request = {"message": message, **PROJECT}
        return (await self.service.return_branch(caller, request)).answer

    async def status(self) -> Any:
        return (await self.service.branch_status(ME, PROJECT)).answer

    async def expand(self, branch_id: str) -> Any:
        request = {"branch_id": branch_id, **PROJECT}
        return (await self.service.expand(ME, request)).answer


POLICY = FoldPolicy(archive_days=2, summary_days=4)


@pytest.fixture
async def harness() -> AsyncIterator[ServiceHarness]:
    store = TemporaryStore()
    yield ServiceHarness(store, POLICY)
    await store.close()


class TestExpiry:
    async def test_a_session_ends_after_24_hours_without_a_change(self, harness: ServiceHarness) -> None:
        first = await harness.branch()
        harness.clock.now += DAY - timedelta(seconds=1)
        assert (await harness.status())["session_id"] == first["session_id"]
        # Reading the status does not extend the session's life.
        harness.clock.now += timedelta(seconds=1)
        assert (await harness.status())["session_id"] is None
        second = await harness.branch()
        assert second["session_id"] != first["session_id"]
        assert second["parent_branch_id"] is None

    async def test_a_session_that_is_idle_is_no_longer_a_target(self, harness: ServiceHarness) -> None:
        session_id = (await harness.branch())["session_id"]
        other = harness.another_service()
        found = await other.find_target("local", session_id)
        assert found is not None
        assert found.given_path == "/work/app"
        harness.clock.now += DAY
        # A report for such a target would begin a session without a project.
        assert await harness.another_service().find_target("local", session_id) is None

    async def test_a_change_extends_a_session(self, harness: ServiceHarness) -> None:
        first = await harness.branch()
        for _ in range(3):
            harness.clock.now += DAY - timedelta(seconds=1)
            assert (await harness.branch())["session_id"] == first["session_id"]

    async def test_a_sweep_ends_idle_sessions(self, harness: ServiceHarness) -> None:
        await harness.branch()
        assert await harness.store.count() == 1
        assert await harness.service.end_idle() == 0
        harness.clock.now += DAY
        assert await harness.service.end_idle() == 1
        assert await harness.store.count() == 0

    async def test_a_call_repeated_after_the_session_ended_is_a_new_call(self, harness: ServiceHarness) -> None:
        caller = Caller("local", operation_id="once")
        first = await harness.branch(caller)
        assert await harness.branch(caller) == first
        harness.clock.now += DAY
        second = await harness.branch(caller)
        assert second["session_id"] != first["session_id"]
        assert (await harness.status())["active_branch_id"] == second["branch_id"]

    async def test_a_branch_can_be_expanded_after_its_session_ended(self, harness: ServiceHarness) -> None:
        branch_id = (await harness.branch())["branch_id"]
        await harness.fold("the cause was a comma")
        harness.clock.now += DAY
        await harness.service.end_idle()
        assert [entry["kind"] for entry in (await harness.expand(branch_id))["entries"]] == ["prompt", "summary"]

    async def test_archive_and_summaries_expire_after_their_own_days(self, harness: ServiceHarness) -> None:
        branch_id = (await harness.branch())["branch_id"]
        await harness.fold("the cause was a comma")
        harness.clock.now += 3 * DAY
        await harness.service.end_idle()
        await harness.service.forget()
        with pytest.raises(BranchNotFound):
            await harness.expand(branch_id)
        assert len(await harness.service.store.search("local", "comma", None, 20)) == 1
        harness.clock.now += 2 * DAY
        await harness.service.forget()
        assert await harness.service.store.search("local", "comma", None, 20) == []

    async def test_the_log_stays_in_order_if_the_clock_jumps_back(self, harness: ServiceHarness) -> None:
        first = await harness.branch()
        harness.clock.now -= timedelta(days=300)
        second = await harness.branch()
        assert second["created_at"] == first["created_at"]
        assert second["session_id"] == first["session_id"]


class TestTwoDaemons:
    async def test_the_slower_of_two_daemons_decides_again(self, harness: ServiceHarness) -> None:
        await harness.branch()
        other = harness.another_service()
        await other.record(ME, {"type": "t", "tokens": 5, **PROJECT}, "reported")
        # This branch is decided on a state that is one event old.
        await harness.branch()
        await other.roll_back(ME, {"branch_id": (await harness.status())["branch_path"][1], **PROJECT})
        assert (await harness.fold())["summary"]["tokens_folded"] == 1

    async def test_an_outdated_cached_state_refuses_no_call(self, harness: ServiceHarness) -> None:
        await harness.service.record(ME, {"type": "t", "tokens": 5, **PROJECT}, "reported")
        other = harness.another_service()
        await other.open_branch(ME, {"description": "d", "prompt": "p", **PROJECT})
        # The cached state of this service has no branch yet.
        assert (await harness.fold())["context_state"]["active_branch_id"] is None

    async def test_a_lost_race_is_counted_as_a_conflict(self, harness: ServiceHarness) -> None:
        other = harness.another_service()
        request = {"type": "t", "tokens": 1, **PROJECT}
        for service in (harness.service, other, harness.service, other):
            await service.record(ME, request, "reported")
        # The other daemon committed first both times.
        assert sum(activity.conflicts for activity in harness.activities) == 2

    async def test_one_call_sent_to_both_daemons_has_one_effect(self, harness: ServiceHarness) -> None:
        other = harness.another_service()
        caller = Caller("local", operation_id="once")
        request = {"type": "t", "tokens": 5, **PROJECT}
        outcomes = await asyncio.gather(
            *(service.record(caller, request, "reported") for service in (harness.service, other) for _ in range(5))
        )
        assert len({encode(outcome.answer) for outcome in outcomes}) == 1
        assert (await harness.status())["token_breakdown"]["main_thread"] == 5
        await harness.branch()
        status = (await other.branch_status(ME, PROJECT)).answer
        assert status == await harness.status()

    async def test_many_calls_on_one_session_all_count(self, harness: ServiceHarness) -> None:
        services = [harness.service, harness.another_service(), harness.another_service()]
        request = {"type": "t", "tokens": 1, **PROJECT}
        await asyncio.gather(*(services[number % 3].record(ME, request, "reported") for number in range(30)))
        assert (await harness.status())["token_breakdown"]["main_thread"] == 30


class TestActivities:
    async def test_a_repeated_call_is_reported_once(self, harness: ServiceHarness) -> None:
        caller = Caller("local", operation_id="once")
        for _ in range(3):
            await harness.branch(caller)
        # The two events are the start of the session and the branch.
        assert [len(activity.events) for activity in harness.activities if activity.events] == [2]


class TestSearch:
    async def test_an_undone_fold_is_not_found_until_it_is_made_again(self, harness: ServiceHarness) -> None:
        branch_id = (await harness.branch())["branch_id"]
        await harness.fold("the cause was a comma")
        assert len(await harness.service.store.search("local", "comma", None, 20)) == 1
        request = {"branch_id": branch_id, **PROJECT}
        await harness.service.roll_back(ME, request)
        assert await harness.service.store.search("local", "comma", None, 20) == []
        await harness.fold("a comma after all")
        assert [summary.summary for summary in await harness.service.store.search("local", "comma", None, 20)] == [
            "a comma after all"
        ]

    async def test_a_branch_that_was_folded_with_its_parent_is_found_by_its_operations(
        self, harness: ServiceHarness
    ) -> None:
        outer = (await harness.branch())["branch_id"]
        inner = (await harness.branch())["branch_id"]
        await harness.service.record(ME, {"type": "t", "content": "ECONNRESET", **PROJECT}, "reported")
        await harness.service.return_branch(ME, {"message": "done", "branch_id": outer, **PROJECT})
        assert {summary.branch_id for summary in await harness.service.store.search("local", "d", None, 20)} == {
            outer,
            inner,
        }
        recalled = await harness.service.recalls.answer("local", RecallRequest("ECONNRESET"))
        assert [fold.id for fold in recalled.folds] == [inner]


class TestExpanding:
    async def test_a_page_reads_only_the_entries_that_it_needs(self, harness: ServiceHarness) -> None:
        branch_id = (await harness.branch())["branch_id"]
        for _ in range(5):
            content = {"type": "t", "content": "x" * 100_000, **PROJECT}
            await harness.service.record(ME, content, "reported")
        thread = ArchivedThread("local", project_at("/work/app").hash, branch_id)
        read = await harness.store.trajectory(thread, limit=64, characters=1_000)
        assert read
        assert [entry.kind for entry in read.entries] == ["prompt", "operation"]


class TestFailingClosed:
    async def test_if_redaction_fails_the_call_fails_and_nothing_is_stored(self) -> None:
        class BrokenScrubber:
            def scrub(self, text: str) -> Any:
                raise RuntimeError(text)

        store = TemporaryStore()
        service = FoldService(store, BrokenScrubber())
        with pytest.raises(ScrubFailed) as raised:
            await service.open_branch(ME, {"description": "d", "prompt": "secret", **PROJECT})
        assert "secret" not in f"{raised.value.reason} {raised.value.message} {raised.value.data}"
        assert await store.count() == 0
        assert service.safe_error(BranchNotFound("secret", None)) == ("Internal error", {})

    async def test_a_log_with_a_gap_raises_store_invalid(self) -> None:
        class StoreWithGap(TemporaryStore):
            async def load(self, *given: Any) -> Any:
                log = await super().load(*given)
                return type(log)(log.session_id, log.events[1:]) if log else None

        store = StoreWithGap()
        await FoldService(store, SCRUBBER).open_branch(ME, {"description": "d", "prompt": "p", **PROJECT})
        with pytest.raises(StoreInvalid):
            await FoldService(store, SCRUBBER).branch_status(ME, PROJECT)


def test_the_default_limits_are_those_of_the_specification() -> None:
    assert SessionLimits() == SessionLimits(context_tokens=None, is_hard=False, depth=8, branches=1_000)
    policy = FoldPolicy()
    assert (policy.counter, policy.idle_s, policy.thresholds.medium, policy.thresholds.high) == ("v0", 86_400, 50, 70)


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
