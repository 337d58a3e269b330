"""The inbox writes all that it receives, in order, and blocks no caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from contextfold.errors import ScrubFailed, StoreInvalid, StoreUnavailable
from contextfold.fold.service import inbox
from contextfold.fold.service.inbox import (
    BATCH_BYTES,
    BATCH_ITEMS,
    ITEMS_MAX,
    OWNER_BYTES_MAX,
    OWNER_ITEMS_MAX,
    PAUSE_S,
    Inbox,
    InboxFull,
)
from contextfold.fold.store import SessionKey
from tests.contract.sessions import key_of

SESSION_1, SESSION_2 = key_of("p1"), key_of("p2")


class RecordingWriter:
    """A writer that records the batches that it was given and the items that were lost."""

    def __init__(self) -> None:
        self.batches: list[tuple[SessionKey, list[int]]] = []
        self.ids: list[str] = []
        self.lost: list[tuple[list[int], Exception | None]] = []
        self.failure_for: Callable[[Sequence[int]], Exception | None] = lambda _items: None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, key: SessionKey, batch_id: str, items: Sequence[int]) -> None:
        await self.gate.wait()
        self.ids.append(batch_id)
        error = self.failure_for(items)
        if error:
            raise error
        self.batches.append((key, list(items)))

    def items_of(self, key: SessionKey) -> list[int]:
        return [item for writer, items in self.batches if writer == key for item in items]


class WritingInbox(Inbox[int]):
    """An inbox that writes to a writer, and pauses as a test wants."""

    def __init__(self, writer: RecordingWriter, pause: ManualPause | None = None) -> None:
        super().__init__()
        self._writer, self._manual_pause = writer, pause

    async def write(self, key: SessionKey, batch_id: str, items: Sequence[int]) -> None:
        await self._writer(key, batch_id, items)

    def lose(self, _key: SessionKey, items: Sequence[int], problem: Exception | None) -> None:
        self._writer.lost.append((list(items), problem))

    async def pause(self, event: asyncio.Event, pause_s: float) -> None:
        await (self._manual_pause or super().pause)(event, pause_s)


@pytest.fixture
def writer() -> RecordingWriter:
    return RecordingWriter()


@pytest.fixture
def inbox_(writer: RecordingWriter) -> Inbox[int]:
    return WritingInbox(writer)


async def test_items_of_each_session_are_written_in_order(writer: RecordingWriter, inbox_: Inbox[int]) -> None:
    for number in range(200):
        inbox_.put(SESSION_1 if number % 2 else SESSION_2, [number], [10])
    assert inbox_.waiting == 200
    await asyncio.gather(inbox_.settle(SESSION_1), inbox_.settle(SESSION_2))
    assert writer.items_of(SESSION_1) == list(range(1, 200, 2))
    assert writer.items_of(SESSION_2) == list(range(0, 200, 2))
    assert inbox_.waiting == 0


async def test_items_are_written_in_batches_of_limited_size(writer: RecordingWriter, inbox_: Inbox[int]) -> None:
    for number in range(3 * BATCH_ITEMS):
        inbox_.put(SESSION_1, [number], [1])
    await inbox_.settle(SESSION_1)
    assert [len(items) for _, items in writer.batches] == [BATCH_ITEMS] * 3
    for number in range(4):
        inbox_.put(SESSION_2, [number], [BATCH_BYTES // 2])
    inbox_.put(SESSION_2, [4], [3 * BATCH_BYTES])
    await inbox_.settle(SESSION_2)
    assert [items for key, items in writer.batches if key == SESSION_2] == [[0, 1], [2, 3], [4]]


async def test_settling_waits_only_for_earlier_items(writer: RecordingWriter, inbox_: Inbox[int]) -> None:
    # The gate closes with this batch, so nothing is written after it.
    writer.failure_for = lambda _items: writer.gate.clear()
    for number in range(BATCH_ITEMS):
        inbox_.put(SESSION_1, [number], [1])
    waiting = asyncio.ensure_future(inbox_.settle(SESSION_1))
    await asyncio.sleep(0)
    for number in range(BATCH_ITEMS, 3 * BATCH_ITEMS):
        inbox_.put(SESSION_1, [number], [1])
    await waiting
    assert writer.items_of(SESSION_1) == list(range(BATCH_ITEMS))
    writer.failure_for = lambda _items: None
    writer.gate.set()
    await inbox_.settle(SESSION_1)
    assert writer.items_of(SESSION_1) == list(range(3 * BATCH_ITEMS))


async def test_settling_returns_at_once_for_a_session_without_items(
    writer: RecordingWriter, inbox_: Inbox[int]
) -> None:
    writer.gate.clear()
    inbox_.put(SESSION_2, [1], [1])
    await inbox_.settle(SESSION_1)
    assert writer.batches == []


async def test_a_batch_is_retried_until_the_store_is_available(
    writer: RecordingWriter, inbox_: Inbox[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "RETRY_FIRST_S", 0.001)
    tries = 0

    def failure_for(_items: Sequence[int]) -> Exception | None:
        nonlocal tries
        tries += 1
        return StoreUnavailable("away") if tries < 5 else None

    writer.failure_for = failure_for
    for number in range(3):
        inbox_.put(SESSION_1, [number], [1])
    while inbox_.waiting:
        with suppress(StoreUnavailable):
            await inbox_.settle(SESSION_1)
    assert writer.items_of(SESSION_1) == [0, 1, 2]
    assert writer.lost == []
    assert writer.ids == [writer.ids[0]] * 5


async def test_settling_fails_at_once_while_the_store_is_unavailable_and_starts_a_retry(
    writer: RecordingWriter, inbox_: Inbox[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "RETRY_FIRST_S", 3600)
    writer.failure_for = lambda _items: StoreUnavailable("away")
    inbox_.put(SESSION_1, [1], [1])
    while not inbox_.is_unavailable:
        await asyncio.sleep(0.001)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="away"):
            await inbox_.settle(SESSION_1, timeout_s=3600)
    writer.failure_for = lambda _items: None
    await inbox_.settle(SESSION_1, timeout_s=3600)
    assert writer.items_of(SESSION_1) == [1]


async def test_settling_raises_store_unavailable_after_its_timeout(
    writer: RecordingWriter, inbox_: Inbox[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "SETTLED_TIMEOUT_S", 0.01)
    writer.gate.clear()
    inbox_.put(SESSION_1, [1], [1])
    with pytest.raises(StoreUnavailable):
        await inbox_.settle(SESSION_1)
    writer.gate.set()
    await inbox_.close(10)
    assert writer.items_of(SESSION_1) == [1]


async def test_an_item_that_cannot_be_written_does_not_affect_others(
    writer: RecordingWriter, inbox_: Inbox[int]
) -> None:
    writer.failure_for = lambda items: ScrubFailed("no") if 3 in items else None
    for number in range(6):
        inbox_.put(SESSION_1, [number], [1])
    await inbox_.settle(SESSION_1)
    assert writer.items_of(SESSION_1) == [0, 1, 2, 4, 5]
    assert [(items, type(error)) for items, error in writer.lost] == [([3], ScrubFailed)]


async def test_waiting_items_are_limited_in_all_and_for_each_owner(
    writer: RecordingWriter, inbox_: Inbox[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "ALL_SETTLED_TIMEOUT_S", 60)
    writer.gate.clear()
    with pytest.raises(InboxFull):
        inbox_.put(SESSION_1, [0], [OWNER_BYTES_MAX + 1])
    for number in range(OWNER_ITEMS_MAX):
        inbox_.put(SESSION_1, [number], [1])
    with pytest.raises(InboxFull):
        inbox_.put(SESSION_2, [0], [1])
    others = [key_of("p", owner=f"owner{number}") for number in range(ITEMS_MAX // OWNER_ITEMS_MAX)]
    inbox_.put(others[0], [7] * OWNER_ITEMS_MAX, [1] * OWNER_ITEMS_MAX)
    with pytest.raises(InboxFull):
        inbox_.put(others[1], [0], [1])
    writer.gate.set()
    await inbox_.settle_all("local")
    inbox_.put(SESSION_2, [0], [OWNER_BYTES_MAX])
    await inbox_.settle(SESSION_2)
    assert writer.items_of(SESSION_1) == list(range(OWNER_ITEMS_MAX))


async def test_several_items_are_accepted_together_or_not_at_all(writer: RecordingWriter, inbox_: Inbox[int]) -> None:
    with pytest.raises(InboxFull):
        inbox_.put(SESSION_1, [1, 2, 3], [1, 1, OWNER_BYTES_MAX])
    assert inbox_.waiting == 0
    inbox_.put(SESSION_1, [], [])
    inbox_.put(SESSION_1, [1, 2], [1, 1])
    await inbox_.settle(SESSION_1)
    assert writer.items_of(SESSION_1) == [1, 2]


async def test_a_session_that_cannot_be_written_does_not_delay_others(
    writer: RecordingWriter, inbox_: Inbox[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "ALL_SETTLED_TIMEOUT_S", 2.0)
    writer.failure_for = lambda items: StoreUnavailable("away") if 1 in items else None
    inbox_.put(SESSION_1, [1], [1])
    inbox_.put(SESSION_2, [2], [1])
    await inbox_.settle_all("local")
    assert writer.items_of(SESSION_2) == [2]


async def test_a_session_with_an_unreadable_log_loses_only_its_own_items(
    writer: RecordingWriter, inbox_: Inbox[int]
) -> None:
    writer.failure_for = lambda items: StoreInvalid("broken") if 1 in items else None
    inbox_.put(SESSION_1, [1], [1])
    inbox_.put(SESSION_2, [2], [1])
    await inbox_.settle_all("local")
    assert writer.items_of(SESSION_2) == [2]
    assert [(items, type(error)) for items, error in writer.lost] == [([1], StoreInvalid)]
    assert inbox_.waiting == 0


async def test_closing_writes_all_items_and_refuses_new_ones(writer: RecordingWriter, inbox_: Inbox[int]) -> None:
    for number in range(20 * BATCH_ITEMS):
        inbox_.put(SESSION_1 if number % 3 else SESSION_2, [number], [1])
    await inbox_.close(PAUSE_S[0] * 10)
    assert sorted(writer.items_of(SESSION_1) + writer.items_of(SESSION_2)) == list(range(20 * BATCH_ITEMS))
    with pytest.raises(InboxFull):
        inbox_.put(SESSION_1, [1], [1])
    assert writer.lost == []


async def test_items_that_are_left_after_the_closing_timeout_are_reported_as_lost(
    writer: RecordingWriter, inbox_: Inbox[int]
) -> None:
    writer.gate.clear()
    for number in range(3):
        inbox_.put(SESSION_1, [number], [1])
    await inbox_.close(0.01)
    assert writer.lost == [([0, 1, 2], None)]


class ManualPause:
    """A pause that lasts until the test or the inbox ends it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.is_over = asyncio.Event()

    async def __call__(self, hurry: asyncio.Event, seconds: float) -> None:
        self.seconds.append(seconds)
        waiting = [asyncio.ensure_future(event.wait()) for event in (hurry, self.is_over)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for wait in waiting:
            wait.cancel()


class TestPauseBeforeABatch:
    @pytest.fixture
    def pause(self) -> ManualPause:
        return ManualPause()

    @pytest.fixture
    def inbox_(self, writer: RecordingWriter, pause: ManualPause) -> Inbox[int]:
        return WritingInbox(writer, pause)

    async def test_the_pause_is_skipped_while_full_batches_wait(
        self, writer: RecordingWriter, inbox_: Inbox[int], pause: ManualPause
    ) -> None:
        for number in range(3 * BATCH_ITEMS + 1):
            inbox_.put(SESSION_1, [number], [1])
        while not pause.seconds:
            await asyncio.sleep(0)
        assert [len(items) for _, items in writer.batches] == [BATCH_ITEMS] * 3
        pause.is_over.set()
        await inbox_.settle(SESSION_1)

    async def test_the_pause_ends_when_the_batch_becomes_full(
        self, writer: RecordingWriter, inbox_: Inbox[int], pause: ManualPause
    ) -> None:
        inbox_.put(SESSION_1, [0], [1])
        while not pause.seconds:
            await asyncio.sleep(0)
        inbox_.put(SESSION_1, list(range(1, BATCH_ITEMS)), [1] * (BATCH_ITEMS - 1))
        while not writer.batches:
            await asyncio.sleep(0)
        assert len(pause.seconds) == 1

    async def test_the_pause_of_one_session_is_not_extended_by_another(
        self, writer: RecordingWriter, inbox_: Inbox[int], pause: ManualPause
    ) -> None:
        inbox_.put(SESSION_1, [0], [1])
        while not pause.seconds:
            await asyncio.sleep(0)
        inbox_.put(SESSION_2, [1], [1])
        pause.is_over.set()
        while not writer.items_of(SESSION_1):
            inbox_.put(SESSION_2, [2], [1])
            await asyncio.sleep(0)
        assert writer.items_of(SESSION_1) == [0]
        assert len([seconds for seconds in pause.seconds if seconds]) <= 1 + len(writer.batches) + 1

    def test_the_longest_pause_is_half_a_second(self) -> None:
        assert PAUSE_S[1] <= 0.5
