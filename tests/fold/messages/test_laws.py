"""The laws of folding a message list, for each of the three APIs, over generated histories.

What must go is read from the script behind a history, what is valid from each API's own rules, and where an element of
the list begins and ends from a cutter of its own. A failure names the format and the seed; the history comes again
with `messages.histories.history(format, seed)`. `CONTEXTFOLD_SEED` chooses other histories.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from contextfold.fold.messages import BodyProjection, Receipt, project, project_body
from tests.fold.messages import hostile, rules_anthropic, rules_openai_chat, rules_openai_responses
from tests.fold.messages.elements import cut
from tests.fold.messages.expected import FOLD, KEEP, Pair, known, outermost, wrong_choice
from tests.fold.messages.histories import FORMATS, LIST, PNG, Format, History, history
from tests.support.clauses import covers
from tests.support.machine import times

COUNT = times(20, 10_000)
HOSTILE_COUNT = times(60, 20_000)
SEED = os.environ.get("CONTEXTFOLD_SEED") or (str(random.SystemRandom().getrandbits(32)) if times(0, 1) else "1")
BYTES_PER_TOKEN = 4
RULES: dict[Format, Callable[[Any], list[str]]] = {
    "anthropic": rules_anthropic.violations,
    "openai-chat": rules_openai_chat.violations,
    "openai-responses": rules_openai_responses.violations,
}
every_format = pytest.mark.parametrize("format", FORMATS)


def histories(format: Format, *, odd: float | None = None) -> Iterator[History]:
    for number in range(COUNT):
        yield history(format, f"{SEED}-{number}", odd=odd)


def kept_by_library(messages: Sequence[Any], format: Format, *, binds_thinking: bool = False) -> list[int]:
    """Which messages the library keeps, by identity: they must be the very same objects, in their order."""
    sent = project(messages, format, binds_thinking=binds_thinking).messages
    left = iter(enumerate(messages))
    kept = [next((place for place, message in left if message is one), -1) for one in sent]
    assert -1 not in kept, "a message that was not there, or not in this order"
    return kept


def kept(told: History, count: int) -> list[int]:
    """What of the first `count` messages is sent."""
    return kept_by_library(told.messages[:count], told.format, binds_thinking=told.binds_thinking)


def dropped(told: History, count: int) -> frozenset[int]:
    return frozenset(range(count)) - frozenset(kept(told, count))


def left_of(told: History, count: int, gone: frozenset[int]) -> bytes:
    return told.body_of([place for place in range(count) if place not in gone])


def sent(told: History, count: int | None = None) -> BodyProjection:
    return project_body(told.body(count), told.format)


@covers("proxy.md#laws")
@every_format
def test_a_valid_request_stays_valid(format: Format) -> None:
    """Whole, where something has just been closed, and at a few other lengths."""
    folded = 0
    for told in histories(format):
        members, dice = json.loads(told.body()), random.Random(told.seed)
        counts = {pair.done_at + 1 for pair in known(told).pairs} | {len(told.messages)}
        for count in counts | set(dice.choices(range(1, len(told.messages) + 1), k=4)):
            messages, places = told.messages[:count], kept(told, count)
            if len(places) < count and RULES[format](members | {LIST[format]: messages}) == []:
                folded += 1
                left = members | {LIST[format]: [messages[place] for place in places]}
                assert RULES[format](left) == [], f"{told} at {count}"
    assert folded > COUNT // 4


@covers("proxy.md#laws")
@every_format
def test_the_result_is_the_request_without_whole_messages_and_not_a_byte_besides(format: Format) -> None:
    changed = 0
    for told in histories(format):
        projected = sent(told)
        before, after = cut(told.body(), LIST[format]), cut(projected.body, LIST[format])
        assert before
        assert after, str(told)
        left = iter(enumerate(before.texts))
        places = [next((place for place, text in left if text == one), -1) for one in after.texts]
        assert -1 not in places, f"{told}: a message that was not there, or not in this order"
        assert projected.changed == (projected.body != told.body()), str(told)
        if projected.changed:
            changed += 1
            gone = frozenset(range(len(before.texts))) - frozenset(places)
            first = before.without(frozenset(range(min(gone), len(before.texts))))
            assert projected.body.startswith(first[: len(first) - len(before.tail)]), (
                f"{told}: the bytes before the cut"
            )
            assert (after.head, after.tail) == (before.head, before.tail), str(told)
            assert json.loads(projected.body) == json.loads(told.body()) | {
                LIST[format]: [told.messages[place] for place in places]
            }, str(told)
        else:
            assert projected.body == told.body(), str(told)
    assert changed > COUNT // 10


@covers("proxy.md#laws")
@every_format
def test_what_was_sent_folded_is_never_sent_otherwise_until_an_enclosing_branch_folds(format: Format) -> None:
    for told in histories(format):
        body, gone = b"", frozenset[int]()
        for count in range(1, len(told.messages) + 1):
            now = sent(told, count).body
            gone_now = gone if now == left_of(told, count, gone) else dropped(told, count)
            assert now == left_of(told, count, gone_now), f"{told} at {count}"
            assert gone <= gone_now, f"{told} at {count}: {sorted(gone - gone_now)} came back"
            new = gone_now - gone
            start = body[: len(body) - len(told.tail)]
            if new:
                closed = [pair for pair in known(told).pairs if pair.done_at == count - 1]
                assert closed, f"{told} at {count}: nothing was closed, yet {sorted(new)} went"
                call = max(place for place in range(count) if told.owners[place] == closed[0].branch_step)
                assert min(new) > call, f"{told} at {count}: {sorted(new)} went, the branch begins at {call}"
                before = left_of(told, min(new), gone_now)
                start = before[: len(before) - len(told.tail)]
            assert now.startswith(start), f"{told} at {count}: bytes that were sent before"
            body, gone = now, gone_now


def test_thinking_that_is_bound_to_what_came_before_it_is_sent_behind_the_very_same() -> None:
    """An agent that goes through the proxy from its first request on, and a provider that checks what it signed."""
    folded = 0
    for told in histories("anthropic"):
        if not told.binds_thinking:
            continue
        signed: dict[int, list[int]] = {}
        for count in range(1, len(told.messages) + 1):
            places = kept(told, count)
            for number, place in enumerate(places):
                if place in signed:
                    assert places[:number] == signed[place], f"{told} at {count}: what message {place} is bound to"
            if count < len(told.messages) and thinks(told.messages[count]):
                signed[count] = places
        folded += len(places) < len(told.messages)
    assert folded > COUNT // 50


def thinks(message: dict[str, Any]) -> bool:
    content = message["content"]
    return not isinstance(content, str) and any("thinking" in block["type"] for block in content)


@covers("proxy.md#laws")
@every_format
def test_projecting_twice_is_projecting_once(format: Format) -> None:
    for told in histories(format):
        once = sent(told).body
        twice = project_body(once, format)
        assert twice.body is once, str(told)
        assert not twice.changed
        assert twice.receipt.folds == () or all(fold.messages == 0 for fold in twice.receipt.folds), str(told)


@covers("proxy.md#what-folds")
@every_format
def test_an_open_branch_is_not_touched(format: Format) -> None:
    for told in histories(format):
        seen = known(told)
        first_closed = min((pair.done_at for pair in seen.pairs), default=len(told.messages))
        body = told.body(first_closed)
        assert project_body(body, format).body is body, f"{told} at {first_closed}"
        gone = dropped(told, len(told.messages))
        for number, (_, step) in enumerate(seen.open):
            until = seen.open[number + 1][1] if number + 1 < len(seen.open) else len(told.steps)
            inside = {
                place
                for place, owner in enumerate(told.owners)
                if step <= owner <= until and not any(place in pair.inside for pair in seen.pairs)
            }
            assert not inside & gone, f"{told}: of an open branch went {sorted(inside & gone)}"


@covers("proxy.md#laws")
@every_format
def test_branches_and_returns_that_share_their_turns_pass_as_they_came(format: Format) -> None:
    pairs = 0
    for told in histories(format, odd=1.0):
        seen = known(told).pairs
        if any(pair.verdict != KEEP for pair in seen):
            continue  # calls that a client of the Responses API wrote one after the other
        pairs += len(seen)
        body = told.body()
        projected = project_body(body, format)
        assert projected.body is body, str(told)
        assert not projected.changed
        assert not dropped(told, len(told.messages)), str(told)
        if any(pair.inside for pair in seen):
            assert projected.receipt.reason, f"{told}: no reason told"
    assert pairs > COUNT // 10


@every_format
def test_calls_that_failed_open_and_close_nothing(format: Format) -> None:
    """The same histories, but every return failed: nothing is done, so nothing goes."""
    failures = 0
    for told in histories(format, odd=0.0):
        done = [pair.done_at for pair in known(told).pairs]
        for place in done:
            messages = [*told.messages[:place], failed(told.messages[place], format), *told.messages[place + 1 :]]
            left = kept_by_library(messages[: place + 1], format, binds_thinking=told.binds_thinking)
            assert left == [*kept(told, place), place], f"{told} at {place}"
            failures += 1
    assert failures > COUNT // 10


def failed(message: dict[str, Any], format: Format) -> dict[str, Any]:
    """The same result, told as a failure; it still names the branch."""
    text = json.dumps({"error": {"code": -32003, "data": json.loads(json.dumps(str(message)))}})
    if format == "anthropic":
        first, *rest = message["content"]
        return {**message, "content": [{**first, "is_error": True}, *rest]}
    name = "content" if format == "openai-chat" else "output"
    told = message[name] if isinstance(message[name], str) else message[name][0]["text"]
    return {**message, name: f'{{"error": {{"code": -32003, "message": "not active"}}, "was": {told}}}\n{text}'}


@covers("proxy.md#laws")
@every_format
def test_hostile_bytes_never_raise_and_what_comes_out_is_whole(format: Format) -> None:
    changed = 0
    for number in range(HOSTILE_COUNT):
        seed = f"{SEED}-{number}"
        body = hostile.request(format, seed)
        replay = f"messages.hostile.request({format!r}, {seed!r})"
        projected = project_body(body, format)
        check_figures(projected.receipt, replay)
        members = parsed(body)
        listed = members.get(LIST[format]) if isinstance(members, dict) else None
        if members is not None:
            project(listed if listed is not None else members, format)  # whatever it is, no error of ours
        if not projected.changed:
            assert projected.body is body, replay
            continue
        changed += 1
        pieces = cut(body, LIST[format])
        assert isinstance(members, dict), f"{replay}: changed, though it is not JSON"
        assert isinstance(listed, list)
        assert pieces, replay
        places = kept_by_library(listed, format)
        assert projected.body == pieces.without(frozenset(range(len(listed))) - frozenset(places)), replay
        if not RULES[format](members):
            assert RULES[format](json.loads(projected.body)) == [], replay
        again = project_body(projected.body, format)
        assert again.body is projected.body, f"{replay}: twice is not once"
    assert changed > HOSTILE_COUNT // 20


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
def test_the_library_and_the_proxy_do_the_same(format: Format) -> None:
    for told in histories(format):
        body, listed = sent(told), project(told.messages, format, binds_thinking=told.binds_thinking)
        places = kept(told, len(told.messages))
        assert body.body == told.body_of(places), str(told)
        assert body.changed == listed.changed == (len(places) < len(told.messages)), str(told)
        one, other = body.receipt, listed.receipt
        assert (one.messages_before, one.messages_after) == (other.messages_before, other.messages_after), str(told)
        assert (one.turns_dropped, one.first_changed) == (other.turns_dropped, other.first_changed), str(told)
        assert (one.skipped, one.reason) == (other.skipped, other.reason), str(told)
        assert [(fold.branch_id, fold.first, fold.messages, fold.turns) for fold in one.folds] == [
            (fold.branch_id, fold.first, fold.messages, fold.turns) for fold in other.folds
        ], str(told)
        assert body.session_id == listed.session_id, str(told)
        threads = [[(span.branch_id, span.places) for span in both.threads] for both in (body, listed)]
        assert threads[0] == threads[1], str(told)


def check_figures(receipt: Receipt, replay: str) -> None:
    """What is true of every receipt."""
    assert 0 <= receipt.tokens_after <= receipt.tokens_before, replay
    assert 0 <= receipt.messages_after <= receipt.messages_before, replay
    assert receipt.messages_before - receipt.messages_after == sum(fold.messages for fold in receipt.folds), replay
    assert receipt.turns_dropped == sum(fold.turns for fold in receipt.folds), replay
    assert (receipt.first_changed is None) == (receipt.messages_before == receipt.messages_after), replay
    for fold in receipt.folds:
        assert 0 <= fold.turns <= fold.messages, replay
        assert 0 <= fold.kept_tokens <= receipt.tokens_after, replay
        assert fold.tokens >= 0, replay
    saved = receipt.tokens_before - receipt.tokens_after
    assert abs(saved - sum(fold.tokens for fold in receipt.folds)) <= len(receipt.folds) + 1, replay
    told = receipt.header_fields()
    assert list(told) == ["tokens_before", "tokens_after", "turns_dropped", "first_changed", "reason"], replay
    assert told["reason"] == (receipt.reason or None), replay


@covers("proxy.md#receipt")
@every_format
def test_the_receipt_tells_what_was_done(format: Format) -> None:
    for told in histories(format):
        projected = sent(told)
        receipt = projected.receipt
        check_figures(receipt, str(told))
        count = len(told.messages)
        gone = dropped(told, count)
        assert (receipt.messages_before, receipt.messages_after) == (count, count - len(gone)), str(told)
        assert receipt.first_changed == min(gone, default=None), str(told)
        seen = known(told)
        applied = list(outermost([pair for pair in seen.pairs if pair.inside and pair.inside <= gone]))
        folds = [fold for fold in receipt.folds if fold.messages]
        assert [(fold.branch_id, fold.first, fold.messages) for fold in folds] == [
            (pair.branch_id, min(pair.inside), len(pair.inside)) for pair in applied
        ], str(told)
        if PNG not in str(told.messages):
            assert receipt.tokens_before == tokens(told.body()), str(told)
            assert receipt.tokens_after == tokens(projected.body), str(told)
        unfolded = {pair.branch_id for pair in seen.pairs if pair.verdict == KEEP and pair.inside}
        skipped = [one.branch_id for one in receipt.skipped]
        assert unfolded - {pair.branch_id for pair in covered(seen.pairs)} <= set(skipped), str(told)
        assert set(skipped) <= {pair.branch_id for pair in seen.pairs if pair.verdict != FOLD}, str(told)
        assert receipt.reason == (receipt.skipped[0].reason if receipt.skipped else ""), str(told)


def tokens(body: bytes) -> int:
    return -(-len(body) // BYTES_PER_TOKEN)


def covered(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Pairs inside one that is folded: whether they are told of is free."""
    for pair in pairs:
        if any(other.branch_step < pair.branch_step and pair.return_step < other.return_step for other in pairs):
            yield pair


