"""The laws of what is around the list, for each of the four APIs: its bytes, receipts, what is remembered, stubs.

Like `test_laws`: each law is a function over a way to project, and a planted breach of it must be noticed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from contextfold.fold.messages import (
    BodyProjection,
    ColdResult,
    ColdSettings,
    Projection,
    Remembered,
    by_call,
    merged_outcomes,
    project,
    project_body,
)
from contextfold.fold.messages.remembered import NOTHING_REMEMBERED
from tests.fold.messages import hostile
from tests.fold.messages.elements import cut
from tests.fold.messages.expected import expected, sent_messages
from tests.fold.messages.histories import LIST, Format, History, history
from tests.fold.messages.test_laws import (
    BREACH_COUNT,
    COUNT,
    QUOTES,
    RULES,
    SEED,
    check_figures,
    counts_of,
    every_format,
    histories,
    result_texts,
    texts_of_results,
    user_texts,
)
from tests.support.clauses import covers
from tests.support.machine import times

pytestmark = covers("proxy.md#laws", "proxy.md#cold-results")

HOSTILE_COUNT = times(40, 20_000)
STUBS = ColdSettings(min_tokens=1, spared_turns=1)
CLEARED = "[cleared]"


class Ways:
    """The ways into the projection, as they are. A breach changes one of them."""

    def listed(self, told: History, messages: Sequence[Any], remembered: Remembered = NOTHING_REMEMBERED) -> Projection:
        return project(messages, told.format, binds_thinking=told.binds_thinking, remembered=remembered)

    def body(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> BodyProjection:
        return project_body(body, format, remembered=remembered)

    def sent(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> bytes:
        return self.body(body, format, remembered).body

    def cold(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> list[ColdResult]:
        return self.body(body, format, remembered).cold_results(salt="s", settings=STUBS)


AS_IT_IS = Ways()


# ---- the laws


def law_bytes(told: History, ways: Ways) -> int:
    """The original ones but for what changes."""
    body, format = told.body(), told.format
    sent = ways.sent(body, format)
    before, after = cut(body, LIST[format]), cut(sent, LIST[format])
    assert before
    assert after, str(told)
    if sent == body:
        return 0
    assert (after.head, after.tail) == (before.head, before.tail), str(told)
    left = sent_messages(told)
    assert json.loads(sent) == json.loads(body) | {LIST[format]: left}, str(told)
    assert len(after.texts) == len(left)
    whole = {id(message): text for message, text in zip(told.messages, before.texts, strict=True)}
    for text, message in zip(after.texts, left, strict=True):
        assert whole.get(id(message), text) == text, f"{told}: a message that should be as it came"
    first = ways.body(body, format).receipt.first_changed
    assert first is not None
    start = before.without(frozenset(range(first, len(before.texts))))
    assert sent.startswith(start[: len(start) - len(before.tail)]), f"{told}: the bytes before the change"
    return 1


def law_never_silent(told: History, ways: Ways) -> int:
    spoken = 0
    for count in counts_of(told):
        seen = expected(told, count)
        receipt = ways.listed(told, told.messages[:count]).receipt
        if seen.unfolded or seen.open:
            assert receipt.reason, f"{told} at {count}: no reason"
            spoken += 1
        reasons = {one.branch_id: one.reason for one in reversed(receipt.skipped)}
        for one in seen.unfolded:
            assert one.branch_id in reasons, f"{told} at {count}: {one.branch_id} has no reason"
            assert (reasons[one.branch_id] == "bound_thinking") == (one.verdict == "wait"), f"{told} at {count}"
    return spoken


def law_remembered(told: History, ways: Ways) -> int:
    """A host that masks results undoes no fold: with what was remembered, the same is sent but for the masks."""
    ids = [call.id for step in told.steps for call in step.calls]
    reuses_ids = told.format == "openai-chat" and "call_0" in str(told.messages)
    if reuses_ids or len(set(ids)) != len(ids):
        return 0
    whole = ways.listed(told, told.messages)
    remembered = Remembered(merged_outcomes({}, whole.outcomes))
    masks = [masked(message, told.format, calls) for message, calls in zip(told.messages, told.answers, strict=True)]
    left = ways.listed(told, masks, remembered)
    assert [fold.first for fold in left.receipt.folds] == [fold.first for fold in whole.receipt.folds], str(told)
    assert len(left.messages) == len(whole.messages), str(told)
    return len(left.receipt.folds)


def masked(message: dict[str, Any], format: Format, answers: Sequence[tuple[int, Any]]) -> dict[str, Any]:
    if not answers or any(call.failed for _, call in answers) or any(map(QUOTES.search, result_texts(message))):
        return message
    if format == "anthropic":
        blocks = [{**one, "content": CLEARED} if one["type"] == "tool_result" else one for one in message["content"]]
        return {**message, "content": blocks}
    if format == "gemini":
        parts = [
            {"functionResponse": {**one["functionResponse"], "response": {"output": CLEARED}}}
            if "functionResponse" in one
            else one
            for one in message["parts"]
        ]
        return {**message, "parts": parts}
    return {**message, "content" if format == "openai-chat" else "output": CLEARED}


def law_stubs(told: History, ways: Ways) -> int:
    """Results that were left out once stay out, byte for byte, and their texts can be had again."""
    format, every = told.format, counts_of(told)
    remembered, made, before = NOTHING_REMEMBERED, list[ColdResult](), b""
    pause = every[len(every) // 2]
    counts = [*every[len(every) // 2 :][:3], every[-1]]
    for count in counts:
        body = told.body(count)
        if count in (pause, counts[-1]):
            new = ways.cold(body, format, remembered)
            _check_cold(told, count, new)
            made += new
            remembered = Remembered(results=by_call(tuple(each.result for each in made)))
        plain, sent = project_body(body, format), ways.sent(body, format, remembered)
        one, other = (json.loads(each)[LIST[format]] for each in (plain.body, sent))
        if RULES[format](json.loads(plain.body)) == []:
            assert RULES[format](json.loads(sent)) == [], f"{told} at {count}"
        assert list(user_texts(format, one)) == list(user_texts(format, other)), f"{told} at {count}"
        assert ways.sent(sent, format, remembered) == sent, f"{told} at {count}: twice is not once"
        assert ways.cold(body, format, remembered) == [] or count not in (pause, counts[-1]), f"{told} at {count}"
        listed = ways.listed(told, told.messages[:count], remembered).messages
        assert listed == other, f"{told} at {count}: library and proxy"
        folds = len(plain.receipt.folds) + len(plain.receipt.skipped)
        if before and count not in (pause, counts[-1]) and not folds:
            start = cut(before, LIST[format])
            assert start
            assert sent.startswith(start.without(frozenset())[: -len(start.tail)]), f"{told} at {count}: bytes changed"
        before = sent
    stubs = {each.result.stub for each in made}
    shown = [text for message in json.loads(before)[LIST[format]] for text in result_texts(message)]
    return sum(text in stubs for text in shown)


def _check_cold(told: History, count: int, cold: Sequence[ColdResult]) -> None:
    """Only results of others' tools that did not fail, not of the last turn, with their whole text."""
    turns = [step for number, step in enumerate(told.steps) if step.calls and number in told.owners[:count]]
    texts = {"\n".join(texts) for message in told.messages[:count] for texts in texts_of_results(message)}
    last = {call.id for call in turns[-1].calls} if turns else set()
    fine = [call for step in turns for call in step.calls if call.kind == "work" and "context_" not in call.name]
    for each in cold:
        assert each.text in texts, f"{told} at {count}: not the text"
        if told.format == "openai-chat" or "#" in each.result.call_id:
            # Ids that are used again, or numbers.
            continue
        call_id = each.result.call_id.removeprefix("toolu_").removeprefix("call_")
        calls = [call for call in fine if call.id == call_id]
        assert len(calls) == 1, f"{told} at {count}: of our own tools"
        assert call_id not in last, f"{told} at {count}: of the last turn"
        assert not calls[0].failed or told.format == "openai-responses", f"{told} at {count}: an error"


