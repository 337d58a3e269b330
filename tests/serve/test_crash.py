"""Many sessions at once, and the daemon killed in between: every acknowledged call is stored once."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.clauses import covers
from tests.support.daemon import LEGACY, MODERN, Daemon, HttpAgent, Refused
from tests.support.machine import times

SESSIONS = times(10, 200)
ROUNDS = 3
RECORDS = 3
# The daemon is killed when it has acknowledged these shares of all calls.
KILL_AT = (0.2, 0.45, 0.7)
# With the pause below, the daemon has a minute to come back.
TRIES_MAX = 1200
PAUSE_S = 0.05


class Progress:
    """The number of acknowledged calls, for tests that wait for a share of them."""

    def __init__(self) -> None:
        self._acknowledged = 0
        self._changed = threading.Condition()
        self.broken: list[str] = []

    def acknowledge(self) -> None:
        with self._changed:
            self._acknowledged += 1
            self._changed.notify_all()

    def wait_for(self, count: float) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._acknowledged >= count or self.broken, timeout=300)


class Worker:
    """One agent with a session of its own. It repeats each call until it is answered."""

    def __init__(self, number: int, daemon: Daemon, progress: Progress) -> None:
        self.project = f"/crash/{number}"
        self.names_calls = number % 4 != 0
        self._era = MODERN if number % 2 else LEGACY
        self._number, self._daemon, self._progress = number, daemon, progress
        self._calls = 0
        self._agent: HttpAgent | None = None
        self.acknowledged: Counter[str] = Counter()
        self.doubtful: Counter[str] = Counter()
        self._restarted = threading.Event()

    def work(self) -> None:
        try:
            for round_ in range(ROUNDS):
                self._do(f"b {round_}", "context_branch", description=f"b {round_}", prompt="p")
                for record in range(RECORDS):
                    content = f"o {round_} {record}"
                    self._do(content, "context_record", type="t", content=content)
                self._do(f"s {round_}", "context_return", message=f"s {round_}")
        except Exception as problem:
            # The test reads this; otherwise it would wait forever.
            self._progress.broken.append(f"{self.project}: {problem!r}")
            self._progress.acknowledge()

    def _do(self, effect: str, tool: str, **arguments: Any) -> None:
        self._calls += 1
        meta = {"contextfold/operation_id": f"call {self._calls}"} if self.names_calls else None
        for _ in range(TRIES_MAX):
            try:
                self.agent.call(tool, meta, project_path=self.project, **arguments)
            except (OSError, http.client.HTTPException, ValueError):
                # The connection was cut, so the operation may have been done or not.
                self._forget_connection()
                if not self.names_calls:
                    self.doubtful[effect] += 1
                self._restarted.wait(PAUSE_S)
                continue
            except Refused:
                # Only where an earlier try went through after all: then there is nothing (more) to return from.
                if self.names_calls or not self.doubtful[effect]:
                    raise
                return
            self.acknowledged[effect] += 1
            self._progress.acknowledge()
            return
        raise AssertionError(f"{effect} was never answered")

    @property
    def agent(self) -> HttpAgent:
        if self._agent is None:
            self._agent = HttpAgent(self._daemon.port, self._era)
        return self._agent

    def _forget_connection(self) -> None:
        if self._agent:
            self._agent.close()
            self._agent = None

    def check(self) -> None:
        """Checks that every acknowledged effect is stored once, and a doubtful one at most as often as it was tried."""
        # The connection may be from before the daemon was killed.
        self._forget_connection()
        found: Counter[str] = Counter()
        listed = self.agent.call("context_list_branches", project_path=self.project)["branches"]
        for branch in listed:
            found[branch["description"]] += 1
            page = self.agent.call("context_expand", project_path=self.project, branch_id=branch["id"], budget=10_000)
            assert page["next_cursor"] is None
            for entry in page["entries"]:
                if entry["kind"] in ("operation", "summary"):
                    found[entry["text"]] += 1
        # A fold gives the branches that are still open inside it an empty summary.
        del found[""]
        for effect in self.acknowledged | self.doubtful:
            least, most = self.acknowledged[effect], self.acknowledged[effect] + self.doubtful[effect]
            assert least <= found[effect] <= most, (self.project, effect, found)
        assert found.keys() <= (self.acknowledged + self.doubtful).keys()
        if self.names_calls:
            assert set(found.values()) == {1}
            assert len(found) == ROUNDS * (2 + RECORDS)
        self._forget_connection()


@covers("folding.md#commit", "product.md#fold", "store.md#commit")
def test_every_acknowledged_call_is_there_once_though_the_daemon_was_killed(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    progress = Progress()
    workers = [Worker(number, daemon, progress) for number in range(SESSIONS)]
    threads = [threading.Thread(target=worker.work) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for share in KILL_AT:
            progress.wait_for(share * SESSIONS * ROUNDS * (2 + RECORDS))
            daemon.kill()
            daemon.start()
        for thread in threads:
            thread.join()
        assert progress.broken == []
        for worker in workers:
            worker.check()
        assert daemon.stop() == 0
        # The second check sees only what is on disk.
        daemon.start()
        for worker in workers:
            worker.check()
    finally:
        daemon.stop()
