"""The laws of folding a message list, for each of the four APIs, over generated histories.

What must be sent is read from the script behind a history (`messages.expected`), what is valid from each API's own
rules, and where an element of the list begins and ends from a cutter of its own. A failure names the format and the
seed; the history comes again with `messages.histories.history(format, seed)`. `CONTEXTFOLD_SEED` chooses others.

Each law is a function over a projection, so that projections with a planted breach can be held against it.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from contextfold.fold.messages import BodyProjection, Receipt, project, project_body
from tests.fold.messages import rules_anthropic, rules_gemini, rules_openai_chat, rules_openai_responses
from tests.fold.messages.elements import cut
from tests.fold.messages.expected import PARTS, expected, is_prompt, left_out, sent_messages, thinks
from tests.fold.messages.histories import FORMATS, LIST, PNG, Format, History, history
from tests.support.clauses import covers
from tests.support.machine import times

pytestmark = covers("proxy.md#laws")

COUNT = times(12, 10_000)
# Histories among which the law must notice a breach.
BREACH_COUNT = 200
SEED = os.environ.get("CONTEXTFOLD_SEED") or (str(random.SystemRandom().getrandbits(32)) if times(0, 1) else "1")
BYTES_PER_TOKEN = 4
RULES: dict[Format, Callable[[Any], list[str]]] = {
    "anthropic": rules_anthropic.violations,
    "openai-chat": rules_openai_chat.violations,
    "openai-responses": rules_openai_responses.violations,
    "gemini": rules_gemini.violations,
}
every_format = pytest.mark.parametrize("format", FORMATS)
QUOTES = re.compile(
    r"<system-reminder>\nThe user sent the following message:[\s\S]*?</system-reminder>|The user sent a new message"
)

# The messages that are sent of the first so many of a history.
Sending = Callable[[History, int], list[Any]]


def histories(format: Format, *, odd: float | None = None) -> Iterator[History]:
    for number in range(COUNT):
        yield history(format, f"{SEED}-{number}", odd=odd)


def sent_by_library(told: History, count: int) -> list[Any]:
    messages: list[Any] = project(told.messages[:count], told.format, binds_thinking=told.binds_thinking).messages
    return messages


def sent(told: History, count: int | None = None) -> BodyProjection:
    return project_body(told.body(count), told.format)


def counts_of(told: History) -> list[int]:
    """Lengths worth a look: whole, where something was just closed, where a user spoke, and a few others."""
    dice = random.Random(told.seed)
    closed = {one.done_at + 1 for one in expected(told).closings}
    spoken = {place + 1 for place in range(len(told.messages)) if is_prompt(told, place)}
    others = set(dice.choices(range(1, len(told.messages) + 1), k=3))
    return sorted(closed | others | spoken | {len(told.messages)})


# ---- the laws


def law_valid(told: History, sending: Sending) -> int:
    members, folded = json.loads(told.body()), 0
    for count in counts_of(told):
        messages, left = list(told.messages[:count]), sending(told, count)
        if left != messages and RULES[told.format](members | {LIST[told.format]: messages}) == []:
            folded += 1
            assert RULES[told.format](members | {LIST[told.format]: left}) == [], f"{told} at {count}"
    return folded


def law_user_is_heard(told: History, sending: Sending) -> int:
    """Every text, in order, also inside a branch, also beside a result."""
    heard = 0
    for count in counts_of(told):
        texts = [text for words in told.words[:count] for text in words]
        said = list(user_texts(told.format, sending(told, count)))
        missing = iter(said)
        assert all(text in missing for text in texts), f"{told} at {count}: {texts} of {said}"
        heard += len(texts)
    return heard


def user_texts(format: Format, messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        # What a host has put behind a result's own text.
        yield from (quote for text in result_texts(message) for quote in QUOTES.findall(text))
        if message.get("role") == "system" and QUOTES.search(str(message["content"])):
            content = message["content"]
            yield content if isinstance(content, str) else content[0]["text"]
        if message.get("role") == "user":
            content = message[PARTS.get(format, "content")]
            if isinstance(content, str):
                yield content
            else:
                yield from (part["text"] for part in content if "text" in part)


def result_texts(message: Mapping[str, Any]) -> Iterator[str]:
    return (text for texts in texts_of_results(message) for text in texts)


def texts_of_results(message: Mapping[str, Any]) -> Iterator[list[str]]:
    """Of each result, whatever API it is of."""
    content = message.get("content", message.get("parts"))
    holders: list[Any] = [message.get("output"), content if message.get("role") == "tool" else None]
    for part in content if isinstance(content, list) else ():
        holders.append(part.get("content") if part.get("type") == "tool_result" else None)
        holders += part.get("functionResponse", {}).get("response", {}).values()
    for holder in holders:
        blocks = holder if isinstance(holder, list) else ()
        parts = [each["text"] for each in blocks if isinstance(each, dict) and "text" in each]
        yield [holder] if isinstance(holder, str) else parts


def law_exact(told: History, sending: Sending) -> int:
    went = 0
    for count in counts_of(told):
        left = sending(told, count)
        assert left == sent_messages(told, count), f"{told} at {count}"
        went += count - len(left)
    return went


def law_prefix_kept(told: History, sending: Sending) -> int:
    """What was sent is sent again, but for a change that is new, and only where something was closed or said."""
    before: list[Any] = []
    changes = 0
    for count in range(1, len(told.messages) + 1):
        now = sending(told, count)
        if now[: len(before)] != before:
            changes += 1
            closed = [one for one in expected(told, count).closings if one.made_at in (count, count - 1)]
            assert closed, f"{told} at {count}: nothing was closed, yet bytes that were sent have changed"
            first = min(one.first for one in closed)
            unchanged = [id(message) for message in told.messages[: first - 1]]
            same = next(n for n, message in enumerate(before) if n >= len(now) or now[n] != message)
            sent_before = [id(message) for message in before[:same]]
            still = [one for one in unchanged if any(one == id(message) for message in before)]
            assert still == [one for one in sent_before if one in still], f"{told} at {count}: a change in front of it"
        before = now
    return changes


def law_twice_is_once(told: History, sending: Sending) -> int:
    members = json.loads(told.body())
    for count in counts_of(told):
        once = json.dumps(members | {LIST[told.format]: sending(told, count)}).encode()
        assert project_body(once, told.format).body is once, f"{told} at {count}"
    return 1


def law_thinking(told: History, sending: Sending) -> int:
    """A provider that signs what it thinks with all that is in front of it, and an agent that was never elsewhere."""
    if not told.binds_thinking:
        return 0
    signed: dict[str, list[Any]] = {}
    folded = 0
    for count in range(1, len(told.messages) + 1):
        now = sending(told, count)
        for number, message in enumerate(now):
            for thought in thoughts(message):
                assert thought not in signed or signed[thought] == now[:number], f"{told} at {count}: {message}"
        prompts = [place for place in range(count) if is_prompt(told, place)]
        sent_thoughts = {thought for message in now for thought in thoughts(message)}
        calls = {call for message in now for call in calls_of(message)}
        for message in told.messages[prompts[-1] if prompts else 0 : count]:
            if calls & set(calls_of(message)):
                assert set(thoughts(message)) <= sent_thoughts, f"{told} at {count}: the running loop lost its thinking"
        if count < len(told.messages):
            for thought in thoughts(told.messages[count]):
                signed[thought] = now
        folded += len(now) < count
    return folded


def thoughts(message: Mapping[str, Any]) -> list[str]:
    return [json.dumps(block) for block in message["content"] if "thinking" in block["type"]] if thinks(message) else []


def calls_of(message: Mapping[str, Any]) -> list[str]:
    content = message["content"]
    return [] if isinstance(content, str) else [block["id"] for block in content if block["type"] == "tool_use"]


LAWS = (
    law_valid,
    law_user_is_heard,
    law_exact,
    law_prefix_kept,
    law_twice_is_once,
    law_thinking,
)


@every_format
def test_the_projection_keeps_every_law(format: Format) -> None:
    """Each history is told once, and each length of it projected once, for all laws."""
    seen: Counter[str] = Counter()
    for told in histories(format):
        sent_of: dict[int, list[Any]] = {}

        def sending(told: History, count: int, sent_of: dict[int, list[Any]] = sent_of) -> list[Any]:
            if count not in sent_of:
                sent_of[count] = sent_by_library(told, count)
            return sent_of[count]

        for law in LAWS:
            seen[law.__name__] += law(told, sending)
    if format != "anthropic":
        del seen[law_thinking.__name__]
    assert min(seen.values()) > COUNT // 4, seen


# ---- planted breaches: each law must notice its own


@dataclass(frozen=True, slots=True)
class Breach:
    law: Callable[[History, Sending], int]
    format: Format
    sending: Sending


def loses_a_result(told: History, count: int) -> list[Any]:
    """The message behind the branch's call goes, too."""
    left = sent_by_library(told, count)
    for one in expected(told, count).folded:
        if left != list(told.messages[:count]):
            return [message for message in left if message is not told.messages[one.end - 1 + 1]]
    return left


