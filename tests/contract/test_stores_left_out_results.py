"""Proxied conversations on every store: left-out results, the last request, outcomes of our calls, retention."""

from __future__ import annotations

import asyncio

from contextfold.fold.messages.by_hand import TEXT_MAX_CHARS
from contextfold.fold.store import (
    AMBIGUOUS_OUTCOME,
    OUTCOMES_MAX,
    ArchivedResult,
    LeftOutDecision,
    ProxiedConversation,
    Store,
)
from contextfold.serve.proxy.folding import SUMMARY_MAX_BYTES
from tests.contract.sessions import NOON

LATER = "2026-02-01T12:00:00Z"
LONG = "x\n\"é😀'" * 200_000


def result(call_id: str, text: str = "text", *, number: int = 1, at: str = NOON, stub: str = "") -> ArchivedResult:
    decision = LeftOutDecision(
        call_id, f"hash of {text[:20]}", f"res_{number}", stub or f"[left out: {call_id} é]", at, 8_213, 12
    )
    return ArchivedResult(decision, text)


async def test_decisions_of_a_conversation_are_read_in_order_and_texts_by_their_id(store: Store) -> None:
    results = [result("call.b", "two", number=2), result("call a>*", "one"), result("call a>*", "other", number=3)]
    await store.keep_left_out("local", "conversation 1", results)
    await store.keep_left_out("local", "other", [result("call.b", "elsewhere", number=4)])
    expected = [results[1].decision, results[2].decision, results[0].decision]
    assert list(await store.left_out("local", "conversation 1")) == expected
    assert [await store.left_out_text("local", f"res_{number}") for number in (1, 2, 3, 4)] == [
        *("one", "two", "other", "elsewhere")
    ]


