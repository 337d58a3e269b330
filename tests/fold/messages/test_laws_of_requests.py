"""The laws of whole requests, for each of the four APIs: their bytes, receipts, remembered decisions and stubs.

As in `test_laws`, each law is a function of a projector, and it must detect a projector that breaks it.
"""

from __future__ import annotations

import hashlib
import json
import re
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
from contextfold.fold.messages.cold_results import NOTHING_REMEMBERED, THINKING_ID, hash_text
from contextfold.fold.messages.own_tools import remembered_id
from tests.fold.messages import hostile
from tests.fold.messages.expected import PARTS, THOUGHTS, expected, is_prompt, left_out, sent_messages
from tests.fold.messages.histories import LIST, Format, History, generate_history
from tests.fold.messages.scripts import ASKING_TOOLS
from tests.fold.messages.short_histories import model_turn, say, tool_results
from tests.fold.messages.test_laws import (
    BREACH_COUNT,
    COUNT,
    RULES,
    SEED,
    check_receipt,
    every_format,
    histories,
    in_one_form,
    lengths_to_check,
    result_texts,
    start_of,
    texts_of_results,
    user_texts,
    user_words_in,
    with_results,
)
from tests.support.machine import times

HOSTILE_COUNT = times(40, 20_000)
STUBS = ColdSettings(min_tokens=1, spared_turns=1, has_inputs=True)
CLEARED = "[cleared]"


