"""Records of proxied conversations in a store: cached while that is safe, and the same for all daemons."""

from __future__ import annotations

import asyncio

import pytest

from contextfold.errors import StoreUnavailable
from contextfold.fold.messages import CallOutcome
from contextfold.fold.service.conversation_records import (
    CACHED_MAX,
    FRESH_S,
    NEW_CONVERSATION,
    ConversationRecord,
    ConversationRecords,
)
from contextfold.fold.store import ArchivedResult, LeftOutDecision, ProxiedConversation
from tests.support.temporary_store import TemporaryStore

BEGIN = 1_700_000_000.25
OPENED = CallOutcome("branch", "br_1", "sess_1")
ROLLED_BACK = CallOutcome("rollback", discarded=("br_2", "br_3"))


class CountingStore(TemporaryStore):
    """Counts what is read and written, and can be slow or unavailable."""

    reads = 0
    writes = 0
    is_available = True

    def __init__(self) -> None:
        super().__init__()
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def conversation(self, owner: str, conversation: str) -> ProxiedConversation | None:
        self.reads += 1
        if not self.is_available:
            raise StoreUnavailable("away")
        return await super().conversation(owner, conversation)

    async def note_conversation(self, owner: str, conversation: str, record: ProxiedConversation) -> None:
        await self.may_write.wait()
        if not self.is_available:
            raise StoreUnavailable("away")
        self.writes += 1
        await super().note_conversation(owner, conversation, record)