@every_format
def test_what_is_open_and_where_it_stands_is_told(format: Format) -> None:
    for told in histories(format):
        projected = sent(told)
        seen = known(told)
        assert [span.branch_id for span in projected.threads] == [None, *(one for one, _ in seen.open)], str(told)
        places = [place for span in projected.threads for place in span.places]
        assert len(set(places)) == len(places), f"{told}: a message in two threads"
        assert not set(places) & dropped(told, len(told.messages)), str(told)
        for span in projected.threads:
            assert list(span.places) == sorted(span.places)
            assert span.tokens >= 0
        total = sum(span.tokens for span in projected.threads)
        assert abs(total - projected.receipt.tokens_after) <= len(told.messages) + len(projected.threads), str(told)
        place = random.Random(told.seed).randrange(len(told.messages))
        assert projected.original(place).encode() == told.texts[place], str(told)
        assert projected.model == told.model
        assert projected.streams == json.loads(told.body())["stream"]
        named = {
            call.answer["session_id"]
            for answers in told.answers
            for _, call in answers
            if call.name.endswith(("context_branch", "context_branch_status")) and "my_" not in call.name
            if isinstance(call.answer, dict) and not call.failed
        }
        assert len(named) <= 1
        assert projected.session_id in (named or {projected.session_id}), str(told)
        assert projected.session_id != "sess_000000000000", f"{told}: somebody else's tool"


@covers("proxy.md#what-folds")
@every_format
def test_what_must_go_goes_and_nothing_else_at_every_length(format: Format) -> None:
    went = 0
    for told in histories(format):
        pairs = known(told).pairs
        for count in range(1, len(told.messages) + 1):
            gone = dropped(told, count)
            went += len(gone)
            wrong = wrong_choice([pair for pair in pairs if pair.done_at < count], gone)
            assert not wrong, f"{told} at {count}: {wrong}"
    assert went > COUNT