def loses_words(told: History, count: int) -> list[Any]:
    inside = [place for one in expected(told, count).folded for place in range(one.first, one.end)]
    texts = {text for place in inside for text in told.words[place]}
    kept: list[Any] = []
    for message in sent_by_library(told, count):
        name = PARTS.get(told.format, "content")
        content = message.get(name)
        if message.get("role") == "user" and isinstance(content, list):
            left = [part for part in content if part.get("text") not in texts]
            if left:
                kept.append({**message, name: left} if left != content else message)
        elif not (isinstance(content, str) and content in texts):
            kept.append(message)
    return kept


def forgets_shared_turns(told: History, count: int) -> list[Any]:
    """Nothing folds whose closing call shared its turn."""
    one = expected(told, count).folded
    shared = any(len(told.steps[told.owners[each.done_at]].calls) > 1 for each in one)
    return list(told.messages[:count]) if shared else sent_by_library(told, count)


def forgets_folds(told: History, count: int) -> list[Any]:
    folds = any(each.kind == "fold" for each in expected(told, count).folded)
    return list(told.messages[:count]) if folds else sent_by_library(told, count)


def unfolds_later(told: History, count: int) -> list[Any]:
    """Something that was folded is whole again five messages later."""
    late = any(each.done_at + 5 < count for each in expected(told, count).folded)
    return list(told.messages[:count]) if late else sent_by_library(told, count)


