"""Random histories of calls, retries, lost answers, restarts and a second daemon, compared with a model that copies.

The model is a second, slow implementation of the specification: at each branch it copies its whole state, and a
rollback restores the copy.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contextfold.common.canonical import encode
from contextfold.errors import FoldError, StoreUnavailable
from contextfold.fold.events import Event
from contextfold.fold.messages import Receipt
from contextfold.fold.policy import FoldPolicy
from contextfold.fold.project import Caller, Target, project_at
from contextfold.fold.sent_request import RequestReport, Share
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.sessions import VerbOutcome
from contextfold.fold.session import SessionLimits, replay
from contextfold.fold.store import Commit, CommitReceipt, SessionKey, Store
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.stores.sqlite.store import SqliteStore
from tests.support.machine import times

PROJECT = "/work/app"
LIMITS = SessionLimits(context_tokens=2_000, depth=4, branches=15)
KEY = SessionKey("local", project_at(PROJECT).hash, "")
SCRUBBER = standard_scrubber()


class FaultyStore:
    """A store whose commits fail on request, either before they happen, or after, so that only the answer is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fault = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commit: Commit) -> CommitReceipt:
        fault, self.fault = self.fault, ""
        if fault == "before":
            raise StoreUnavailable("cut before")
        receipt = await self._store.commit(commit)
        if fault == "after":
            raise StoreUnavailable("cut after")
        return receipt


class Model:
    """Main tokens, branches in order and the open path; nothing is shared, everything is copied."""

    def __init__(self) -> None:
        self.main = 0
        self.branches: dict[str, dict[str, Any]] = {}
        self.path: list[str] = []
        self.copies: dict[str, tuple[int, dict[str, dict[str, Any]], list[str]]] = {}
        # Once a request is seen, only requests count tokens.
        self.has_requests = False

    def branch(self, branch_id: str, tokens: int) -> None:
        parent = self.path[-1] if self.path else None
        self.branches[branch_id] = {"status": "active", "tokens": tokens, "parent": parent, "removable": None}
        self.path.append(branch_id)
        self.copies[branch_id] = copy.deepcopy((self.main, self.branches, self.path))

    def record(self, tokens: int) -> None:
        if self.has_requests:
            return
        if self.path:
            self.branches[self.path[-1]]["tokens"] += tokens
        else:
            self.main += tokens

    def send(self, levels: Sequence[int]) -> None:
        self.has_requests = True
        self.main = levels[0]
        for depth, other_id in enumerate(self.path, 1):
            self.branches[other_id]["tokens"] = levels[depth]
            self.branches[other_id]["removable"] = sum(levels[depth:])

    def fold(self, branch_id: str, tokens: int) -> None:
        folded = self.path[self.path.index(branch_id) :]
        removable = [self.branches[other_id]["removable"] for other_id in folded]
        for other_id, outer, inner in zip(folded, removable, [*removable[1:], None], strict=True):
            if outer is not None:
                self.branches[other_id]["tokens"] = max(0, outer - (inner or 0))
        del self.path[self.path.index(branch_id) :]
        for other_id in reversed(folded):
            for outer_id in (*self.path, *folded[: folded.index(other_id)]):
                if self.branches[outer_id]["removable"] is not None:
                    left = self.branches[outer_id]["removable"] - self.branches[other_id]["tokens"]
                    self.branches[outer_id]["removable"] = max(0, left)
        for other_id, branch in self.branches.items():
            if branch["status"] == "active" and other_id not in self.path:
                branch["status"] = "folded"
        parent = self.branches[branch_id]["parent"]
        if parent is None:
            self.main += tokens
        else:
            self.branches[parent]["tokens"] += tokens

    def rollback(self, branch_id: str, *, restore: bool) -> None:
        main, branches, path = copy.deepcopy(self.copies[branch_id])
        later = [other_id for other_id in self.branches if other_id not in branches]
        if restore:
            discarded = {other_id: self.branches[other_id] for other_id in later}
            self.main, self.branches = main, branches | discarded
        self.path = path
        for other_id in later:
            self.branches[other_id]["status"] = "discarded"
        for other_id in path:
            self.branches[other_id]["status"] = "active"

    @property
    def total(self) -> int:
        return self.main + sum(int(self.branches[other_id]["tokens"]) for other_id in self.path)


