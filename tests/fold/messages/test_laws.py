"""The laws of folding a message list, for each of the four APIs, over generated histories.

`messages.expected` computes the messages that must be sent from the script behind a history. The rules of each API
say which requests are valid. A failure names the format and the seed; `messages.histories.generate_history(format,
seed)` makes the history again.
`CONTEXTFOLD_SEED` chooses other histories.

Each law is a function of a history and a projection, so that it can also be checked with a projection that breaks it.
It returns how often it applied.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from contextfold.fold.messages import BodyProjection, Receipt, Remembered, by_call, project, project_body
from tests.fold.messages import rules_anthropic, rules_gemini, rules_openai_chat, rules_openai_responses
from tests.fold.messages.expected import (
    BY_HAND,
    PARTS,
    expected,
    has_thinking,
    is_prompt,
    left_out,
    sent_messages,
    with_fold_by_hand,
)
from tests.fold.messages.histories import FORMATS, LIST, PNG, Format, History, generate_history
from tests.fold.messages.scripts import ANSWERS
from tests.support.machine import times

COUNT = times(12, 10_000)
# A law must detect a breach within this many histories.
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

# Returns the messages that are sent when a history has had so many messages.
Send = Callable[[History, int], list[Any]]


def histories(format: Format, *, irregular_chance: float | None = None) -> Iterator[History]:
    for number in range(COUNT):
        yield generate_history(format, f"{SEED}-{number}", irregular_chance=irregular_chance)


def histories_with_folds_by_hand(format: Format) -> Iterator[History]:
    """Every other history has a fold by hand."""
    for number, history in enumerate(histories(format)):
        yield with_fold_by_hand(history) if number % 2 else history


def sent_by_library(history: History, count: int) -> list[Any]:
    messages: list[Any] = project(
        history.messages[:count],
        history.format,
        binds_thinking=history.binds_thinking,
        remembered=remembered(history, count),
    ).messages
    return messages


def remembered(history: History, count: int) -> Remembered:
    """What is remembered of the fold by hand."""
    if not 0 < history.folded_at < count:
        return Remembered()
    work = body_projection(history, history.folded_at).find_work()
    can_fold = any(each.branch_id == BY_HAND for each in expected(history, history.folded_at + 1).closings)
    assert can_fold == (work is not None), str(history)
    return Remembered(results=by_call((work.decide(BY_HAND, "All done."),) if work else ()))


def body_projection(history: History, count: int | None = None) -> BodyProjection:
    return project_body(history.body(count), history.format)


def lengths_to_check(history: History) -> list[int]:
    """The whole length, the lengths just after a closing or a prompt of the user, and a few others."""
    rng = random.Random(history.seed)
    closed = {closing.closed_at + 1 for closing in expected(history).closings}
    prompted = {index + 1 for index in range(len(history.messages)) if is_prompt(history, index)}
    others = set(rng.choices(range(1, len(history.messages) + 1), k=3))
    return sorted(closed | others | prompted | {len(history.messages)})


# ---- the laws


def law_valid_requests(history: History, send: Send) -> int:
    members, folded = json.loads(history.body()), 0
    for count in lengths_to_check(history):
        messages, sent = list(history.messages[:count]), send(history, count)
        if sent != messages and RULES[history.format](members | {LIST[history.format]: messages}) == []:
            folded += 1
            assert RULES[history.format](members | {LIST[history.format]: sent}) == [], f"{history} at {count}"
    return folded


def law_user_texts_are_sent(history: History, send: Send) -> int:
    """Every text of the user is sent, in order, also inside a branch and beside a result."""
    text_count = 0
    for count in lengths_to_check(history):
        texts = [text for message_texts in history.user_texts[:count] for text in message_texts]
        sent_texts = list(user_texts(history.format, send(history, count)))
        missing = iter(sent_texts)
        assert all(text in missing for text in texts), f"{history} at {count}: {texts} of {sent_texts}"
        text_count += len(texts)
    return text_count


def user_texts(format: Format, messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        # A host may append texts of the user to a result.
        yield from (quote for text in result_texts(message) for quote in user_words_in(text))
        if message.get("role") == "system" and QUOTES.search(str(message["content"])):
            content = message["content"]
            yield content if isinstance(content, str) else content[0]["text"]
        if message.get("role") == "user":
            content = message[PARTS.get(format, "content")]
            if isinstance(content, str):
                yield content
            else:
                yield from (part["text"] for part in content if "text" in part)


def user_words_in(result: str) -> list[str]:
    return [result] if result.startswith(tuple(ANSWERS)) else QUOTES.findall(result)


def result_texts(message: Mapping[str, Any]) -> Iterator[str]:
    return (text for texts in texts_of_results(message) for text in texts)


def texts_of_results(message: Mapping[str, Any]) -> Iterator[list[str]]:
    """The texts of each result in a message of any API."""
    content = message.get("content", message.get("parts"))
    values: list[Any] = [message.get("output"), content if message.get("role") == "tool" else None]
    for part in content if isinstance(content, list) else ():
        values.append(part.get("content") if part.get("type") == "tool_result" else None)
        values += part.get("functionResponse", {}).get("response", {}).values()
    for value in values:
        blocks = value if isinstance(value, list) else ()
        parts = [each["text"] for each in blocks if isinstance(each, dict) and "text" in each]
        yield [value] if isinstance(value, str) else parts


def law_expected_messages_are_sent(history: History, send: Send) -> int:
    left_out_count = 0
    for count in lengths_to_check(history):
        sent = send(history, count)
        assert sent == sent_messages(history, count), f"{history} at {count}"
        left_out_count += count - len(sent)
    return left_out_count


def law_prefix_is_stable(history: History, send: Send) -> int:
    """Messages that were sent are sent again unchanged, except after a closing: then those before it are unchanged."""
    before: list[Any] = []
    changes = 0
    for count in range(1, len(history.messages) + 1):
        now = send(history, count)
        if now[: len(before)] != before:
            changes += 1
            closed = [
                closing for closing in expected(history, count).closings if closing.left_out_from in (count, count - 1)
            ]
            assert closed, f"{history} at {count}: nothing was closed, yet bytes that were sent have changed"
            first = min(closing.first for closing in closed)
            unchanged = [id(message) for message in history.messages[: first - 1]]
            first_difference = next(n for n, message in enumerate(before) if n >= len(now) or now[n] != message)
            sent_before = [id(message) for message in before[:first_difference]]
            still_sent = [
                message_id for message_id in unchanged if any(message_id == id(message) for message in before)
            ]
            assert still_sent == [message_id for message_id in sent_before if message_id in still_sent], (
                f"{history} at {count}: a change before the closing"
            )
        before = now
    return changes


def law_projection_is_idempotent(history: History, send: Send) -> int:
    members = json.loads(history.body())
    for count in lengths_to_check(history):
        later = [call.kind for results in history.results[history.folded_at : count] for _, call in results]
        if history.folded_at and "fold" in later:
            # Only what is remembered of a fold by hand says where the work of such a fold begins.
            continue
        once = json.dumps(members | {LIST[history.format]: send(history, count)}).encode()
        assert project_body(once, history.format).body is once, f"{history} at {count}"
    return 1


def law_thinking_stays_valid(history: History, send: Send) -> int:
    """A thinking block is only sent after the same messages as when the provider signed it."""
    if not history.binds_thinking:
        return 0
    signed: dict[str, list[Any]] = {}
    folded = 0
    for count in range(1, len(history.messages) + 1):
        now = send(history, count)
        for number, message in enumerate(now):
            for thought in thoughts(message):
                assert thought not in signed or signed[thought] == now[:number], f"{history} at {count}: {message}"
        prompts = [index for index in range(count) if is_prompt(history, index)]
        sent_thoughts = {thought for message in now for thought in thoughts(message)}
        calls = {call for message in now for call in calls_of(message)}
        for message in history.messages[prompts[-1] if prompts else 0 : count]:
            if calls & set(calls_of(message)):
                assert set(thoughts(message)) <= sent_thoughts, (
                    f"{history} at {count}: the running loop lost its thinking"
                )
        if count < len(history.messages):
            for thought in thoughts(history.messages[count]):
                signed[thought] = now
        folded += len(now) < count
    return folded


def thoughts(message: Mapping[str, Any]) -> list[str]:
    return (
        [json.dumps(block) for block in message["content"] if "thinking" in block["type"]]
        if has_thinking(message)
        else []
    )


def calls_of(message: Mapping[str, Any]) -> list[str]:
    content = message["content"]
    return [] if isinstance(content, str) else [block["id"] for block in content if block["type"] == "tool_use"]


LAWS = (
    law_valid_requests,
    law_user_texts_are_sent,
    law_expected_messages_are_sent,
    law_prefix_is_stable,
    law_projection_is_idempotent,
    law_thinking_stays_valid,
)


@every_format
def test_the_projection_obeys_every_law(format: Format) -> None:
    """All laws share one history and one projection of each length."""
    obeyed: Counter[str] = Counter()
    for history in histories_with_folds_by_hand(format):
        sent_of: dict[int, list[Any]] = {}

        def send(history: History, count: int, sent_of: dict[int, list[Any]] = sent_of) -> list[Any]:
            if count not in sent_of:
                sent_of[count] = sent_by_library(history, count)
            return sent_of[count]

        for law in LAWS:
            obeyed[law.__name__] += law(history, send)
    if format != "anthropic":
        del obeyed[law_thinking_stays_valid.__name__]
    assert min(obeyed.values()) > COUNT // 4, obeyed


# ---- planted breaches: each law must detect its own


@dataclass(frozen=True, slots=True)
class Breach:
    law: Callable[[History, Send], int]
    format: Format
    send: Send


def drops_the_closing_call(history: History, count: int) -> list[Any]:
    """Also leaves out the message with the closing call, so that its results have no call."""
    sent = sent_by_library(history, count)
    for closing in expected(history, count).folded:
        if sent != list(history.messages[:count]):
            return [message for message in sent if message is not history.messages[closing.end - 1 + 1]]
    return sent


def drops_user_texts(history: History, count: int) -> list[Any]:
    inside = [index for closing in expected(history, count).folded for index in range(closing.first, closing.end)]
    texts = {text for index in inside for text in history.user_texts[index]}
    remaining_messages: list[Any] = []
    for message in sent_by_library(history, count):
        name = PARTS.get(history.format, "content")
        content = message.get(name)
        if message.get("role") == "user" and isinstance(content, list):
            remaining = [part for part in content if part.get("text") not in texts]
            if remaining:
                remaining_messages.append({**message, name: remaining} if remaining != content else message)
        elif not (isinstance(content, str) and content in texts):
            remaining_messages.append(message)
    return remaining_messages


def drops_answers(history: History, count: int) -> list[Any]:
    """Also leaves out results with the user's answers inside a range that is left out."""
    folded = expected(history, count).folded
    inside = {index for closing in folded for index in range(closing.first, closing.end)}
    answers = {id(history.messages[n]) for n in inside if history.steps[history.step_indexes[n]].is_answer}
    return [message for message in sent_by_library(history, count) if id(message) not in answers]