class SharedStore:
    """A store and a clock, shared by as many daemons as a test needs."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self.now = BEGIN

    def daemon(self) -> ConversationRecords:
        return ConversationRecords(self.store, clock=lambda: self.now)


def result(number: int, *, messages: int = 9) -> ArchivedResult:
    """A result that is left out, as it is stored at the beginning."""
    ids = (f"call_{number}", "hash", f"res_{number}")
    decision = LeftOutDecision(*ids, f"[stub {number}]", "2023-11-14T22:13:21Z", 812, messages)
    return ArchivedResult(decision, f"text {number}")


@pytest.fixture
def shared() -> SharedStore:
    return SharedStore()


async def test_a_conversation_is_remembered_after_a_restart(shared: SharedStore) -> None:
    first = shared.daemon()
    assert await first.load("ann", "c") == NEW_CONVERSATION
    await first.keep("ann", "c", [result(1), result(2)])
    outcomes = {"call_8": OPENED, "call_9": ROLLED_BACK}
    await first.note_request("ann", "c", BEGIN, outcomes)
    record = await shared.daemon().load("ann", "c")
    assert record == ConversationRecord((result(1).decision, result(2).decision), outcomes, BEGIN + 0.75)
    assert await shared.store.left_out_text("ann", "res_1") == "text 1"
    assert await shared.daemon().load("bob", "c") == NEW_CONVERSATION
    assert await shared.store.left_out_text("bob", "res_1") is None


async def test_a_call_id_with_two_outcomes_is_ambiguous_in_every_daemon(shared: SharedStore) -> None:
    daemon = shared.daemon()
    await daemon.note_request("ann", "c", BEGIN, {"call": OPENED})
    await daemon.note_request("ann", "c", BEGIN, {"call": ROLLED_BACK})
    for each in (daemon, shared.daemon()):
        assert (await each.load("ann", "c")).outcomes == {"call": CallOutcome("")}


async def test_the_store_is_not_read_shortly_after_a_request_was_recorded_here(shared: SharedStore) -> None:
    daemon = shared.daemon()
    for now, reads in ((0.0, 1), (1.0, 1), (FRESH_S, 2)):
        shared.now += now
        await daemon.load("ann", "c")
        assert shared.store.reads == reads
        if not now:
            await daemon.note_request("ann", "c", shared.now, {})


async def test_a_request_of_a_conversation_that_was_not_read_does_not_hide_what_is_stored(shared: SharedStore) -> None:
    await shared.daemon().keep("ann", "c", [result(1)])
    daemon = shared.daemon()
    await daemon.note_request("ann", "c", shared.now, {})
    shared.store.is_available = False
    with pytest.raises(StoreUnavailable):
        await daemon.load("ann", "c")
    shared.store.is_available = True
    assert (await daemon.load("ann", "c")).results == (result(1).decision,)


async def test_the_store_is_not_read_while_a_request_is_being_recorded(shared: SharedStore) -> None:
    daemon = shared.daemon()
    await daemon.load("ann", "c")
    await daemon.note_request("ann", "c", BEGIN, {})
    shared.store.may_write.clear()
    writing = asyncio.ensure_future(daemon.note_request("ann", "c", BEGIN + 5, {"call_8": OPENED}))
    await asyncio.sleep(0)
    record = await daemon.load("ann", "c")
    assert (record.last_request_at, record.outcomes, shared.store.reads) == (BEGIN + 5, {"call_8": OPENED}, 1)
    shared.store.is_available = False
    shared.store.may_write.set()
    with pytest.raises(StoreUnavailable):
        await writing
    await daemon.load("ann", "c")
    assert shared.store.reads == 2


async def test_a_request_is_written_only_if_it_adds_something(shared: SharedStore) -> None:
    daemon = shared.daemon()
    for at, outcomes, life_s, writes in (
        (BEGIN, {}, 0.0, 1),
        (BEGIN + 0.5, {}, 0.0, 1),
        (BEGIN + 0.6, {"call_8": OPENED}, 0.0, 2),
        (BEGIN + 0.7, {"call_8": OPENED}, 0.0, 2),
        (BEGIN + 0.7, {"call_8": OPENED}, 400.0, 3),
        (BEGIN + 1.0, {"call_8": OPENED}, 0.0, 4),
    ):
        await daemon.note_request("ann", "c", at, outcomes, cache_life_s=life_s)
        assert shared.store.writes == writes
    record = await shared.daemon().load("ann", "c")
    assert record == ConversationRecord((), {"call_8": OPENED}, BEGIN + 1.75, 400.0)


async def test_results_that_another_daemon_left_out_after_a_pause_are_left_out_here_too(shared: SharedStore) -> None:
    first, second = shared.daemon(), shared.daemon()
    await first.note_request("ann", "c", shared.now, {})
    shared.now += 301
    kept = await second.keep("ann", "c", [result(1)])
    assert (await first.load("ann", "c")).results == kept
    assert [each.result_id for each in kept] == ["res_1"]


async def test_both_daemons_use_the_first_of_two_decisions_about_one_result(shared: SharedStore) -> None:
    first, second = shared.daemon(), shared.daemon()
    assert await first.keep("ann", "c", [result(1, messages=9)]) == (result(1, messages=9).decision,)
    assert await second.keep("ann", "c", [result(1, messages=11)]) == (result(1, messages=9).decision,)


async def test_a_request_that_could_not_be_written_still_counts_in_this_daemon(shared: SharedStore) -> None:
    daemon = shared.daemon()
    await daemon.load("ann", "c")
    await daemon.note_request("ann", "c", shared.now, {})
    shared.now += 200
    shared.store.is_available = False
    with pytest.raises(StoreUnavailable):
        await daemon.note_request("ann", "c", shared.now, {"call": OPENED})
    expected = ConversationRecord((), {"call": OPENED}, shared.now)
    assert await daemon.load("ann", "c") == expected
    shared.store.is_available = True
    assert await daemon.load("ann", "c") == expected


async def test_an_unknown_conversation_fails_while_the_store_is_unavailable(shared: SharedStore) -> None:
    shared.store.is_available = False
    with pytest.raises(StoreUnavailable):
        await shared.daemon().load("ann", "c")


async def test_a_conversation_evicted_from_the_cache_is_read_from_the_store(shared: SharedStore) -> None:
    daemon = shared.daemon()
    await daemon.load("ann", "c0")
    for number in range(CACHED_MAX + 1):
        await daemon.note_request("ann", f"c{number}", shared.now, {"call": OPENED})
    assert (await daemon.load("ann", "c0")).outcomes == {"call": OPENED}
    assert shared.store.reads == 2