LAWS = (law_bytes, law_never_silent, law_remembered, law_stubs)


@every_format
def test_the_projection_keeps_every_law(format: Format) -> None:
    seen: Counter[str] = Counter()
    for told in histories(format):
        for law in LAWS:
            seen[law.__name__] += law(told, AS_IT_IS)
    assert min(seen.values()) > COUNT // 10, seen


def law_fail_open(format: Format, seed: str, ways: Ways) -> int:
    """Whatever comes: no error, no broken request, and the very bytes where nothing was folded."""
    body = hostile.request(format, seed)
    replay = f"messages.hostile.request({format!r}, {seed!r})"
    projected = ways.body(body, format)
    check_figures(projected.receipt, replay)
    members = parsed(body)
    listed = members.get(LIST[format]) if isinstance(members, dict) else None
    if members is not None:
        # Whatever it is, no error of ours.
        project(listed if listed is not None else members, format)
    if not projected.changed:
        assert projected.body is body, replay
        return 0
    assert isinstance(members, dict), f"{replay}: changed, though it is not JSON"
    assert isinstance(listed, list)
    left = project(listed, format, model="m-1", tools=members.get("tools")).messages
    assert parsed(projected.body) == members | {LIST[format]: left}, replay
    if not RULES[format](members):
        assert RULES[format](json.loads(projected.body)) == [], replay
    # Thinking alone in a message makes an earlier change wait. Where it goes with a later one, nothing waits any more.
    if not any(map(is_only_thinking, listed)):
        assert ways.body(projected.body, format).body is projected.body, f"{replay}: twice is not once"
    return 1


