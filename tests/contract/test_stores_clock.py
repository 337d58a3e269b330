"""A clock that is wrong deletes nothing: expiry counts the time that the store has seen pass, on every store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from contextfold.fold.policy import FoldPolicy
from contextfold.fold.project import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.store import (
    LOCAL_OWNER,
    ArchivedResult,
    ArchivedThread,
    LeftOutDecision,
    ProxiedConversation,
    Store,
)
from contextfold.scrub.scrubber import standard_scrubber
from tests.support.clock import set_clock_forward
from tests.support.daemon import Daemon, HttpAgent
from tests.support.waiting import until

PROJECT = {"project_path": "/work/app"}
ME = Caller(LOCAL_OWNER)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Machine:
    """A daemon's service, and the clock of its machine."""

    def __init__(self, store: Store, now: datetime = START, *, trusts_clock: bool = False) -> None:
        self.store, self.now = store, now
        policy = FoldPolicy(trusts_clock=trusts_clock)
        self.service = FoldService(store, standard_scrubber(), policy, clock=lambda: self.now)

    async def fold(self, message: str = "the cause was a comma") -> str:
        """Do work in a branch and return its session."""
        request = {"description": "d", "prompt": "p", **PROJECT}
        opened = (await self.service.open_branch(ME, request)).answer
        await self.service.return_branch(ME, {"message": message, **PROJECT})
        return str(opened["session_id"])

    async def sweep(self) -> None:
        await self.service.end_idle()
        await self.service.forget()

    async def run(self, time: timedelta) -> None:
        """Let time pass with a sweep a day."""
        end = self.now + time
        while self.now < end:
            self.now = min(self.now + DAY, end)
            await self.sweep()


async def _stored(store: Store) -> tuple[int, int, int, bool, bool]:
    """The numbers of live sessions, ended sessions and summaries, and whether the archive and a result are there."""
    (project_hash,) = {summary.project_hash for summary in await store.summaries(LOCAL_OWNER, None)} or {""}
    branch_ids = [summary.branch_id for summary in await store.summaries(LOCAL_OWNER, None)]
    threads = [ArchivedThread(LOCAL_OWNER, project_hash, branch_id) for branch_id in branch_ids]
    trajectories = [await store.trajectory(thread, limit=9) for thread in threads]
    ended = await store.ended_sessions(LOCAL_OWNER, limit=10)
    text = await store.left_out_text(LOCAL_OWNER, "res_1")
    return await store.count(), len(ended), len(branch_ids), any(trajectories), text is not None


async def _fill(machine: Machine) -> None:
    """One ended session, one live session, one left-out result of now."""
    await machine.fold()
    await machine.run(2 * DAY)
    await machine.fold()
    at = machine.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    result = ArchivedResult(LeftOutDecision("call", "hash", "res_1", "stub", at), "text")
    await machine.store.keep_left_out(LOCAL_OWNER, "c", [result])
    await machine.store.note_conversation(LOCAL_OWNER, "c", ProxiedConversation(at))
    assert await _stored(machine.store) == (1, 1, 2, True, True)


async def test_a_clock_that_is_far_ahead_deletes_nothing(store: Store) -> None:
    machine = Machine(store)
    await _fill(machine)
    ahead = Machine(store, machine.now + 400 * DAY)
    for _ in range(3):
        await ahead.sweep()
        ahead.now += HOUR
    assert await _stored(store) == (1, 1, 2, True, True)
    assert ahead.service.sessions.unseen_time() == ("2026-03-03T12:00:00Z", "2027-04-07T12:00:00Z")


async def test_a_store_without_a_record_of_its_clock_has_seen_the_newest_time_in_it(store: Store) -> None:
    machine = Machine(store)
    await machine.fold()
    ahead = Machine(store, machine.now + 400 * DAY)
    await ahead.sweep()
    assert (await _stored(store))[:4] == (1, 0, 1, True)


async def test_a_session_goes_on_if_a_clock_that_is_far_ahead_says_that_it_is_idle(store: Store) -> None:
    machine = Machine(store)
    session_id = await machine.fold()
    ahead = Machine(store, machine.now + 400 * DAY)
    assert await ahead.fold() == session_id
    machine.now += HOUR
    await machine.sweep()
    assert await machine.fold() == session_id