def folds_half(told: History, count: int) -> list[Any]:
    """A range goes in two steps: what is sent can be folded once more."""
    seen = expected(told, count)
    if seen.folded and len(left_out(told, seen.folded[-1])) > 3:
        one = seen.folded[-1]
        return [
            message for place, message in enumerate(told.messages[:count]) if not one.first <= place < one.first + 2
        ]
    return sent_by_library(told, count)


def ignores_binding(told: History, count: int) -> list[Any]:
    messages: list[Any] = project(told.messages[:count], told.format, binds_thinking=False).messages
    return messages


def keeps_finished_thinking(told: History, count: int) -> list[Any]:
    """Changes are made when they should be, but what was thought in front of them stays."""
    whole = {id(message): message for message in told.messages}
    originals = {json.dumps(calls_of(message)): message for message in whole.values() if calls_of(message)}
    return [
        originals.get(json.dumps(calls_of(message)), message) if calls_of(message) else message
        for message in sent_by_library(told, count)
    ]


BREACHES = [
    *(Breach(law_valid, format, loses_a_result) for format in FORMATS),
    *(Breach(law_user_is_heard, format, loses_words) for format in FORMATS),
    *(Breach(law_exact, format, forgets_shared_turns) for format in FORMATS),
    *(Breach(law_exact, format, forgets_folds) for format in FORMATS),
    *(Breach(law_prefix_kept, format, unfolds_later) for format in FORMATS),
    *(Breach(law_twice_is_once, format, folds_half) for format in FORMATS),
    Breach(law_thinking, "anthropic", ignores_binding),
    Breach(law_thinking, "anthropic", keeps_finished_thinking),
]