def drops_found_tools(history: History, count: int) -> list[Any]:
    """Also leaves out what found tools inside a range that is left out."""
    folded = expected(history, count).folded
    inside = {index for closing in folded for index in range(closing.first, closing.end)}
    found = {id(history.messages[n]) for n in inside if history.steps[history.step_indexes[n]].finds_tools}
    return [message for message in sent_by_library(history, count) if id(message) not in found]


def ignores_shared_turns(history: History, count: int) -> list[Any]:
    """Folds nothing if a closing call shared its turn with other calls."""
    folded = expected(history, count).folded
    shared = any(len(history.steps[history.step_indexes[each.closed_at]].calls) > 1 for each in folded)
    return list(history.messages[:count]) if shared else sent_by_library(history, count)


def ignores_folds_by_hand(history: History, count: int) -> list[Any]:
    return sent_by_library(replace(history, folded_at=0), count)


def ignores_folds(history: History, count: int) -> list[Any]:
    folds = any(each.kind == "fold" for each in expected(history, count).folded)
    return list(history.messages[:count]) if folds else sent_by_library(history, count)


def unfolds_later(history: History, count: int) -> list[Any]:
    """Sends the whole history again five messages after a fold."""
    late = any(each.closed_at + 5 < count for each in expected(history, count).folded)
    return list(history.messages[:count]) if late else sent_by_library(history, count)


