"""The inbox keeps what it receives in order, writes it completely, and does not block anybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress

import pytest

from contextfold.errors import ScrubFailed, StoreInvalid, StoreUnavailable
from contextfold.fold.ports.store import SessionKey
from contextfold.fold.service import inbox
from contextfold.fold.service.inbox import (
    BATCH_BYTES,
    BATCH_ITEMS,
    ITEMS_MAX,
    OWNER_BYTES_MAX,
    OWNER_ITEMS_MAX,
    PAUSE_S,
    Batch,
    Inbox,
    InboxFull,
)
from tests.contract.sessions import key_of

ONE, TWO = key_of("p1"), key_of("p2")


class Written:
    """A writer that records what it was given and what was lost."""

    def __init__(self) -> None:
        self.batches: list[tuple[SessionKey, list[int]]] = []
        self.ids: list[tuple[str, bool]] = []
        self.lost: list[tuple[list[int], Exception | None]] = []
        self.fails: Callable[[Sequence[int]], Exception | None] = lambda _items: None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, batch: Batch[int]) -> None:
        await self.gate.wait()
        self.ids.append((batch.id, batch.is_retry))
        problem = self.fails(batch.items)
        if problem:
            raise problem
        self.batches.append((batch.key, list(batch.items)))

    def note(self, items: Sequence[int], problem: Exception | None) -> None:
        self.lost.append((list(items), problem))

    def of(self, key: SessionKey) -> list[int]:
        return [item for written, items in self.batches if written == key for item in items]


def run(act: Callable[[Written, Inbox[int]], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        written = Written()
        async with asyncio.timeout(60):
            await act(written, Inbox(written, lost=written.note))

    asyncio.run(whole())


def test_it_is_written_in_order_session_by_session() -> None:
    async def act(written: Written, box: Inbox[int]) -> None:
        for number in range(200):
            box.put(ONE if number % 2 else TWO, [number], [10])
        assert box.waiting == 200
        await asyncio.gather(box.settled(ONE), box.settled(TWO))
        assert written.of(ONE) == list(range(1, 200, 2))
        assert written.of(TWO) == list(range(0, 200, 2))
        assert box.waiting == 0

    run(act)


def test_many_are_written_together_but_not_too_many() -> None:
    async def act(written: Written, box: Inbox[int]) -> None:
        for number in range(3 * BATCH_ITEMS):
            box.put(ONE, [number], [1])
        await box.settled(ONE)
        assert [len(items) for _, items in written.batches] == [BATCH_ITEMS] * 3
        for number in range(4):
            box.put(TWO, [number], [BATCH_BYTES // 2])
        box.put(TWO, [4], [3 * BATCH_BYTES])
        await box.settled(TWO)
        assert [items for key, items in written.batches if key == TWO] == [[0, 1], [2, 3], [4]]

    run(act)


def test_whoever_waits_waits_only_for_what_came_before() -> None:
    async def act(written: Written, box: Inbox[int]) -> None:
        # The gate closes with this batch, so nothing is written after it.
        written.fails = lambda _items: written.gate.clear()
        for number in range(BATCH_ITEMS):
            box.put(ONE, [number], [1])
        waiting = asyncio.ensure_future(box.settled(ONE))
        await asyncio.sleep(0)
        for number in range(BATCH_ITEMS, 3 * BATCH_ITEMS):
            box.put(ONE, [number], [1])
        await waiting
        assert written.of(ONE) == list(range(BATCH_ITEMS))
        written.fails = lambda _items: None
        written.gate.set()
        await box.settled(ONE)
        assert written.of(ONE) == list(range(3 * BATCH_ITEMS))

    run(act)


def test_nobody_waits_where_nothing_waits() -> None:
    async def act(written: Written, box: Inbox[int]) -> None:
        written.gate.clear()
        box.put(TWO, [1], [1])
        await box.settled(ONE)
        assert written.batches == []

    run(act)


def test_a_store_that_is_unavailable_is_asked_again_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "RETRY_FIRST_S", 0.001)

    async def act(written: Written, box: Inbox[int]) -> None:
        tries = 0

        def fails(_items: Sequence[int]) -> Exception | None:
            nonlocal tries
            tries += 1
            return StoreUnavailable("away") if tries < 5 else None

        written.fails = fails
        for number in range(3):
            box.put(ONE, [number], [1])
        while box.waiting:
            with suppress(StoreUnavailable):
                await box.settled(ONE)
        assert written.of(ONE) == [0, 1, 2]
        assert written.lost == []
        assert [is_retry for _, is_retry in written.ids] == [False, True, True, True, True]
        assert len({batch_id for batch_id, _ in written.ids}) == 1

    run(act)


def test_a_caller_hears_at_once_that_the_store_is_unavailable_and_the_next_one_causes_an_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "RETRY_FIRST_S", 3600)

    async def act(written: Written, box: Inbox[int]) -> None:
        written.fails = lambda _items: StoreUnavailable("away")
        box.put(ONE, [1], [1])
        while not box.is_unavailable:
            await asyncio.sleep(0.001)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="away"):
                await box.settled(ONE, timeout_s=3600)
        written.fails = lambda _items: None
        await box.settled(ONE, timeout_s=3600)
        assert written.of(ONE) == [1]

    run(act)


def test_whoever_waits_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "SETTLED_TIMEOUT_S", 0.01)

    async def act(written: Written, box: Inbox[int]) -> None:
        written.gate.clear()
        box.put(ONE, [1], [1])
        with pytest.raises(StoreUnavailable):
            await box.settled(ONE)
        written.gate.set()
        await box.close(10)
        assert written.of(ONE) == [1]

    run(act)


def test_one_that_cannot_be_written_spoils_no_other() -> None:
    async def act(written: Written, box: Inbox[int]) -> None:
        written.fails = lambda items: ScrubFailed("no") if 3 in items else None
        for number in range(6):
            box.put(ONE, [number], [1])
        await box.settled(ONE)
        assert written.of(ONE) == [0, 1, 2, 4, 5]
        assert [(items, type(problem)) for items, problem in written.lost] == [([3], ScrubFailed)]

    run(act)


def test_there_is_a_limit_to_what_waits_and_to_each_owners_share_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "ALL_SETTLED_TIMEOUT_S", 60)

    async def act(written: Written, box: Inbox[int]) -> None:
        written.gate.clear()
        with pytest.raises(InboxFull):
            box.put(ONE, [0], [OWNER_BYTES_MAX + 1])
        for number in range(OWNER_ITEMS_MAX):
            box.put(ONE, [number], [1])
        with pytest.raises(InboxFull):
            box.put(TWO, [0], [1])
        others = [key_of("p", owner=f"owner{number}") for number in range(ITEMS_MAX // OWNER_ITEMS_MAX)]
        box.put(others[0], [7] * OWNER_ITEMS_MAX, [1] * OWNER_ITEMS_MAX)
        with pytest.raises(InboxFull):
            box.put(others[1], [0], [1])
        written.gate.set()
        await box.all_settled("local")
        box.put(TWO, [0], [OWNER_BYTES_MAX])
        await box.settled(TWO)
        assert written.of(ONE) == list(range(OWNER_ITEMS_MAX))

    run(act)


def test_several_are_taken_together_or_not_at_all() -> None:
    async def act(written: Written, box: Inbox[int]) -> None:
        with pytest.raises(InboxFull):
            box.put(ONE, [1, 2, 3], [1, 1, OWNER_BYTES_MAX])
        assert box.waiting == 0
        box.put(ONE, [], [])
        box.put(ONE, [1, 2], [1, 1])
        await box.settled(ONE)
        assert written.of(ONE) == [1, 2]

    run(act)


def test_one_session_that_cannot_be_written_holds_up_no_other_of_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "ALL_SETTLED_TIMEOUT_S", 2.0)

    async def act(written: Written, box: Inbox[int]) -> None:
        written.fails = lambda items: StoreUnavailable("away") if 1 in items else None
        box.put(ONE, [1], [1])
        box.put(TWO, [2], [1])
        await box.all_settled("local")
        assert written.of(TWO) == [2]

    run(act)


def test_a_log_that_cannot_be_read_loses_its_reports_and_no_others() -> None:
    async def act(written: Written, box: Inbox[int]) -> None:
        written.fails = lambda items: StoreInvalid("broken") if 1 in items else None
        box.put(ONE, [1], [1])
        box.put(TWO, [2], [1])
        await box.all_settled("local")
        assert written.of(TWO) == [2]
        assert [(items, type(problem)) for items, problem in written.lost] == [([1], StoreInvalid)]
        assert box.waiting == 0

    run(act)


def test_its_end_writes_all_and_takes_nothing_more() -> None:
    async def act(written: Written, box: Inbox[int]) -> None:
        for number in range(20 * BATCH_ITEMS):
            box.put(ONE if number % 3 else TWO, [number], [1])
        await box.close(PAUSE_S[0] * 10)
        assert sorted(written.of(ONE) + written.of(TWO)) == list(range(20 * BATCH_ITEMS))
        with pytest.raises(InboxFull):
            box.put(ONE, [1], [1])
        assert written.lost == []

    run(act)


def test_what_is_left_when_the_time_is_over_is_told() -> None:
    async def act(written: Written, box: Inbox[int]) -> None:
        written.gate.clear()
        for number in range(3):
            box.put(ONE, [number], [1])
        await box.close(0.01)
        assert written.lost == [([0, 1, 2], None)]

    run(act)


class Pauses:
    """A pause that lasts until it is ended by hand, or by the inbox itself."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.over = asyncio.Event()

    async def __call__(self, hurry: asyncio.Event, seconds: float) -> None:
        self.seconds.append(seconds)
        waits = [asyncio.ensure_future(event.wait()) for event in (hurry, self.over)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


class TestThePauseBeforeABatch:
    def run(self, act: Callable[[Written, Inbox[int], Pauses], Coroutine[None, None, None]]) -> None:
        async def whole() -> None:
            written, pauses = Written(), Pauses()
            async with asyncio.timeout(60):
                await act(written, Inbox(written, lost=written.note, pause=pauses), pauses)

        asyncio.run(whole())

    def test_is_skipped_while_whole_batches_wait(self) -> None:
        async def act(written: Written, box: Inbox[int], pauses: Pauses) -> None:
            for number in range(3 * BATCH_ITEMS + 1):
                box.put(ONE, [number], [1])
            while not pauses.seconds:
                await asyncio.sleep(0)
            assert [len(items) for _, items in written.batches] == [BATCH_ITEMS] * 3
            pauses.over.set()
            await box.settled(ONE)

        self.run(act)

    def test_ends_when_the_batch_becomes_full(self) -> None:
        async def act(written: Written, box: Inbox[int], pauses: Pauses) -> None:
            box.put(ONE, [0], [1])
            while not pauses.seconds:
                await asyncio.sleep(0)
            box.put(ONE, list(range(1, BATCH_ITEMS)), [1] * (BATCH_ITEMS - 1))
            while not written.batches:
                await asyncio.sleep(0)
            assert len(pauses.seconds) == 1

        self.run(act)

    def test_of_one_session_is_not_made_longer_by_another(self) -> None:
        async def act(written: Written, box: Inbox[int], pauses: Pauses) -> None:
            box.put(ONE, [0], [1])
            while not pauses.seconds:
                await asyncio.sleep(0)
            box.put(TWO, [1], [1])
            pauses.over.set()
            while not written.of(ONE):
                box.put(TWO, [2], [1])
                await asyncio.sleep(0)
            assert written.of(ONE) == [0]
            assert len([one for one in pauses.seconds if one]) <= 1 + len(written.batches) + 1

        self.run(act)

    def test_and_one_commit_are_all_that_a_killed_process_can_lose(self) -> None:
        assert PAUSE_S[1] <= 0.5
