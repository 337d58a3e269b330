"""The daemon is killed while many sessions are in use: every acknowledged call is stored once."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from pathlib import Path
from typing import Any

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
        self.failures: list[str] = []

    def acknowledge(self) -> None:
        with self._changed:
            self._acknowledged += 1
            self._changed.notify_all()

    def wait_for(self, count: float) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._acknowledged >= count or self.failures, timeout=300)


class RetryingAgent:
    """One agent with a session of its own. It repeats each call until it is answered."""

    def __init__(self, number: int, daemon: Daemon, progress: Progress) -> None:
        self.project = f"/crash/{number}"
        self.names_calls = number % 4 != 0
        self._era = MODERN if number % 2 else LEGACY
        self._number, self._daemon, self._progress = number, daemon, progress
        self._calls = 0
        self._agent: HttpAgent | None = None
        self.acknowledged: Counter[str] = Counter()
        self.uncertain: Counter[str] = Counter()
        self._restarted = threading.Event()

    def work(self) -> None:
        try:
            for round_number in range(ROUNDS):
                self._call_until_answered(
                    f"b {round_number}", "context_branch", description=f"b {round_number}", prompt="p"
                )
                for record in range(RECORDS):
                    content = f"o {round_number} {record}"
                    self._call_until_answered(content, "context_record", type="t", content=content)
                self._call_until_answered(f"s {round_number}", "context_return", message=f"s {round_number}")
        except Exception as error:
            # The test reads this; otherwise it would wait forever.
            self._progress.failures.append(f"{self.project}: {error!r}")
            self._progress.acknowledge()

    def _call_until_answered(self, effect: str, tool: str, **arguments: Any) -> None:
        self._calls += 1
        meta = {"contextfold/operation_id": f"call {self._calls}"} if self.names_calls else None
        for _ in range(TRIES_MAX):
            try:
                self.agent.call(tool, meta, project_path=self.project, **arguments)
            except (OSError, http.client.HTTPException, ValueError):
                # The connection was cut, so the operation may have been done or not.
                self._forget_connection()
                if not self.names_calls:
                    self.uncertain[effect] += 1
                self._restarted.wait(PAUSE_S)
                continue
            except Refused:
                # An earlier try was stored although it was not answered, so there is no branch left to return from.
                if self.names_calls or not self.uncertain[effect]:
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
        """Every acknowledged effect must be stored once, and an uncertain one at most as often as it was tried."""
        # The connection may be from before the daemon was killed.
        self._forget_connection()
        stored: Counter[str] = Counter()
        listed = self.agent.call("context_list_branches", project_path=self.project)["branches"]
        for branch in listed:
            stored[branch["description"]] += 1
            page = self.agent.call("context_expand", project_path=self.project, branch_id=branch["id"], budget=10_000)
            assert page["next_cursor"] is None
            for entry in page["entries"]:
                if entry["kind"] in ("operation", "summary"):
                    stored[entry["text"]] += 1
        # A fold gives the branches that are still open inside it an empty summary.
        del stored[""]
        for effect in self.acknowledged | self.uncertain:
            least, most = self.acknowledged[effect], self.acknowledged[effect] + self.uncertain[effect]
            assert least <= stored[effect] <= most, (self.project, effect, stored)
        assert stored.keys() <= (self.acknowledged + self.uncertain).keys()
        if self.names_calls:
            assert set(stored.values()) == {1}
            assert len(stored) == ROUNDS * (2 + RECORDS)
        self._forget_connection()


def test_every_acknowledged_call_is_stored_once_although_the_daemon_is_killed(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    progress = Progress()
    retrying_agents = [RetryingAgent(number, daemon, progress) for number in range(SESSIONS)]
    threads = [threading.Thread(target=retrying_agent.work) for retrying_agent in retrying_agents]
    for thread in threads:
        thread.start()
    try:
        for share in KILL_AT:
            progress.wait_for(share * SESSIONS * ROUNDS * (2 + RECORDS))
            daemon.kill()
            daemon.start()
        for thread in threads:
            thread.join()
        assert progress.failures == []
        for retrying_agent in retrying_agents:
            retrying_agent.check()
        assert daemon.stop() == 0
        # The second check sees only what is on disk.
        daemon.start()
        for retrying_agent in retrying_agents:
            retrying_agent.check()
        acknowledged = sum(retrying_agent.acknowledged.total() for retrying_agent in retrying_agents)
        # `pytest -rP` shows this, for a table of faults.
        print(f"kill daemon {len(KILL_AT)}, {acknowledged} calls acknowledged, 0 lost, 0 doubled")
    finally:
        daemon.stop()