def folds_half(history: History, count: int) -> list[Any]:
    """Leaves out only a part of a range, so that the result can be folded once more."""
    expectation = expected(history, count)
    if expectation.folded and len(left_out(history, expectation.folded[-1])) > 3:
        closing = expectation.folded[-1]
        return [
            message
            for index, message in enumerate(history.messages[:count])
            if not closing.first <= index < closing.first + 2
        ]
    return sent_by_library(history, count)


def ignores_binding(history: History, count: int) -> list[Any]:
    messages: list[Any] = project(history.messages[:count], history.format, binds_thinking=False).messages
    return messages


def keeps_finished_thinking(history: History, count: int) -> list[Any]:
    """Folds at the right time, but keeps the thinking before the fold."""
    whole = {id(message): message for message in history.messages}
    originals = {json.dumps(calls_of(message)): message for message in whole.values() if calls_of(message)}
    return [
        originals.get(json.dumps(calls_of(message)), message) if calls_of(message) else message
        for message in sent_by_library(history, count)
    ]


BREACHES = [
    *(Breach(law_valid_requests, format, drops_the_closing_call) for format in FORMATS),
    *(Breach(law_user_texts_are_sent, format, drops_user_texts) for format in FORMATS),
    *(Breach(law_user_texts_are_sent, format, drops_answers) for format in FORMATS),
    *(Breach(law_expected_messages_are_sent, format, ignores_shared_turns) for format in FORMATS),
    *(Breach(law_expected_messages_are_sent, format, ignores_folds) for format in FORMATS),
    *(Breach(law_expected_messages_are_sent, format, ignores_folds_by_hand) for format in FORMATS),
    *(Breach(law_prefix_is_stable, format, unfolds_later) for format in FORMATS),
    *(Breach(law_projection_is_idempotent, format, folds_half) for format in FORMATS),
    Breach(law_expected_messages_are_sent, "anthropic", drops_found_tools),
    Breach(law_thinking_stays_valid, "anthropic", ignores_binding),
    Breach(law_thinking_stays_valid, "anthropic", keeps_finished_thinking),
]