def is_only_thinking(message: object) -> bool:
    blocks = message.get("content") if isinstance(message, dict) else None
    kinds = [isinstance(each, dict) and each.get("type") for each in blocks] if isinstance(blocks, list) else []
    return bool(kinds) and all(kind in ("thinking", "redacted_thinking") for kind in kinds)


def parsed(body: bytes) -> Any:
    """JSON by the letter: UTF-8, no name twice in an object. None where it is not."""

    def whole(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) != len(pairs):
            raise ValueError("a name twice")
        return dict(pairs)

    def number(text: str) -> int:
        return int(text) if len(text) < 4000 else 0

    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=whole, parse_int=number)
    except (ValueError, RecursionError):
        return None


@every_format
def test_hostile_bytes_never_raise_and_what_comes_out_is_whole(format: Format) -> None:
    changed = sum(law_fail_open(format, f"{SEED}-{number}", AS_IT_IS) for number in range(HOSTILE_COUNT))
    assert changed > HOSTILE_COUNT // 20


# ---- planted breaches: each law must notice its own


class WritesJsonAnew(Ways):
    def sent(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> bytes:
        projected = self.body(body, format, remembered)
        return json.dumps(json.loads(projected.body)).encode() if projected.changed else projected.body


class SaysNothing(Ways):
    def listed(self, told: History, messages: Sequence[Any], remembered: Remembered = NOTHING_REMEMBERED) -> Projection:
        projected = super().listed(told, messages, remembered)
        return replace(projected, receipt=replace(projected.receipt, reason="", skipped=()))


class NamesOnlyTheFirst(Ways):
    def listed(self, told: History, messages: Sequence[Any], remembered: Remembered = NOTHING_REMEMBERED) -> Projection:
        projected = super().listed(told, messages, remembered)
        return replace(projected, receipt=replace(projected.receipt, skipped=projected.receipt.skipped[:1]))


class Forgets(Ways):
    """What was decided or read in earlier requests."""

    def listed(self, told: History, messages: Sequence[Any], remembered: Remembered = NOTHING_REMEMBERED) -> Projection:
        return super().listed(told, messages)

    def body(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> BodyProjection:
        return super().body(body, format)


class CountsInStubs(Ways):
    """The stubs of a longer history are others."""

    def sent(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> bytes:
        return super().sent(body, format, remembered).replace(b"left out after", b"left out %d after" % len(body))


class LeavesErrorsOut(Ways):
    """And our own results, and those of the last turn: whatever has a text."""

    def cold(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> list[ColdResult]:
        clean = body.replace(b"context_", b"tool_").replace(b'"is_error": true', b'"is_error":false')
        return project_body(clean, format).cold_results(salt="s", settings=replace(STUBS, spared_turns=0))


class StoresHalf(Ways):
    def cold(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> list[ColdResult]:
        made = super().cold(body, format, remembered)
        return [each._replace(text=each.text[: len(each.text) // 2]) for each in made]


@dataclass(frozen=True, slots=True)
class PlantedBreach:
    law: Callable[[History, Ways], int]
    ways: Ways


BREACHES = [
    PlantedBreach(law_bytes, WritesJsonAnew()),
    PlantedBreach(law_never_silent, SaysNothing()),
    PlantedBreach(law_never_silent, NamesOnlyTheFirst()),
    PlantedBreach(law_remembered, Forgets()),
    PlantedBreach(law_stubs, Forgets()),
    PlantedBreach(law_stubs, CountsInStubs()),
    PlantedBreach(law_stubs, LeavesErrorsOut()),
    PlantedBreach(law_stubs, StoresHalf()),
]


@every_format
@pytest.mark.parametrize("breach", BREACHES, ids=lambda each: f"{each.law.__name__}-{type(each.ways).__name__}")
def test_a_planted_breach_is_noticed(breach: PlantedBreach, format: Format) -> None:
    def check() -> None:
        for number in range(BREACH_COUNT):
            breach.law(history(format, f"breach {number}"), breach.ways)

    with pytest.raises(AssertionError):
        check()


class FoldsTheLastMessage(Ways):
    """Where something was folded, one message more goes: calls lose their results."""

    def body(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> BodyProjection:
        projected = super().body(body, format, remembered)
        elements = cut(projected.body, LIST[format]) if projected.changed else None
        if elements is None:
            return projected
        return replace(projected, body=elements.without(frozenset({len(elements.texts) - 1})))


class CopiesBodies(Ways):
    def body(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> BodyProjection:
        projected = super().body(body, format, remembered)
        return (
            projected if projected.changed else replace(projected, body=bytes(bytearray(body)), _original=body + b" ")
        )


@every_format
@pytest.mark.parametrize("ways", [FoldsTheLastMessage(), CopiesBodies()], ids=lambda each: type(each).__name__)
def test_a_planted_breach_of_failing_open_is_noticed(ways: Ways, format: Format) -> None:
    def check() -> None:
        for number in range(BREACH_COUNT):
            law_fail_open(format, f"breach {number}", ways)

    with pytest.raises(AssertionError):
        check()