async def test_everything_expires_as_usual_once_a_clock_that_was_far_ahead_is_corrected(store: Store) -> None:
    machine = Machine(store)
    await _fill(machine)
    await Machine(store, machine.now + 400 * DAY).sweep()
    await machine.run(HOUR)
    assert machine.service.sessions.unseen_time() is None
    await machine.run(29 * DAY)
    assert await _stored(store) == (0, 2, 2, True, True)
    await machine.run(3 * DAY)
    assert await _stored(store) == (0, 2, 2, False, False)
    await machine.run(340 * DAY)
    assert await _stored(store) == (0, 0, 0, False, False)


async def test_a_store_that_nobody_used_for_long_expires_after_the_time_that_it_has_seen_pass(store: Store) -> None:
    machine = Machine(store)
    await _fill(machine)
    machine.now += 60 * DAY
    await machine.run(29 * DAY)
    # The live session has ended a day after the pause, and its archive is not yet 30 days old.
    assert await _stored(store) == (0, 2, 2, True, True)
    await machine.run(4 * DAY)
    assert await _stored(store) == (0, 2, 2, False, False)


async def test_work_after_a_long_pause_expires_as_usual(store: Store) -> None:
    machine = Machine(store)
    await machine.fold()
    machine.now += 60 * DAY
    await machine.sweep()
    await machine.run(2 * DAY)
    later = await machine.fold()
    await machine.run(2 * DAY)
    assert await store.count() == 0
    assert later in {session.session_id for session in await store.ended_sessions(LOCAL_OWNER, limit=9)}
    await machine.run(31 * DAY)
    assert (await _stored(store))[3] is False


async def test_a_clock_that_went_back_for_a_while_deletes_nothing_when_it_is_right_again(store: Store) -> None:
    machine = Machine(store)
    await _fill(machine)
    for behind in (45 * DAY, 20_000 * DAY):
        await Machine(store, machine.now - behind).sweep()
        machine.now += HOUR
        await machine.sweep()
        assert await _stored(store) == (1, 1, 2, True, True)
        assert machine.service.sessions.unseen_time() is None


async def test_two_daemons_whose_clocks_disagree_delete_nothing_of_each_other(store: Store) -> None:
    machine = Machine(store)
    await _fill(machine)
    ahead = Machine(store, machine.now + 400 * DAY)
    for _ in range(4):
        for each in (ahead, machine):
            each.now += HOUR
            await each.sweep()
    assert await _stored(store) == (1, 1, 2, True, True)
    await machine.run(2 * DAY)
    assert await store.count() == 0


async def test_a_person_who_trusts_the_clock_lets_everything_expire_by_it(store: Store) -> None:
    machine = Machine(store)
    await _fill(machine)
    await Machine(store, machine.now + 60 * DAY).sweep()
    trusting = Machine(store, machine.now + 60 * DAY, trusts_clock=True)
    await trusting.sweep()
    assert await _stored(store) == (0, 2, 2, False, False)
    later = Machine(store, trusting.now + DAY)
    await later.sweep()
    assert later.service.sessions.unseen_time() is None


async def test_a_new_store_whose_first_clock_was_wrong_goes_on_with_the_right_one(store: Store) -> None:
    wrong = Machine(store, START + 800 * DAY)
    await wrong.sweep()
    first = await wrong.fold()
    machine = Machine(store)
    await machine.run(2 * DAY)
    assert await store.count() == 0
    assert await machine.fold() != first


def test_a_daemon_whose_clock_is_far_ahead_says_so_until_a_person_trusts_it(tmp_path: Path) -> None:
    branch: Any = {"description": "d", "prompt": "p", **PROJECT}
    with Daemon(tmp_path) as daemon, HttpAgent(daemon.port) as agent:
        session_id = agent.call("context_branch", **branch)["session_id"]
        assert agent.http.ask("GET", "/readyz").body == b"ready\n"
    ahead = partial(set_clock_forward, timedelta(days=400))
    with Daemon(tmp_path, prepare=ahead) as daemon, HttpAgent(daemon.port) as agent:
        until(lambda: b'"clock.ahead"' in daemon.log.read_bytes())
        page = agent.http.ask("GET", "/readyz")
        assert page.status == 200
        assert b"--trust-clock" in page.body
        assert agent.call("context_branch", **branch)["session_id"] == session_id
        assert b'"sessions.ended"' not in daemon.log.read_bytes()
    # The session was active at the time of the wrong clock, so it ends a day later.
    later = partial(set_clock_forward, timedelta(days=402))
    with Daemon(tmp_path, "--trust-clock", prepare=later) as daemon, HttpAgent(daemon.port) as agent:
        until(lambda: b'"sessions.ended"' in daemon.log.read_bytes())
        assert agent.http.ask("GET", "/readyz").body == b"ready\n"