async def test_the_longest_fold_by_hand_is_stored(store: Store) -> None:
    fold = result("call_1", LONG[:TEXT_MAX_CHARS], stub="é" * (SUMMARY_MAX_BYTES // 2))
    await store.keep_left_out("local", "c", [fold])
    assert list(await store.left_out("local", "c")) == [fold.decision]
    assert await store.left_out_text("local", "res_1") == fold.text


async def test_a_conversation_without_left_out_results_is_empty(store: Store) -> None:
    assert list(await store.left_out("local", "none")) == []
    assert await store.left_out_text("local", "res_none") is None
    await store.keep_left_out("local", "none", [])
    assert list(await store.left_out("local", "none")) == []


async def test_the_first_decision_about_a_call_and_a_text_stays(store: Store) -> None:
    first = result("call_1", stub="[first]")
    second = first._replace(decision=first.decision._replace(result_id="res_2", stub="[second]"))
    await store.keep_left_out("local", "c", [first])
    await store.keep_left_out("local", "c", [second, first])
    assert list(await store.left_out("local", "c")) == [first.decision]
    assert await store.left_out_text("local", "res_1") == "text"


async def test_concurrent_decisions_about_one_call_agree(store: Store) -> None:
    decisions = [
        result("call_1").decision._replace(result_id=f"res_{number}", stub=f"[{number}]") for number in range(8)
    ]
    results = [[ArchivedResult(decision, f"text {decision.result_id}")] for decision in decisions]
    await asyncio.gather(*(store.keep_left_out("local", "c", items) for items in results))
    (first,) = await store.left_out("local", "c")
    assert first in decisions
    assert await store.left_out_text("local", first.result_id) == f"text {first.result_id}"


async def test_owners_do_not_see_each_others_results(store: Store) -> None:
    await store.keep_left_out("ann", "c", [result("call_1", "of ann")])
    await store.keep_left_out("bob", "c", [result("call_1", "of bob", number=2)])
    assert [result_.result_id for result_ in await store.left_out("ann", "c")] == ["res_1"]
    assert await store.left_out_text("ann", "res_2") is None
    assert await store.left_out_text("bob", "res_2") == "of bob"


async def test_a_left_out_text_may_have_megabytes(store: Store) -> None:
    await store.keep_left_out("local", "c", [result("call_1", LONG)])
    assert await store.left_out_text("local", "res_1") == LONG


async def test_a_conversation_expires_with_the_archive_as_a_whole(store: Store) -> None:
    await store.keep_left_out("local", "old", [result("call_1", LONG), result("call_2", number=2)])
    await store.keep_left_out("local", "mixed", [result("call_1", number=3), result("call_2", number=4, at=LATER)])
    await store.retain("2026-01-15T00:00:00Z", "2027-01-01T00:00:00Z")
    assert list(await store.left_out("local", "old")) == []
    assert await store.left_out_text("local", "res_1") is None
    assert len(await store.left_out("local", "mixed")) == 2
    assert await store.left_out_text("local", "res_3") == "text"


# ---- the last request and the outcomes of our calls


async def test_a_conversation_without_recorded_requests_is_not_found(store: Store) -> None:
    await store.keep_left_out("local", "c", [result("call_1")])
    assert await store.conversation("local", "c") is None


async def test_the_latest_recorded_request_of_a_conversation_is_its_last_one(store: Store) -> None:
    await store.note_conversation("local", "c", ProxiedConversation(LATER))
    await store.note_conversation("local", "c", ProxiedConversation(NOON, cache_life_s=700))
    await store.note_conversation("local", "c", ProxiedConversation(NOON, cache_life_s=400))
    assert await store.conversation("local", "c") == ProxiedConversation(LATER, cache_life_s=700)


async def test_outcomes_are_merged_and_an_id_with_two_outcomes_stays_ambiguous(store: Store) -> None:
    await store.note_conversation("local", "c", ProxiedConversation(NOON, {"b é": "one", "a.*>": "two"}))
    await store.note_conversation("local", "c", ProxiedConversation(NOON, {"b é": "other", "c": "three"}))
    await store.note_conversation("local", "c", ProxiedConversation(NOON, {"b é": "one"}))
    conversation = await store.conversation("local", "c")
    assert conversation is not None
    assert list(conversation.outcomes.items()) == [("b é", AMBIGUOUS_OUTCOME), ("a.*>", "two"), ("c", "three")]


async def test_the_oldest_of_too_many_outcomes_are_dropped(store: Store) -> None:
    outcomes = {f"call_{number}": "done" for number in range(OUTCOMES_MAX)}
    await store.note_conversation("local", "c", ProxiedConversation(NOON, outcomes))
    await store.note_conversation("local", "c", ProxiedConversation(NOON, {"last": "done"}))
    conversation = await store.conversation("local", "c")
    assert conversation is not None
    assert list(conversation.outcomes) == [*list(outcomes)[1:], "last"]


async def test_concurrent_records_of_a_conversation_are_all_merged(store: Store) -> None:
    times = [f"2026-01-01T12:00:0{number}Z" for number in range(8)]
    conversation = [ProxiedConversation(at, {f"call at {at}": "done"}) for at in times]
    await asyncio.gather(*(store.note_conversation("local", "c", result_) for result_ in conversation))
    merged = await store.conversation("local", "c")
    assert merged is not None
    assert merged.last_request_at == times[-1]
    assert set(merged.outcomes) == {f"call at {at}" for at in times}


async def test_owners_do_not_see_each_others_conversations(store: Store) -> None:
    await store.note_conversation("ann", "c", ProxiedConversation(NOON, {"call": "of ann"}))
    assert await store.conversation("bob", "c") is None


async def test_a_conversation_without_recent_requests_expires(store: Store) -> None:
    await store.note_conversation("local", "old", ProxiedConversation(NOON, {"call": "done"}))
    await store.keep_left_out("local", "old", [result("call_1")])
    await store.note_conversation("local", "in use", ProxiedConversation(LATER))
    await store.keep_left_out("local", "in use", [result("call_1", number=2)])
    await store.note_conversation("local", "decided", ProxiedConversation(NOON))
    await store.keep_left_out("local", "decided", [result("call_1", number=3, at=LATER)])
    await store.retain("2026-01-15T00:00:00Z", "2027-01-01T00:00:00Z")
    assert [await store.conversation("local", "old"), *await store.left_out("local", "old")] == [None]
    for conversation in ("in use", "decided"):
        assert await store.conversation("local", conversation) is not None
        assert len(await store.left_out("local", conversation)) == 1