@pytest.mark.parametrize(
    "breach", BREACHES, ids=lambda breach: f"{breach.law.__name__}-{breach.sending.__name__}-{breach.format}"
)
def test_a_planted_breach_is_noticed(breach: Breach) -> None:
    def check() -> None:
        for number in range(BREACH_COUNT):
            breach.law(history(breach.format, f"breach {number}"), breach.sending)

    with pytest.raises(AssertionError):
        check()


# ---- bytes


@every_format
def test_bytes_that_were_sent_are_sent_again(format: Format) -> None:
    """From one request to the next, up to the first message that changes."""
    for told in histories(format):
        before, sent_before = b"", list[Any]()
        for count in counts_of(told):
            now, sent_now = sent(told, count).body, sent_messages(told, count)
            same = 0
            while same < len(sent_before) and sent_now[same] == sent_before[same]:
                same += 1
            pieces = cut(before, LIST[format]) if before else None
            if pieces and same:
                start = pieces.without(frozenset(range(same, len(pieces.texts))))
                assert now.startswith(start[: len(start) - len(told.tail)]), f"{told} at {count}"
            before, sent_before = now, sent_now


@every_format
def test_calls_that_failed_open_and_close_nothing(format: Format) -> None:
    """The same histories, but a return or fold failed: what it would have closed stays."""
    failures = 0
    for told in histories(format, odd=0.0):
        for one in expected(told).closings:
            place = one.done_at
            messages = [*told.messages[:place], failed(told.messages[place], format)]
            left = project(messages, format, binds_thinking=told.binds_thinking).messages
            assert left[:-1] == sent_messages(told, place), f"{told} at {place}"
            assert left[-1] is messages[-1]
            failures += 1
    assert failures > COUNT // 10


def failed(message: dict[str, Any], format: Format) -> dict[str, Any]:
    """The same results as failures; they still name the branch."""
    text = json.dumps({"error": {"code": -32003, "data": json.loads(json.dumps(str(message)))}})
    if format == "anthropic":
        blocks = [{**one, "is_error": True} if one["type"] == "tool_result" else one for one in message["content"]]
        return {**message, "content": blocks}
    if format == "gemini":
        parts = [
            {"functionResponse": {**one["functionResponse"], "response": {"error": text}}}
            if "functionResponse" in one
            else one
            for one in message["parts"]
        ]
        return {**message, "parts": parts}
    name = "content" if format == "openai-chat" else "output"
    told = message[name] if isinstance(message[name], str) else message[name][0]["text"]
    return {**message, name: f'{{"error": {{"code": -32003, "message": "not active"}}, "was": {told}}}\n{text}'}


@every_format
def test_the_library_and_the_proxy_do_the_same(format: Format) -> None:
    for told in histories(format):
        body, listed = sent(told), project(told.messages, format, binds_thinking=told.binds_thinking)
        assert json.loads(body.body)[LIST[format]] == listed.messages, str(told)
        assert body.changed == listed.changed, str(told)
        one, other = body.receipt, listed.receipt
        assert (one.messages_before, one.messages_after) == (other.messages_before, other.messages_after), str(told)
        assert (one.turns_dropped, one.first_changed) == (other.turns_dropped, other.first_changed), str(told)
        assert (one.skipped, one.reason) == (other.skipped, other.reason), str(told)
        assert [(fold.branch_id, fold.first, fold.messages, fold.turns) for fold in one.folds] == [
            (fold.branch_id, fold.first, fold.messages, fold.turns) for fold in other.folds
        ], str(told)
        assert body.session_id == listed.session_id, str(told)
        assert body.outcomes == listed.outcomes, str(told)
        threads = [[(span.branch_id, span.places) for span in both.threads] for both in (body, listed)]
        assert threads[0] == threads[1], str(told)