class Projector:
    """The functions of the projection as they are. A planted breach overrides one of them."""

    def listed(
        self, history: History, messages: Sequence[Any], remembered: Remembered = NOTHING_REMEMBERED
    ) -> Projection:
        return project(messages, history.format, binds_thinking=history.binds_thinking, remembered=remembered)

    def body(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> BodyProjection:
        return project_body(body, format, remembered=remembered)

    def sent(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> bytes:
        return self.body(body, format, remembered).body

    def cold(
        self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED, first_place: int = 0
    ) -> list[ColdResult]:
        return self.body(body, format, remembered).cold_results(salt="s", settings=STUBS, first_place=first_place)


REAL_PROJECTOR = Projector()


# ---- the laws


def law_unchanged_content(history: History, projector: Projector) -> int:
    """Only the list changes, and the request is written in one form: the same content gives the same bytes."""
    body, format = history.body(), history.format
    sent = projector.sent(body, format)
    if sent == body:
        return 0
    members, remaining_messages = json.loads(body), sent_messages(history)
    assert json.loads(sent) == members | {LIST[format]: remaining_messages}, str(history)
    assert sent == in_one_form(members | {LIST[format]: remaining_messages}), str(history)
    first = projector.body(body, format).receipt.first_changed
    assert first is not None
    assert remaining_messages[:first] == members[LIST[format]][:first], f"{history}: the messages before the change"
    return 1


def law_every_skip_has_a_reason(history: History, projector: Projector) -> int:
    reported = 0
    for count in lengths_to_check(history):
        expectation = expected(history, count)
        receipt = projector.listed(history, history.messages[:count]).receipt
        if expectation.unfolded or expectation.open:
            assert receipt.reason, f"{history} at {count}: no reason"
            reported += 1
        reasons = {closing.branch_id: closing.reason for closing in reversed(receipt.skipped)}
        for closing in expectation.unfolded:
            assert closing.branch_id in reasons, f"{history} at {count}: {closing.branch_id} has no reason"
            assert (reasons[closing.branch_id] == "bound_thinking") == (closing.verdict == "wait"), (
                f"{history} at {count}"
            )
    return reported


def law_remembered_folds_stay(history: History, projector: Projector) -> int:
    """If a host masks results, what was remembered of them keeps the folds: the same messages are sent, but masked."""
    ids = [call.id for step in history.steps for call in step.calls]
    reuses_ids = history.format == "openai-chat" and "'call_0'" in str(history.messages)
    if reuses_ids or len(set(ids)) != len(ids):
        return 0
    whole = projector.listed(history, history.messages)
    remembered = Remembered(merged_outcomes({}, whole.outcomes))
    masked_messages = [
        masked(message, history.format, calls) for message, calls in zip(history.messages, history.results, strict=True)
    ]
    masked_projection = projector.listed(history, masked_messages, remembered)
    assert [fold.first for fold in masked_projection.receipt.folds] == [fold.first for fold in whole.receipt.folds], (
        str(history)
    )
    assert len(masked_projection.messages) == len(whole.messages), str(history)
    return len(masked_projection.receipt.folds)


def masked(message: dict[str, Any], format: Format, results: Sequence[tuple[int, Any]]) -> dict[str, Any]:
    if (
        "tool_reference" in str(message)
        or not results
        or any(call.failed for _, call in results)
        or any(map(user_words_in, result_texts(message)))
    ):
        return message
    if format in PARTS:
        return with_results(message, format, {"content": CLEARED}, {"output": CLEARED})
    return {**message, "content" if format == "openai-chat" else "output": CLEARED}


def law_stubs_are_stable(history: History, projector: Projector) -> int:
    """Results that were left out once stay left out, byte for byte, and their whole texts are stored."""
    format, lengths = history.format, lengths_to_check(history)
    remembered, left_out, before = NOTHING_REMEMBERED, list[ColdResult](), b""
    pause = lengths[len(lengths) // 2]
    counts = [*lengths[len(lengths) // 2 :][:3], lengths[-1]]
    for count in counts:
        body = history.body(count)
        if count in (pause, counts[-1]):
            new = projector.cold(body, format, remembered)
            _check_cold(history, count, new)
            left_out += new
            remembered = Remembered(results=by_call(tuple(each.decision for each in left_out)))
        plain, sent_body = project_body(body, format), projector.sent(body, format, remembered)
        plain_messages, remaining_messages = (json.loads(each)[LIST[format]] for each in (plain.body, sent_body))
        if RULES[format](json.loads(plain.body)) == []:
            assert RULES[format](json.loads(sent_body)) == [], f"{history} at {count}"
        assert list(user_texts(format, plain_messages)) == list(user_texts(format, remaining_messages)), (
            f"{history} at {count}"
        )
        assert projector.sent(sent_body, format, remembered) == sent_body, f"{history} at {count}: twice is not once"
        assert projector.cold(body, format, remembered) == [] or count not in (pause, counts[-1]), (
            f"{history} at {count}"
        )
        listed = projector.listed(history, history.messages[:count], remembered).messages
        assert listed == remaining_messages, f"{history} at {count}: library and proxy"
        folds = len(plain.receipt.folds) + len(plain.receipt.skipped)
        if before and count not in (pause, counts[-1]) and not folds:
            start = start_of(before, history, len(json.loads(before)[LIST[format]]))
            assert sent_body.startswith(start), f"{history} at {count}: bytes changed"
        before = sent_body
    stubs = {each.decision.stub for each in left_out}
    shown = [text for message in json.loads(before)[LIST[format]] for text in result_texts(message)]
    return sum(text in stubs for text in shown)


def law_nothing_warm_changes(history: History, projector: Projector) -> int:
    """Where the cache holds the first messages, these are sent as before."""
    format, body = history.format, history.body()
    plain = json.loads(projector.sent(body, format))[LIST[format]]
    place = len(history.messages) // 2
    cold = projector.cold(body, format, first_place=place)
    remembered = Remembered(results=by_call(tuple(each.decision for each in cold)))
    sent = json.loads(projector.sent(body, format, remembered))[LIST[format]]
    folded = {index for closing in expected(history).folded for index in left_out(history, closing)}
    warm = sum(index not in folded for index in range(place))
    if not history.binds_thinking:
        assert sent[:warm] == plain[:warm], str(history)
    return len(cold)


def _check_inputs(history: History, count: int, cold: Sequence[ColdResult]) -> set[str]:
    """Checks that texts of edits are only left out of finished turns, never of the newest edit; returns the texts."""
    prompt = max((index for index in range(count) if is_prompt(history, index)), default=0)
    turns = [step for number, step in enumerate(history.steps) if step.calls and number in history.step_indexes[:count]]
    # OpenAI's results do not say whether a call failed.
    has_failures = history.format in PARTS
    edits = [
        call for step in turns for call in step.calls if call.name == "Edit" and not (call.failed and has_failures)
    ]
    newest = {call.arguments["file_path"]: call.arguments["new_string"] for call in edits}
    texts = {call.arguments["new_string"] for call in edits}
    for result in cold:
        if result.text in texts:
            assert result.text not in newest.values(), f"{history} at {count}: the newest edit"
            running = json.dumps(history.messages[prompt:count])
            assert json.dumps(result.text)[1:-1] not in running.replace("\\\\", "\\"), f"{history} at {count}: it runs"
    return texts


def _check_thinking(history: History, count: int, cold: Sequence[ColdResult]) -> None:
    """Checks that thinking is left out of finished turns only, and that its text is kept."""
    prompt = max((index for index in range(count) if is_prompt(history, index)), default=0)
    texts = {}
    for message in history.messages[:prompt]:
        content = message.get("content")
        thoughts = [block for block in content if block.get("type") in THOUGHTS] if isinstance(content, list) else []
        text_hash = hashlib.sha256(in_one_form(thoughts)).hexdigest()
        texts[text_hash] = "\n".join(block["thinking"] for block in thoughts if "thinking" in block)
    for result in cold:
        if result.decision.call_id == THINKING_ID:
            assert texts.get(result.decision.text_hash) == result.text, f"{history} at {count}: running, or changed"


def _check_cold(history: History, count: int, cold: Sequence[ColdResult]) -> None:
    """Checks that whole results of other tools are left out, and none of failures or of the last turn."""
    _check_thinking(history, count, cold)
    inputs = _check_inputs(history, count, cold)
    cold = [result for result in cold if result.text not in inputs and result.decision.call_id != THINKING_ID]
    # A tool of the API itself that the client runs is a turn, too.
    done = [step for number, step in enumerate(history.steps) if number in history.step_indexes[:count]]
    turns = [step for step in done if step.calls or step.kind == "hosted"]
    texts = {"\n".join(texts) for message in history.messages[:count] for texts in texts_of_results(message)}
    last = {call.id for call in turns[-1].calls} if turns else set()
    allowed = [call for step in turns for call in step.calls if call.kind == "work" and "context_" not in call.name]
    for result in cold:
        assert result.text in texts, f"{history} at {count}: not the text"
        if history.format in ("openai-chat", "gemini"):
            # Call ids may be used again, be numbers or be missing, so they do not identify a call.
            continue
        prefix = "toolu_" if history.format == "anthropic" else "call_"
        calls = [call for call in allowed if remembered_id(f"{prefix}{call.id}") == result.decision.call_id]
        assert len(calls) == 1, f"{history} at {count}: of our own tools"
        assert calls[0].id not in last, f"{history} at {count}: of the last turn"
        assert not calls[0].failed or history.format == "openai-responses", f"{history} at {count}: an error"


LAWS = (
    *(law_unchanged_content, law_every_skip_has_a_reason, law_remembered_folds_stay, law_stubs_are_stable),
    law_nothing_warm_changes,
)


@every_format
def test_the_projection_obeys_every_law_of_requests(format: Format) -> None:
    obeyed: Counter[str] = Counter()
    for history in histories(format):
        for law in LAWS:
            obeyed[law.__name__] += law(history, REAL_PROJECTOR)
    assert min(obeyed.values()) > COUNT // 10, obeyed


def law_hostile_requests_pass(format: Format, seed: str, projector: Projector) -> int:
    """A hostile request raises no error, is not broken further, and passes as the same bytes if nothing was folded."""
    body = hostile.request(format, seed)
    replay = f"messages.hostile.request({format!r}, {seed!r})"
    projected = projector.body(body, format)
    check_receipt(projected.receipt, replay)
    members = parsed_strictly(body)
    if work := projected.find_work():
        by_hand = Remembered(results=by_call((work.decide("br_1", "Done."),)))
        assert not projector.body(body, format, by_hand).receipt.folds[len(projected.receipt.folds) :], replay
    listed = members.get(LIST[format]) if isinstance(members, dict) else None
    if members is not None:
        # The library must not raise an error either.
        project(listed if listed is not None else members, format)
    if not projected.changed:
        assert projected.body is body, replay
        return 0
    assert isinstance(members, dict), f"{replay}: changed, though it is not JSON"
    assert isinstance(listed, list)
    expected_messages = project(listed, format, model="m-1", tools=members.get("tools")).messages
    assert parsed_strictly(projected.body) == members | {LIST[format]: expected_messages}, replay
    if not RULES[format](members):
        assert RULES[format](json.loads(projected.body)) == [], replay
    # A message with only thinking delays an earlier fold. If a later fold removes it, the earlier one can be made.
    if not any(map(has_only_thinking, listed)):
        assert projector.body(projected.body, format).body is projected.body, f"{replay}: twice is not once"
    return 1


def has_only_thinking(message: object) -> bool:
    blocks = message.get("content") if isinstance(message, dict) else None
    kinds = [isinstance(each, dict) and each.get("type") for each in blocks] if isinstance(blocks, list) else []
    return bool(kinds) and all(kind in ("thinking", "redacted_thinking") for kind in kinds)


def parsed_strictly(body: bytes) -> Any:
    """The value of strict JSON (UTF-8, no duplicate names in an object), or None."""

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) != len(pairs):
            raise ValueError("a name twice")
        return dict(pairs)

    def number(text: str) -> int:
        return int(text) if len(text) < 4000 else 0

    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=without_duplicates, parse_int=number)
    except (ValueError, RecursionError):
        return None


@every_format
def test_hostile_requests_never_raise_and_stay_valid(format: Format) -> None:
    changed = sum(
        law_hostile_requests_pass(format, f"{SEED}-{number}", REAL_PROJECTOR) for number in range(HOSTILE_COUNT)
    )
    assert changed > HOSTILE_COUNT // 20


# ---- planted breaches: each law must detect its own


class WritesAsTheClient(Projector):
    """Writes a folded request with the client's spaces, so that its bytes depend on more than its content."""

    def sent(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> bytes:
        projected = self.body(body, format, remembered)
        separators = (", ", ": ") if b", " in body else (",", ":")
        return json.dumps(json.loads(projected.body), ensure_ascii=False, separators=separators).encode()


class SortsMembers(Projector):
    def sent(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> bytes:
        projected = self.body(body, format, remembered)
        members = dict(sorted(json.loads(projected.body).items()))
        return in_one_form(members) if projected.changed else body


class GivesNoReason(Projector):
    def listed(
        self, history: History, messages: Sequence[Any], remembered: Remembered = NOTHING_REMEMBERED
    ) -> Projection:
        projected = super().listed(history, messages, remembered)
        return replace(projected, receipt=replace(projected.receipt, reason="", skipped=()))


class ReportsOnlyTheFirstSkip(Projector):
    def listed(
        self, history: History, messages: Sequence[Any], remembered: Remembered = NOTHING_REMEMBERED
    ) -> Projection:
        projected = super().listed(history, messages, remembered)
        return replace(projected, receipt=replace(projected.receipt, skipped=projected.receipt.skipped[:1]))


class Forgets(Projector):
    """Forgets what was decided or read in earlier requests."""

    def listed(
        self, history: History, messages: Sequence[Any], remembered: Remembered = NOTHING_REMEMBERED
    ) -> Projection:
        return super().listed(history, messages)

    def body(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> BodyProjection:
        return super().body(body, format)


class ChangesStubs(Projector):
    """Writes the length of the request into each stub, so that stubs change."""

    def sent(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> bytes:
        return super().sent(body, format, remembered).replace(b"left out after", b"left out %d after" % len(body))


class LeavesOutAnyResult(Projector):
    """Leaves out any result with a text, also failures, results of our tools and those of the last turn."""

    def cold(
        self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED, first_place: int = 0
    ) -> list[ColdResult]:
        clean = body.replace(b"context_", b"tool_").replace(b'"is_error": true', b'"is_error":false')
        return project_body(clean, format).cold_results(salt="s", settings=replace(STUBS, spared_turns=0))


class LeavesOutTheUsersWords(Projector):
    """Recognises no result with the user's words."""

    def cold(
        self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED, first_place: int = 0
    ) -> list[ColdResult]:
        unknown = re.sub("|".join(ASKING_TOOLS).encode(), b"Bash", body).replace(b"ser", b"s_r")
        left_out = project_body(unknown, format).cold_results(salt="s", settings=STUBS, first_place=first_place)
        return [_with_text(each, each.text.replace("s_r", "ser")) for each in left_out]


def _with_text(cold: ColdResult, text: str) -> ColdResult:
    return cold._replace(text=text, decision=cold.decision._replace(text_hash=hash_text(text)))


class StoresHalfTexts(Projector):
    def cold(
        self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED, first_place: int = 0
    ) -> list[ColdResult]:
        left_out = super().cold(body, format, remembered, first_place)
        return [each._replace(text=each.text[: len(each.text) // 2]) for each in left_out]


class ChangesWhatIsWarm(Projector):
    def cold(
        self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED, first_place: int = 0
    ) -> list[ColdResult]:
        return super().cold(body, format, remembered)


class TouchesTheRunningLoop(Projector):
    """Decides as if the user had spoken and the model had worked since."""

    def cold(
        self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED, first_place: int = 0
    ) -> list[ColdResult]:
        request = json.loads(body)
        request[LIST[format]] += [*model_turn(format, text="Done."), *say("go on", format)]
        for number in range(3):
            request[LIST[format]] += model_turn(format, (f"later{number}", "Bash"))
            request[LIST[format]] += tool_results(format, (f"later{number}", "done"))
        later = super().cold(in_one_form(request), format, remembered, first_place)
        return [each for each in later if "later" not in each.decision.call_id]


@dataclass(frozen=True, slots=True)
class PlantedBreach:
    law: Callable[[History, Projector], int]
    projector: Projector


BREACHES = [
    PlantedBreach(law_unchanged_content, WritesAsTheClient()),
    PlantedBreach(law_unchanged_content, SortsMembers()),
    PlantedBreach(law_every_skip_has_a_reason, GivesNoReason()),
    PlantedBreach(law_every_skip_has_a_reason, ReportsOnlyTheFirstSkip()),
    PlantedBreach(law_remembered_folds_stay, Forgets()),
    PlantedBreach(law_stubs_are_stable, Forgets()),
    PlantedBreach(law_stubs_are_stable, ChangesStubs()),
    PlantedBreach(law_stubs_are_stable, LeavesOutAnyResult()),
    PlantedBreach(law_stubs_are_stable, LeavesOutTheUsersWords()),
    PlantedBreach(law_stubs_are_stable, StoresHalfTexts()),
    PlantedBreach(law_stubs_are_stable, TouchesTheRunningLoop()),
    PlantedBreach(law_nothing_warm_changes, ChangesWhatIsWarm()),
]


@every_format
@pytest.mark.parametrize("breach", BREACHES, ids=lambda each: f"{each.law.__name__}-{type(each.projector).__name__}")
def test_a_law_of_requests_detects_a_planted_breach(breach: PlantedBreach, format: Format) -> None:
    def check() -> None:
        for number in range(BREACH_COUNT):
            breach.law(generate_history(format, f"breach {number}"), breach.projector)

    with pytest.raises(AssertionError):
        check()


def test_the_law_of_thinking_detects_thinking_of_the_running_loop() -> None:
    """The law of stubs checks thinking, too; only Anthropic's messages have some that may be left out."""

    def check() -> None:
        for number in range(BREACH_COUNT):
            history = generate_history("anthropic", f"breach {number}")
            body = json.loads(history.body())
            body["messages"] += [*model_turn("anthropic", text="Done."), *say("go on")]
            later = project_body(in_one_form(body), "anthropic").cold_results(salt="s", settings=STUBS)
            thinking = [each for each in later if each.decision.call_id == THINKING_ID]
            _check_thinking(history, len(history.messages), thinking)

    with pytest.raises(AssertionError, match="running, or changed"):
        check()


def test_the_law_of_edits_detects_that_the_newest_is_left_out() -> None:
    """As if both files had been edited once more."""

    def check() -> None:
        for number in range(BREACH_COUNT):
            history = generate_history("anthropic", f"breach {number}")
            body = json.loads(history.body())
            for path in ("a.py", "b.py"):
                edit = {"type": "tool_use", "id": path, "name": "Edit", "input": {"file_path": path}}
                body["messages"].append({"role": "assistant", "content": [edit]})
                body["messages"] += tool_results("anthropic", (path, "done"))
            later = project_body(in_one_form(body), "anthropic").cold_results(salt="s", settings=STUBS)
            _check_inputs(history, len(history.messages), later)

    with pytest.raises(AssertionError, match="the newest edit"):
        check()


class DropsTheLastMessage(Projector):
    """Drops one more message if something was folded, so that calls lose their results."""

    def body(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> BodyProjection:
        projected = super().body(body, format, remembered)
        if not projected.changed:
            return projected
        request = json.loads(projected.body)
        return replace(projected, body=in_one_form(request | {LIST[format]: request[LIST[format]][:-1]}))


class CopiesUnchangedBodies(Projector):
    def body(self, body: bytes, format: Format, remembered: Remembered = NOTHING_REMEMBERED) -> BodyProjection:
        projected = super().body(body, format, remembered)
        return projected if projected.changed else replace(projected, body=bytes(bytearray(body)))


@every_format
@pytest.mark.parametrize(
    "projector", [DropsTheLastMessage(), CopiesUnchangedBodies()], ids=lambda each: type(each).__name__
)
def test_a_planted_breach_for_hostile_requests_is_detected(projector: Projector, format: Format) -> None:
    def check() -> None:
        for number in range(BREACH_COUNT):
            law_hostile_requests_pass(format, f"breach {number}", projector)

    with pytest.raises(AssertionError):
        check()
