"""Two writers decide on the same revision at the same moment: one wins each time, and no work is lost."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from contextfold.error_codes import JSON_RPC_CODES
from contextfold.fold.events import OperationCompleted
from contextfold.fold.ports.store import StaleRevision
from contextfold.serve.mcp.fold_tools import META_OPERATION
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.nats.wire.connection import NatsOptions
from tests.contract.sessions import NOON, branch_commit, commit_of, key_of
from tests.stores.nats.agents import Book, Session, random_call
from tests.stores.nats.history import Account, Outcome, Try, excerpt, violations
from tests.stores.nats.nemesis import daemons
from tests.stores.nats.proxy import Proxy
from tests.stores.nats.subjects import published_up_to
from tests.stores.nats.watchers import logs_through
from tests.support.daemon import Daemon, HttpAgent, Refused
from tests.support.machine import times
from tests.support.nats_servers import NatsServer, connected, random_prefix

ROUNDS = times(60, 10_000)
# After this many rounds a new session begins, because a log that grows without end is the subject of another test.
SESSION_ROUNDS = 500
READY_S = 60.0
# Calls that were not answered in time, as on a busy machine. Most must be, or nothing is shown.
UNKNOWN_MOST = ROUNDS // 3
# This is the latency of a daemon that is far away.
LAG_S = 0.02
MORNING = "2026-01-01T08:00:00Z"
ROOMY = {"CONTEXT_BRANCHES_PER_SESSION": "10000", "CONTEXT_BRANCH_DEPTH": "64"}


def test_of_two_stores_that_expect_the_same_revision_one_wins(nats_server: NatsServer) -> None:
    async def act() -> None:
        place = NatsOptions(servers=(nats_server.url,), prefix=random_prefix())
        one, two = NatsStore(place), NatsStore(place)

        async def commit(store: NatsStore, who: str, project: str, revision: int) -> bool:
            try:
                await store.commit(commit_of(key_of(project), revision, session_id=project, operation_id=who))
            except StaleRevision:
                return False
            return True

        try:
            won = {"one": 0, "two": 0}
            for turn in range(ROUNDS):
                project, revision = f"p{turn // SESSION_ROUNDS}", turn % SESSION_ROUNDS
                outcomes = await asyncio.gather(
                    commit(one, f"one {turn}", project, revision), commit(two, f"two {turn}", project, revision)
                )
                assert sorted(outcomes) == [False, True], turn
                won["one" if outcomes[0] else "two"] += 1
                for store, who, was_won in ((one, "one", outcomes[0]), (two, "two", outcomes[1])):
                    if turn % 20 == 0:
                        assert (await store.receipt(key_of(project), f"{who} {turn}") is not None) == was_won
            for project in {f"p{turn // SESSION_ROUNDS}" for turn in range(ROUNDS)}:
                logs = [await store.load(key_of(project)) for store in (one, two)]
                assert logs[0] is not None
                assert logs[1] is not None
                assert list(logs[0].events) == list(logs[1].events)
                assert [event.n for event in logs[0].events] == list(range(1, len(logs[0].events) + 1))
            assert sum(won.values()) == ROUNDS
        finally:
            await one.close()
            await two.close()

    asyncio.run(act())


def test_of_two_stores_that_sweep_at_once_one_ends_each_session(nats_server: NatsServer) -> None:
    """The other store is not disturbed by what is already gone."""
    sessions = times(12, 2000)

    async def act() -> None:
        place = NatsOptions(servers=(nats_server.url,), prefix=random_prefix())
        one, two = NatsStore(place), NatsStore(place)
        try:
            for turn in range(3):
                for number in range(sessions):
                    await one.commit(commit_of(key_of(f"p{number}"), session_id=f"sess_{turn}_{number}", at=MORNING))
                ended = await asyncio.gather(one.expire(NOON, MORNING), two.expire(NOON, MORNING))
                assert sum(ended) == sessions
                assert [await store.count() for store in (one, two)] == [0, 0]
            assert sum(await asyncio.gather(one.expire(NOON, NOON), two.expire(NOON, NOON))) == 0
        finally:
            await one.close()
            await two.close()

    asyncio.run(act())


def test_a_published_state_is_never_replaced_by_an_older_one(nats_server: NatsServer) -> None:
    """A writer that has seen the newer state, and continues to publish, does not replace it either."""
    key, prefix = key_of(), random_prefix()
    subject = f"{prefix}.local.p1.sess_1.branches.br_1"

    async def act() -> None:
        store = NatsStore(NatsOptions(servers=(nats_server.url,), prefix=prefix))
        connection = await connected(nats_server.url)
        try:
            await store.commit(commit_of(key))
            await store.commit(branch_commit(key, 1, "br_1"))
            await store.settle()
            await connection.jetstream().publish(subject, b'{"revision":9}', headers={"Cf-Revision": "9"})
            for revision in range(2, 6):
                work = OperationCompleted(revision + 1, NOON, "br_1", "t", 1, "hook", failed=False, redactions=0)
                await store.commit(replace(commit_of(key, revision), events=[work]))
                await store.settle()
                last = await connection.jetstream().get_last_msg(f"{prefix}_state", subject)
                assert json.loads(last.data or b"")["revision"] == 9
        finally:
            await connection.close()
            await store.close()

    asyncio.run(act())


class Racer(threading.Thread):
    """An agent of one daemon. With a barrier, it starts every round at the same moment as the other."""

    def __init__(
        self, number: int, daemon: Daemon, start: threading.Barrier | None, book: Book, rounds: int = ROUNDS
    ) -> None:
        super().__init__()
        self._rounds = rounds
        self._number, self._start_line, self._book = number, start, book
        self._agent = HttpAgent(daemon.port)
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            for turn in range(self._rounds):
                if self._start_line:
                    self._start_line.wait(READY_S)
                self._race(turn)
        except BaseException as problem:
            self.problem = problem
            if self._start_line:
                self._start_line.abort()
        finally:
            self._agent.close()

    def _race(self, turn: int) -> None:
        project, operation_id = f"/race/{turn // SESSION_ROUNDS}", f"racer {self._number} turn {turn}"
        call = random_call(random.Random(operation_id), Session(project), operation_id)
        sent_s = time.monotonic()
        outcome: Outcome = "acknowledged"
        told = {}
        try:
            meta = {META_OPERATION: operation_id}
            told = call.told(self._agent.call(call.tool, meta, project_path=project, **call.arguments))
        except Refused as refusal:
            outcome = "unknown" if refusal.code == JSON_RPC_CODES["store_unavailable"] else "refused"
        done_s = time.monotonic()
        self._book.write(Try(project, operation_id, call.effect, sent_s, done_s, outcome, f"d{self._number}", told))


def check(book: Book, fleet: Sequence[Daemon], url: str, prefix: str, *, least: int) -> None:
    """Checks that all answered calls are in the logs once, and that what is published matches the logs."""
    logs = {daemon.url: logs_through(daemon) for daemon in fleet}
    wanted = {name: len(log) for name, log in logs[fleet[0].url].items()}
    account = Account(book.tries, logs, {}, asyncio.run(published_up_to(url, prefix, wanted)))
    found = violations(account)
    assert not found, excerpt(account, found)
    outcomes = Counter(one.outcome for one in book.tries)
    assert outcomes["acknowledged"] > least
    assert outcomes["unknown"] <= UNKNOWN_MOST


def race(racers: Sequence[Racer]) -> None:
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.problem for racer in racers if racer.problem] == []


def test_what_two_daemons_do_to_one_session_at_once_is_all_there_once(nats_server: NatsServer, tmp_path: Path) -> None:
    prefix, book, start = random_prefix(), Book(), threading.Barrier(2)
    with daemons(tmp_path, 2, nats_server.url, "--nats-prefix", prefix, env=ROOMY) as fleet:
        race([Racer(number, daemon, start, book) for number, daemon in enumerate(fleet)])
        check(book, fleet, nats_server.url, prefix, least=ROUNDS)


def test_a_daemon_far_away_spoils_nothing_of_what_one_near_by_publishes(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    prefix, book = random_prefix(), Book()
    argv = ("--nats-prefix", prefix)
    with (
        Proxy(nats_server.port, lag_s=LAG_S) as way,
        daemons(tmp_path / "near", 1, nats_server.url, *argv, env=ROOMY) as near,
        daemons(tmp_path / "far", 1, way.url, *argv, env=ROOMY) as far,
    ):
        fleet = [*near, *far]
        race([Racer(number, fleet[number % 2], None, book, ROUNDS // 8) for number in range(6)])
        check(book, fleet, nats_server.url, prefix, least=ROUNDS // 4)