def check_figures(receipt: Receipt, replay: str) -> None:
    """What is true of every receipt."""
    assert receipt.tokens_after >= 0, replay
    assert 0 <= receipt.messages_after <= receipt.messages_before, replay
    assert receipt.messages_before - receipt.messages_after == sum(fold.messages for fold in receipt.folds), replay
    assert receipt.turns_dropped == sum(fold.turns for fold in receipt.folds), replay
    assert receipt.first_changed is not None or receipt.messages_before == receipt.messages_after, replay
    for fold in receipt.folds:
        assert 0 <= fold.turns <= fold.messages, replay
        assert 0 <= fold.kept_tokens <= receipt.tokens_after, replay
        assert fold.tokens >= 0, replay
    saved = receipt.tokens_before - receipt.tokens_after
    assert saved >= sum(fold.tokens for fold in receipt.folds) - 2 * len(receipt.folds) - 1, replay
    fields = receipt.header_fields()
    assert list(fields) == [
        "tokens_before",
        "tokens_after",
        "turns_dropped",
        "results_left_out",
        "first_changed",
        "reason",
    ], replay
    assert fields["reason"] == (receipt.reason or None), replay


@every_format
def test_the_receipt_says_what_was_done(format: Format) -> None:
    for told in histories(format):
        projected = sent(told)
        receipt = projected.receipt
        check_figures(receipt, str(told))
        seen, left = expected(told), sent_messages(told)
        assert (receipt.messages_before, receipt.messages_after) == (len(told.messages), len(left)), str(told)
        assert [(fold.branch_id, fold.first, fold.messages) for fold in receipt.folds] == [
            (one.branch_id, left_out(told, one)[0], len(left_out(told, one))) for one in seen.folded
        ], str(told)
        if PNG not in str(told.messages):
            assert receipt.tokens_before == tokens(told.body()), str(told)
            assert receipt.tokens_after == tokens(projected.body), str(told)
        same = 0
        while same < len(left) and left[same] == told.messages[same]:
            same += 1
        assert receipt.first_changed == (same if len(left) < len(told.messages) or same < len(left) else None), str(
            told
        )
        assert receipt.reason == (receipt.skipped[0].reason if receipt.skipped else "open_branch" if seen.open else "")


def tokens(body: bytes) -> int:
    return -(-len(body) // BYTES_PER_TOKEN)


@every_format
def test_what_is_open_and_where_it_stands_is_known(format: Format) -> None:
    for told in histories(format):
        projected = sent(told)
        seen = expected(told)
        assert [span.branch_id for span in projected.threads] == [None, *seen.open], str(told)
        places = [place for span in projected.threads for place in span.places]
        assert len(set(places)) == len(places), f"{told}: a message in two threads"
        returned = {place for one in seen.folded if one.kind == "return" for place in range(one.first, one.end)}
        assert not set(places) & returned, str(told)
        for span in projected.threads:
            assert list(span.places) == sorted(span.places)
            assert span.tokens >= 0
        total = sum(span.tokens for span in projected.threads)
        assert abs(total - projected.receipt.tokens_after) <= len(told.messages) + len(projected.threads), str(told)
        place = random.Random(told.seed).randrange(len(told.messages))
        assert projected.original(place).encode() == told.texts[place], str(told)
        assert projected.model == told.model
        assert projected.streams == json.loads(told.body())["stream"]
        assert projected.session_id != "sess_000000000000", f"{told}: somebody else's tool"


@every_format
def test_an_open_branch_is_not_touched(format: Format) -> None:
    opened = 0
    for told in histories(format):
        seen = expected(told)
        left = sent_by_library(told, len(told.messages))
        for place in seen.opened_at:
            inside = {at for one in seen.closings for at in range(one.first, one.end)}
            alone = [told.messages[at] for at in range(place + 1, len(told.messages)) if at not in inside]
            bare = [message for message in alone if not thinks(message)]
            name = PARTS.get(format)
            # Words of a branch in it may stand behind the results of that branch's call.
            begun = [{**one, name: one[name][: len(each[name])]} for one in left for each in bare] if name else []
            assert all(message in left or message in begun for message in bare), str(told)
            opened += 1
    assert opened