@pytest.mark.parametrize(
    "breach", BREACHES, ids=lambda breach: f"{breach.law.__name__}-{breach.send.__name__}-{breach.format}"
)
def test_a_law_detects_a_planted_breach(breach: Breach) -> None:
    def check() -> None:
        for number in range(BREACH_COUNT):
            breach.law(with_fold_by_hand(generate_history(breach.format, f"breach {number}")), breach.send)

    with pytest.raises(AssertionError):
        check()


# ---- bytes


@every_format
def test_bytes_before_the_first_changed_message_are_sent_again(format: Format) -> None:
    """When something folds for the first time, the form changes from the client's to ours, and the content does not."""
    for history in histories(format):
        before, was_changed, sent_before = b"", False, list[Any]()
        for count in lengths_to_check(history):
            projected, sent_now = body_projection(history, count), sent_messages(history, count)
            same = 0
            while same < len(sent_before) and sent_now[same] == sent_before[same]:
                same += 1
            if projected.changed and before and not was_changed:
                before = in_one_form(json.loads(before))
            if before and same:
                assert projected.body.startswith(start_of(before, history, same)), f"{history} at {count}"
            before, was_changed, sent_before = projected.body, projected.changed, sent_now


def in_one_form(request: object) -> bytes:
    """The JSON of a folded request."""
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()


def start_of(body: bytes, history: History, count: int) -> bytes:
    """The bytes of a request up to the end of its first messages. It is in our form, or in the client's as it came."""
    request, name = json.loads(body), LIST[history.format]
    if in_one_form(request) != body:
        return history.body_of(range(count)).removesuffix(history.tail)
    names = list(request)
    members = {each: request[each] for each in names[: names.index(name)]}
    return in_one_form(members | {name: request[name][:count]}).removesuffix(b"]}")


@every_format
def test_failed_calls_open_and_close_no_branches(format: Format) -> None:
    """If the return or fold of a history fails, the messages that it would have closed stay."""
    failures = 0
    for history in histories(format, irregular_chance=0.0):
        for closing in expected(history).closings:
            index = closing.closed_at
            messages = [*history.messages[:index], failed(history.messages[index], format)]
            sent = project(messages, format, binds_thinking=history.binds_thinking).messages
            assert sent[:-1] == sent_messages(history, index), f"{history} at {index}"
            assert sent[-1] is messages[-1]
            failures += 1
    assert failures > COUNT // 10


def with_results(
    message: dict[str, Any], format: Format, anthropic: dict[str, Any], gemini: dict[str, Any]
) -> dict[str, Any]:
    """The message with these members in each result of Anthropic, and this response in each of Gemini."""
    if format == "anthropic":
        blocks = [block | anthropic if block["type"] == "tool_result" else block for block in message["content"]]
        return {**message, "content": blocks}
    parts = [
        {"functionResponse": part["functionResponse"] | {"response": gemini}} if "functionResponse" in part else part
        for part in message["parts"]
    ]
    return {**message, "parts": parts}


def failed(message: dict[str, Any], format: Format) -> dict[str, Any]:
    """The same results as failures; they still name the branch."""
    text = json.dumps({"error": {"code": -32003, "data": json.loads(json.dumps(str(message)))}})
    if format in PARTS:
        return with_results(message, format, {"is_error": True}, {"error": text})
    name = "content" if format == "openai-chat" else "output"
    result_text = message[name] if isinstance(message[name], str) else message[name][0]["text"]
    return {**message, name: f'{{"error": {{"code": -32003, "message": "not active"}}, "was": {result_text}}}\n{text}'}


