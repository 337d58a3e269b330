"""The differences that folding itself makes are known as folds and left-out results; any other one is a bug."""

from __future__ import annotations

import json
import random

import pytest

from contextfold.fold.events import MissCause
from contextfold.fold.messages import (
    BodyProjection,
    Remembered,
    by_call,
    merged_outcomes,
    parse_request,
    project_request,
)
from contextfold.fold.messages.cold_results import hash_text, list_results, stub_of
from contextfold.fold.messages.own_tools import may_be_ours, remembered_id
from contextfold.fold.messages.prefix_miss import compare_with, find_before
from contextfold.fold.messages.sent_prefix import Fingerprint, SentPrefix, read_prefix
from contextfold.fold.store import LeftOutDecision
from tests.fold.messages.histories import Format, History, generate_history
from tests.fold.messages.test_laws import every_format, lengths_to_check
from tests.support.machine import times

COUNT = times(16, 2_000)
MODEL = "m"
MIB = 1 << 20
# Results are left out at about one request in this many, as after a pause.
PAUSE_EVERY = 5


def leave_out(projection: BodyProjection, known: tuple[LeftOutDecision, ...]) -> tuple[LeftOutDecision, ...]:
    """Decisions to leave out all results of an earlier turn, however short they are."""
    seen = list_results(projection.details.facts)[:-1] if not projection.details.binds_thinking else ()
    gone = {(each.call_id, each.text_hash) for each in known}
    decisions = []
    for each in seen:
        key = remembered_id(each.call_id), hash_text(each.text or "")
        if each.text and not each.failed and not may_be_ours(each.tool) and key not in gone:
            result_id = f"res_{hash_text(each.call_id + each.text)[:20]}"
            stub = stub_of(result_id, each.tool, each.arguments, 1)
            decisions.append(LeftOutDecision(*key, result_id, stub, tokens=1, messages=projection.details.walk.count))
    return tuple(decisions)


def causes_of(history: History, *, forgets: bool = False) -> list[str]:
    """The causes of differences in all requests of a conversation. With `forgets`, left-out results come back."""
    dice = random.Random(str(history))
    sent: list[SentPrefix] = []
    results: tuple[LeftOutDecision, ...] = ()
    remembered = Remembered()
    causes: list[str] = []
    for count in lengths_to_check(history):
        parsed = parse_request(history.body(count), history.format)
        projection = project_request(parsed, model=MODEL, remembered=remembered)
        if dice.randrange(PAUSE_EVERY) == 0:
            results += leave_out(projection, results)
            remembered = Remembered(remembered.outcomes, by_call(results))
            projection = project_request(parsed, model=MODEL, remembered=remembered)
            results = () if forgets else results
        remembered = Remembered(merged_outcomes(remembered.outcomes, projection.outcomes), by_call(results))
        prefix = read_prefix(projection)
        before = find_before(prefix, sent)
        causes += [compare_with(projection, prefix, before).cause] if before else []
        sent.append(prefix)
    return causes


def generate(format: Format) -> list[History]:
    """Histories of clients whose calls have ids of their own; with others, what was folded cannot be remembered."""
    histories = [generate_history(format, f"miss-{number}") for number in range(COUNT)]
    return [history for history in histories if not reuses_ids(history)]


def reuses_ids(history: History) -> bool:
    # Some servers number the calls of each turn from the beginning again.
    if history.format == "openai-chat" and "'call_0'" in str(history.messages):
        return True
    ids = [call.id for step in history.steps for call in step.calls]
    return len(set(ids)) < len(ids)


@every_format
def test_every_difference_of_ours_is_explained(format: Format) -> None:
    causes = {cause for history in generate(format) for cause in causes_of(history)}
    assert causes <= {"", MissCause.FOLD, MissCause.LEFT_OUT}
    assert {MissCause.FOLD, MissCause.LEFT_OUT} <= causes


@every_format
def test_a_left_out_result_that_comes_back_is_a_bug(format: Format) -> None:
    assert MissCause.OURS in {cause for history in generate(format) for cause in causes_of(history, forgets=True)}


def read_given(content: str) -> Fingerprint:
    """The fingerprint of a user's message."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]}).encode()
    return read_prefix(project_request(parse_request(body, "anthropic"), model=MODEL)).given[0]


def test_a_reminder_and_the_line_feeds_around_it_do_not_count_as_the_message() -> None:
    reminder, other = "<system-reminder>a\nb</system-reminder>", "<system_reminder>c</system_reminder>"
    plain = read_given("So.")
    for content in (f"So.\n\n{reminder}\n", f"{reminder}\n{other}\nSo.", f"{other}So.{reminder}{reminder}"):
        fingerprint = read_given(content)
        assert fingerprint.cached != plain.cached
        assert fingerprint.without_reminders == plain.without_reminders
    assert read_given(f"{reminder}\n{other}").without_reminders is None
    for whole in ("<system-reminder>So.", "So.</system-reminder>", "<system-reminder>So.</system_reminder>"):
        fingerprint = read_given(whole)
        assert fingerprint.without_reminders == fingerprint.cached


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", ["\n", "<system-reminder>", "\n<system-reminder></system_reminder>", "</system-reminder>"]
)
def test_a_message_of_a_megabyte_of_line_feeds_or_tags_is_read_in_linear_time(text: str) -> None:
    content = text * (MIB // len(text))
    # Quadratic time would take from minutes to hours here, and reach the limit on the test's time.
    fingerprint = read_given(content)
    assert fingerprint.without_reminders == fingerprint.cached
