"""What is remembered of proxied conversations in a store: cached where it is safe, agreed on by all daemons."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from contextfold.errors import StoreUnavailable
from contextfold.fold.messages import CallOutcome, LeftOutResult
from contextfold.fold.ports.left_out_results import NEW_CONVERSATION, ConversationRecord, StoredResult
from contextfold.fold.ports.store import ProxiedConversation
from contextfold.fold.service.stored_results import CACHED_MAX, FRESH_S, LeftOutResultsInStore
from contextfold.stores.memory import MemoryStore

BEGIN = 1_700_000_000.25
OPENED = CallOutcome("branch", "br_1", "sess_1")
ROLLED_BACK = CallOutcome("rollback", discarded=("br_2", "br_3"))


class CountingStore(MemoryStore):
    """Counts what is read and written, and can be slow or unavailable."""

    reads = 0
    writes = 0
    is_available = True

    def __init__(self) -> None:
        super().__init__()
        self.is_quick = asyncio.Event()
        self.is_quick.set()

    async def conversation(self, owner: str, conversation: str) -> ProxiedConversation | None:
        self.reads += 1
        if not self.is_available:
            raise StoreUnavailable("away")
        return await super().conversation(owner, conversation)

    async def note_conversation(self, owner: str, conversation: str, noted: ProxiedConversation) -> None:
        await self.is_quick.wait()
        if not self.is_available:
            raise StoreUnavailable("away")
        self.writes += 1
        await super().note_conversation(owner, conversation, noted)


class Machine:
    """A store, a clock, and as many daemons as a test wants."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self.now = BEGIN

    def daemon(self) -> LeftOutResultsInStore:
        return LeftOutResultsInStore(self.store, clock=lambda: self.now)


def result(number: int, *, decided_at: int = 9) -> StoredResult:
    made = LeftOutResult(f"res_{number}", f"call_{number}", "hash", f"[stub {number}]", 812, decided_at)
    return StoredResult(made, f"text {number}")


