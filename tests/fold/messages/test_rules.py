"""The validators and the generated histories, checked with each other: valid requests pass, broken ones do not."""

from __future__ import annotations

import json

from tests.fold.messages.expected import FOLD, KEEP, WAIT, expected, left_out
from tests.fold.messages.histories import Format, generate_history
from tests.fold.messages.test_laws import RULES, every_format
from tests.support.machine import times

COUNT = times(25, 2000)


@every_format
def test_every_history_is_a_valid_request(format: Format) -> None:
    for number in range(COUNT):
        history = generate_history(format, f"valid {number}")
        assert RULES[format](json.loads(history.body())) == [], str(history)


@every_format
def test_histories_contain_every_case_of_the_laws(format: Format) -> None:
    counts = dict.fromkeys(("branches", "folds", "nested", "shared", "open", "failed", "forced", "words", "stay"), 0)
    for number in range(150):
        history = generate_history(format, f"rich {number}")
        expectation = expected(history)
        folded = [closing for closing in expectation.closings if closing.verdict == FOLD]
        counts["branches"] += sum(closing.kind == "return" for closing in folded)
        counts["folds"] += sum(closing.kind == "fold" for closing in folded)
        counts["nested"] += sum(other.contains(closing) for closing in folded for other in folded)
        counts["shared"] += sum(
            len(history.steps[history.step_indexes[closing.closed_at]].calls) > 1 for closing in folded
        )
        counts["open"] += len(expectation.open)
        calls = [call for step in history.steps for call in step.calls]
        counts["failed"] += sum(call.failed and call.kind != "work" for call in calls)
        opened = sum(call.kind == "branch" and not call.failed for call in calls)
        counts["forced"] += (
            opened - sum(closing.kind == "return" for closing in expectation.closings) - len(expectation.open)
        )
        inside = {index for closing in expectation.folded for index in range(closing.first, closing.end)}
        counts["words"] += sum(bool(history.user_texts[index]) for index in inside)
        counts["stay"] += sum(closing.verdict in (KEEP, WAIT) for closing in expectation.closings)
        assert all(left_out(history, closing) for closing in folded)
    assert min(counts.values()) >= 10, counts


@every_format
def test_a_history_without_one_result_breaks_a_rule(format: Format) -> None:
    for number in range(COUNT // 5):
        history = generate_history(format, f"result {number}")
        for index, results in enumerate(history.results):
            if results:
                remaining = [other_index for other_index in range(len(history.texts)) if other_index != index]
                assert RULES[format](json.loads(history.body_of(remaining))), f"{history} without {index}"