class Histories(RuleBasedStateMachine):
    """Two daemons on one store; each call goes to one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="contextfold-histories-"))
        self.model = Model()
        self.calls = 0
        self.services: list[FoldService] = []

    @initialize()
    def open(self) -> None:
        self.store = FaultyStore(SqliteStore(self.folder / "state.db"))
        self.services = [self.service(), self.service()]

    def service(self) -> FoldService:
        return FoldService(self.store, SCRUBBER, FoldPolicy(LIMITS), new_id=self.new_id)

    def new_id(self, prefix: str) -> str:
        self.calls += 1
        return f"{prefix}_{self.calls}"

    def call_tool(self, tool: str, request: Any, which: int, fault: str, repeat: bool) -> VerbOutcome | None:
        """Calls until there is an answer, as a client with an operation id would; None if the call is refused."""
        service = self.services[which]
        if fault == "" and not repeat and self.calls % 2:
            # Most calls have no operation id, so only the stored state counts for them.
            caller = Caller("local")
        else:
            caller = Caller("local", operation_id=self.new_id("call"))
        more = ("reported",) if tool == "record" else ()
        self.store.fault = fault
        outcomes: list[VerbOutcome] = []
        for _ in range(2 + repeat):
            try:
                outcomes.append(self.runner.run(getattr(service, tool)(caller, request, *more)))
            except StoreUnavailable:
                service = self.services[1 - which]
                continue
            except FoldError:
                self.store.fault = ""
                return None
            if not repeat:
                break
        assert len({encode(outcome.answer) for outcome in outcomes}) == 1
        return outcomes[0]

    faults = st.sampled_from(["", "", "before", "after"])
    tokens = st.integers(0, 900)

    @rule(which=st.integers(0, 1), fault=faults, repeat=st.booleans(), size=st.integers(1, 400))
    def branch(self, which: int, fault: str, repeat: bool, size: int) -> None:
        request = {"description": "d", "prompt": "p" * size, "project_path": PROJECT}
        outcome = self.call_tool("open_branch", request, which, fault, repeat)
        is_possible = len(self.model.path) < LIMITS.depth and len(self.model.branches) < LIMITS.branches
        assert (outcome is not None) == is_possible
        if outcome:
            self.model.branch(outcome.answer["branch_id"], -(-size // 4))

    @rule(which=st.integers(0, 1), fault=faults, repeat=st.booleans(), tokens=tokens)
    def record(self, which: int, fault: str, repeat: bool, tokens: int) -> None:
        request = {"type": "t", "tokens": tokens, "project_path": PROJECT}
        assert self.call_tool("record", request, which, fault, repeat)
        self.model.record(tokens)

    @rule(which=st.integers(0, 1), fault=faults, repeat=st.booleans(), levels=st.lists(tokens, min_size=5, max_size=5))
    def sent(self, which: int, fault: str, repeat: bool, levels: list[int]) -> None:
        """A request to a model gives every open thread this size. Reported by two daemons, it counts once."""
        threads = [None, *self.model.path]
        shares = tuple(
            Share(thread, levels[depth], 0, removable=sum(levels[depth : len(threads)]))
            for depth, thread in enumerate(threads)
        )
        sent = RequestReport(self.new_id("sent"), "anthropic", "m", Receipt(9, 9), shares=shares)
        self.store.fault = fault
        self.runner.run(self.report_sent(self.services[which], sent))
        if repeat:
            self.runner.run(self.report_sent(self.services[1 - which], sent))
        self.store.fault = ""
        self.model.send(levels[: len(threads)])

    async def report_sent(self, service: FoldService, sent: RequestReport) -> None:
        service.reports.receive(Target(KEY, PROJECT, None), sent)
        await service.reports.settle(KEY)

    @rule(which=st.integers(0, 1), fault=faults, repeat=st.booleans(), size=st.integers(0, 300), pick=st.integers(0, 9))
    def fold(self, which: int, fault: str, repeat: bool, size: int, pick: int) -> None:
        known = list(self.model.branches)
        target = known[pick] if pick < len(known) else None
        request = {"message": "m" * size, "project_path": PROJECT, "branch_id": target}
        outcome = self.call_tool("return_branch", request, which, fault, repeat)
        expected = target or (self.model.path[-1] if self.model.path else None)
        assert (outcome is not None) == (expected in self.model.path)
        if outcome and expected:
            self.model.fold(expected, -(-size // 4))

    @precondition(lambda self: self.model.branches)
    @rule(which=st.integers(0, 1), fault=faults, repeat=st.booleans(), pick=st.integers(0, 14), restore=st.booleans())
    def rollback(self, which: int, fault: str, repeat: bool, pick: int, restore: bool) -> None:
        known = list(self.model.branches)
        target = known[pick % len(known)]
        request = {"project_path": PROJECT, "branch_id": target, "restore_state": restore}
        outcome = self.call_tool("roll_back", request, which, fault, repeat)
        assert (outcome is not None) == (self.model.branches[target]["status"] != "discarded")
        if outcome:
            before = self.model.total
            self.model.rollback(target, restore=restore)
            assert outcome.answer["tokens_recovered"] == max(0, before - self.model.total)

    @rule()
    def restart(self) -> None:
        """A restart loses everything that was only in memory."""
        self.runner.run(self.store.close())
        self.open()

    @invariant()
    def both_daemons_agree_with_the_model(self) -> None:
        for service in self.services:
            caller, request = Caller("local"), {"project_path": PROJECT}
            status = self.runner.run(service.branch_status(caller, request)).answer
            assert status["branch_path"] == ["main", *self.model.path]
            assert status["token_breakdown"]["main_thread"] == self.model.main
            assert status["token_breakdown"]["total"] == self.model.total
            listed = self.runner.run(service.list_branches(caller, request)).answer["branches"]
            assert [(each["id"], each["status"], each["tokens"]) for each in listed] == [
                (branch_id, branch["status"], branch["tokens"]) for branch_id, branch in self.model.branches.items()
            ]

    @invariant()
    def the_log_is_complete_and_gives_the_state(self) -> None:
        if not self.services:
            return
        log = self.runner.run(self.store.load(KEY))
        events: Sequence[Event] = log.events if log else []
        assert [event.n for event in events] == list(range(1, len(events) + 1))
        state = replay(events)
        assert state.path == tuple(self.model.path)
        assert state.main.tokens == self.model.main

    def teardown(self) -> None:
        if self.services:
            self.runner.run(self.store.close())
        self.runner.close()
        shutil.rmtree(self.folder)


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=times(10, 1000),
    stateful_step_count=50,
    deadline=None,
    derandomize=times(1, 0) == 1,
    suppress_health_check=list(HealthCheck),
)