def run(scenario: Callable[[Machine], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Machine())

    asyncio.run(main())


def test_everything_comes_back_after_a_restart() -> None:
    async def scenario(machine: Machine) -> None:
        first = machine.daemon()
        assert await first.remembered("ann", "c") == NEW_CONVERSATION
        await first.keep("ann", "c", [result(1), result(2)])
        outcomes = {"call_8": OPENED, "call_9": ROLLED_BACK}
        await first.note_request("ann", "c", BEGIN, outcomes)
        record = await machine.daemon().remembered("ann", "c")
        assert record == ConversationRecord((result(1).result, result(2).result), outcomes, BEGIN + 0.75)
        assert await machine.daemon().text("ann", "res_1") == "text 1"
        assert await machine.daemon().remembered("bob", "c") == NEW_CONVERSATION
        assert await machine.daemon().text("bob", "res_1") is None

    run(scenario)


def test_an_id_that_stood_for_two_calls_says_nothing_in_any_daemon() -> None:
    async def scenario(machine: Machine) -> None:
        daemon = machine.daemon()
        await daemon.note_request("ann", "c", BEGIN, {"call": OPENED})
        await daemon.note_request("ann", "c", BEGIN, {"call": ROLLED_BACK})
        for each in (daemon, machine.daemon()):
            assert (await each.remembered("ann", "c")).outcomes == {"call": CallOutcome("")}

    run(scenario)


def test_the_store_is_not_read_shortly_after_a_request_that_was_noted_here() -> None:
    async def scenario(machine: Machine) -> None:
        daemon = machine.daemon()
        await daemon.note_request("ann", "c", machine.now, {})
        await daemon.remembered("ann", "c")
        assert machine.store.reads == 0
        machine.now += FRESH_S
        await daemon.remembered("ann", "c")
        assert machine.store.reads == 1

    run(scenario)


def test_the_store_is_not_read_while_a_request_is_being_noted() -> None:
    async def scenario(machine: Machine) -> None:
        daemon = machine.daemon()
        await daemon.note_request("ann", "c", BEGIN, {})
        machine.store.is_quick.clear()
        noting = asyncio.ensure_future(daemon.note_request("ann", "c", BEGIN + 5, {"call_8": OPENED}))
        await asyncio.sleep(0)
        record = await daemon.remembered("ann", "c")
        assert (record.last_request_at, record.outcomes, machine.store.reads) == (BEGIN + 5, {"call_8": OPENED}, 0)
        machine.store.is_available = False
        machine.store.is_quick.set()
        with pytest.raises(StoreUnavailable):
            await noting
        await daemon.remembered("ann", "c")
        assert machine.store.reads == 1

    run(scenario)


def test_a_request_is_noted_again_only_if_it_adds_something() -> None:
    async def scenario(machine: Machine) -> None:
        daemon = machine.daemon()
        for at, outcomes, life_s, writes in (
            (BEGIN, {}, 0.0, 1),
            (BEGIN + 0.5, {}, 0.0, 1),
            (BEGIN + 0.6, {"call_8": OPENED}, 0.0, 2),
            (BEGIN + 0.7, {"call_8": OPENED}, 0.0, 2),
            (BEGIN + 0.7, {"call_8": OPENED}, 400.0, 3),
            (BEGIN + 1.0, {"call_8": OPENED}, 0.0, 4),
        ):
            await daemon.note_request("ann", "c", at, outcomes, cache_life_s=life_s)
            assert machine.store.writes == writes
        record = await machine.daemon().remembered("ann", "c")
        assert record == ConversationRecord((), {"call_8": OPENED}, BEGIN + 1.75, 400.0)

    run(scenario)


def test_what_another_daemon_decided_after_a_pause_is_sent_here_too() -> None:
    async def scenario(machine: Machine) -> None:
        one, other = machine.daemon(), machine.daemon()
        await one.note_request("ann", "c", machine.now, {})
        machine.now += 301
        await other.keep("ann", "c", [result(1)])
        assert (await one.remembered("ann", "c")).results == (result(1).result,)

    run(scenario)


def test_of_two_decisions_about_one_result_both_daemons_use_the_first() -> None:
    async def scenario(machine: Machine) -> None:
        one, other = machine.daemon(), machine.daemon()
        assert await one.keep("ann", "c", [result(1, decided_at=9)]) == (result(1, decided_at=9).result,)
        assert await other.keep("ann", "c", [result(1, decided_at=11)]) == (result(1, decided_at=9).result,)

    run(scenario)


def test_a_request_that_could_not_be_noted_still_counts_in_this_daemon() -> None:
    async def scenario(machine: Machine) -> None:
        daemon = machine.daemon()
        await daemon.note_request("ann", "c", machine.now, {})
        machine.now += 200
        machine.store.is_available = False
        with pytest.raises(StoreUnavailable):
            await daemon.note_request("ann", "c", machine.now, {"call": OPENED})
        expected = ConversationRecord((), {"call": OPENED}, machine.now)
        assert await daemon.remembered("ann", "c") == expected
        machine.store.is_available = True
        assert await daemon.remembered("ann", "c") == expected

    run(scenario)


def test_a_conversation_that_is_not_known_here_fails_while_the_store_is_unavailable() -> None:
    async def scenario(machine: Machine) -> None:
        machine.store.is_available = False
        with pytest.raises(StoreUnavailable):
            await machine.daemon().remembered("ann", "c")

    run(scenario)


def test_a_conversation_that_left_the_cache_is_read_from_the_store() -> None:
    async def scenario(machine: Machine) -> None:
        daemon = machine.daemon()
        for number in range(CACHED_MAX + 1):
            await daemon.note_request("ann", f"c{number}", machine.now, {"call": OPENED})
        assert (await daemon.remembered("ann", "c0")).outcomes == {"call": OPENED}
        assert machine.store.reads == 1

    run(scenario)