@every_format
def test_the_library_and_the_proxy_send_the_same(format: Format) -> None:
    for history in histories(format):
        body, listed = (
            body_projection(history),
            project(history.messages, format, binds_thinking=history.binds_thinking),
        )
        assert json.loads(body.body)[LIST[format]] == listed.messages, str(history)
        assert body.changed == listed.changed, str(history)
        body_receipt, list_receipt = body.receipt, listed.receipt
        assert (body_receipt.messages_before, body_receipt.messages_after) == (
            list_receipt.messages_before,
            list_receipt.messages_after,
        ), str(history)
        assert (body_receipt.turns_dropped, body_receipt.first_changed) == (
            list_receipt.turns_dropped,
            list_receipt.first_changed,
        ), str(history)
        assert (body_receipt.skipped, body_receipt.reason) == (list_receipt.skipped, list_receipt.reason), str(history)
        assert [(fold.branch_id, fold.first, fold.messages, fold.turns) for fold in body_receipt.folds] == [
            (fold.branch_id, fold.first, fold.messages, fold.turns) for fold in list_receipt.folds
        ], str(history)
        assert body.session_id == listed.session_id, str(history)
        assert body.outcomes == listed.outcomes, str(history)
        threads = [[(span.branch_id, span.places) for span in both.threads] for both in (body, listed)]
        assert threads[0] == threads[1], str(history)


def check_receipt(receipt: Receipt, replay: str) -> None:
    """Checks what must be true of every receipt."""
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
def test_the_receipt_describes_what_was_folded(format: Format) -> None:
    for history in histories(format):
        projected = body_projection(history)
        receipt = projected.receipt
        check_receipt(receipt, str(history))
        expectation, sent = expected(history), sent_messages(history)
        assert (receipt.messages_before, receipt.messages_after) == (len(history.messages), len(sent)), str(history)
        assert [(fold.branch_id, fold.first, fold.messages) for fold in receipt.folds] == [
            (closing.branch_id, left_out(history, closing)[0], len(left_out(history, closing)))
            for closing in expectation.folded
        ], str(history)
        if PNG not in str(history.messages) and not any(map(has_thinking, history.messages)):
            assert receipt.tokens_before == tokens(in_one_form(json.loads(history.body()))), str(history)
            if projected.changed:
                assert receipt.tokens_after == tokens(projected.body), str(history)
        same = 0
        while same < len(sent) and sent[same] == history.messages[same]:
            same += 1
        assert receipt.first_changed == (same if len(sent) < len(history.messages) or same < len(sent) else None), str(
            history
        )
        assert receipt.reason == (
            receipt.skipped[0].reason if receipt.skipped else "open_branch" if expectation.open else ""
        )


def tokens(body: bytes) -> int:
    return -(-len(body) // BYTES_PER_TOKEN)


@every_format
def test_the_projection_reports_the_open_branches_and_their_messages(format: Format) -> None:
    for history in histories(format):
        projected = body_projection(history)
        expectation = expected(history)
        assert [span.branch_id for span in projected.threads] == [None, *expectation.open], str(history)
        indexes = [index for span in projected.threads for index in span.places]
        assert len(set(indexes)) == len(indexes), f"{history}: a message in two threads"
        returned = {
            index
            for closing in expectation.folded
            if closing.kind == "return"
            for index in range(closing.first, closing.end)
        }
        assert not set(indexes) & returned, str(history)
        for span in projected.threads:
            assert list(span.places) == sorted(span.places)
            assert span.tokens >= 0
        total = sum(span.tokens for span in projected.threads)
        assert abs(total - projected.receipt.tokens_after) <= len(history.messages) + len(projected.threads), str(
            history
        )
        index = random.Random(history.seed).randrange(len(history.messages))
        assert json.loads(projected.encode_original(index)) == history.messages[index], str(history)
        assert projected.model == history.model
        assert projected.session_id != "sess_000000000000", f"{history}: a session of another server's tool"


@every_format
def test_messages_of_an_open_branch_are_not_changed(format: Format) -> None:
    opened = 0
    for history in histories(format):
        expectation = expected(history)
        sent = sent_by_library(history, len(history.messages))
        for index in expectation.opened_at:
            inside = {at for closing in expectation.closings for at in range(closing.first, closing.end)}
            own_messages = [history.messages[at] for at in range(index + 1, len(history.messages)) if at not in inside]
            bare = [message for message in own_messages if not has_thinking(message)]
            name = PARTS.get(format)
            # Texts of the user in a nested branch may follow the results of the call that opened that branch.
            beginnings = (
                [{**message, name: message[name][: len(each[name])]} for message in sent for each in bare]
                if name
                else []
            )
            assert all(message in sent or message in beginnings for message in bare), str(history)
            opened += 1
    assert opened
