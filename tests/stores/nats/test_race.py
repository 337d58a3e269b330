"""Two writers decide on the same revision at the same moment: one wins each time, and no work is lost."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from contextfold.errors import JSON_RPC_CODES
from contextfold.fold.events import OperationCompleted
from contextfold.serve.mcp.fold_tools import META_OPERATION
from contextfold.settings import NatsOptions
from contextfold.stores.nats.store import NatsStore
from tests.contract.sessions import NOON, branch_commit, commit_of, key_of
from tests.stores.nats.agents import CallRecorder, Session, random_call
from tests.stores.nats.fault_injection import daemons
from tests.stores.nats.history_checker import Attempt, History, Outcome, excerpt, violations
from tests.stores.nats.lossy_proxy import LossyProxy
from tests.stores.nats.subjects import published_up_to
from tests.stores.nats.watchers import logs_through
from tests.support.daemon import Daemon, HttpAgent, Refused
from tests.support.machine import times
from tests.support.nats_servers import NatsServer, connect, random_prefix

ROUNDS = times(60, 10_000)
# After this many rounds a new session begins, because a log that grows without end is the subject of another test.
SESSION_ROUNDS = 500
READY_S = 60.0
# On a busy machine some calls are not answered in time. Most must be, or the test shows nothing.
UNKNOWN_MAX = ROUNDS // 3
# This is the latency of a daemon that is far away.
LAG_S = 0.02
HIGH_LIMITS = {"CONTEXT_BRANCHES_PER_SESSION": "10000", "CONTEXT_BRANCH_DEPTH": "64"}


async def test_a_published_state_is_never_replaced_by_an_older_one(nats_server: NatsServer) -> None:
    """A writer that has seen the newer state, and continues to publish, does not replace it either."""
    key, prefix = key_of(), random_prefix()
    subject = f"{prefix}.local.p1.sess_1.branches.br_1"
    store = NatsStore(NatsOptions(servers=(nats_server.url,), prefix=prefix))
    connection = await connect(nats_server.url)
    try:
        await store.commit(commit_of(key))
        await store.commit(branch_commit(key, 1, "br_1"))
        await store.settle()
        await connection.jetstream().publish(subject, b'{"revision":9}', headers={"Cf-Revision": "9"})
        for revision in range(2, 6):
            work = OperationCompleted(revision + 1, NOON, "br_1", "t", 1, "hook", failed=False, redactions=0)
            await store.commit(commit_of(key, revision)._replace(events=[work]))
            await store.settle()
            last = await connection.jetstream().get_last_msg(f"{prefix}_state", subject)
            assert json.loads(last.data or b"")["revision"] == 9
    finally:
        await connection.close()
        await store.close()


class Racer(threading.Thread):
    """An agent of one daemon. With a barrier, it starts every round at the same moment as the other."""

    def __init__(
        self, number: int, daemon: Daemon, start: threading.Barrier | None, recorder: CallRecorder, rounds: int = ROUNDS
    ) -> None:
        super().__init__()
        self._rounds = rounds
        self._number, self._start_line, self._recorder = number, start, recorder
        self._agent = HttpAgent(daemon.port)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for turn in range(self._rounds):
                if self._start_line:
                    self._start_line.wait(READY_S)
                self._race(turn)
        except BaseException as error:
            self.error = error
            if self._start_line:
                self._start_line.abort()
        finally:
            self._agent.close()

    def _race(self, turn: int) -> None:
        project, operation_id = f"/race/{turn // SESSION_ROUNDS}", f"racer {self._number} turn {turn}"
        call = random_call(random.Random(operation_id), Session(project), operation_id)
        sent_s = time.monotonic()
        outcome: Outcome = "acknowledged"
        members = {}
        try:
            meta = {META_OPERATION: operation_id}
            members = call.event_members(self._agent.call(call.tool, meta, project_path=project, **call.arguments))
        except Refused as refusal:
            outcome = "unknown" if refusal.code == JSON_RPC_CODES["store_unavailable"] else "refused"
        done_s = time.monotonic()
        self._recorder.record(
            Attempt(project, operation_id, call.effect, sent_s, done_s, outcome, f"d{self._number}", members)
        )


def check(recorder: CallRecorder, fleet: Sequence[Daemon], url: str, prefix: str, *, min_acknowledged: int) -> None:
    """Checks that all answered calls are in the logs once, and that what is published matches the logs."""
    logs = {daemon.url: logs_through(daemon) for daemon in fleet}
    wanted = {name: len(log) for name, log in logs[fleet[0].url].items()}
    history = History(recorder.attempts, logs, {}, asyncio.run(published_up_to(url, prefix, wanted)))
    sentences = violations(history)
    assert not sentences, excerpt(history, sentences)
    outcomes = Counter(attempt.outcome for attempt in recorder.attempts)
    assert outcomes["acknowledged"] > min_acknowledged
    assert outcomes["unknown"] <= UNKNOWN_MAX


def race(racers: Sequence[Racer]) -> None:
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.error for racer in racers if racer.error] == []


def test_concurrent_calls_of_two_daemons_are_each_committed_once(nats_server: NatsServer, tmp_path: Path) -> None:
    prefix, recorder, start = random_prefix(), CallRecorder(), threading.Barrier(2)
    with daemons(tmp_path, 2, nats_server.url, "--nats-prefix", prefix, env=HIGH_LIMITS) as fleet:
        race([Racer(number, daemon, start, recorder) for number, daemon in enumerate(fleet)])
        check(recorder, fleet, nats_server.url, prefix, min_acknowledged=ROUNDS)


def test_a_daemon_with_high_latency_does_not_disturb_what_another_publishes(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    prefix, recorder = random_prefix(), CallRecorder()
    argv = ("--nats-prefix", prefix)
    with (
        LossyProxy(nats_server.port, lag_s=LAG_S) as proxy,
        daemons(tmp_path / "near", 1, nats_server.url, *argv, env=HIGH_LIMITS) as near,
        daemons(tmp_path / "far", 1, proxy.url, *argv, env=HIGH_LIMITS) as far,
    ):
        fleet = [*near, *far]
        race([Racer(number, fleet[number % 2], None, recorder, ROUNDS // 8) for number in range(6)])
        check(recorder, fleet, nats_server.url, prefix, min_acknowledged=ROUNDS // 4)
