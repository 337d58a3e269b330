"""A batch of results that the cache still holds is left out only if that pays, as a sum over the next requests says."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from contextfold.fold.messages import Projection, Remembered, by_call, project
from contextfold.fold.messages.batches import BATCH_MIN_TOKENS, EXPECTED_REQUESTS_MAX, MARGIN, choose_batch
from contextfold.fold.messages.cold_results import BATCHES, ColdResult
from contextfold.fold.model_catalog import RELATIVE_PRICES
from tests.fold.messages.short_histories import Message, model_turn, say, tool_results
from tests.support.machine import times

COUNT = times(12, 2_000)
HOUR_S = 3_600.0
# What a token that is written for an hour, or read, costs in input tokens.
WRITTEN, READ = 2.0, 0.1

Choose = Callable[[Projection], list[ColdResult]]


def choose(projection: Projection) -> list[ColdResult]:
    return choose_batch(projection, RELATIVE_PRICES, BATCHES, salt="s", life_s=HOUR_S)


def make_history(seed: int) -> list[Message]:
    rng = random.Random(seed)
    messages = say("go")
    for number in range(rng.choice([10, 40, 90])):
        size = rng.choice([100, 2_000, 9_000, 30_000])
        messages += model_turn("anthropic", (f"call{number}", "Read"))
        messages += tool_results("anthropic", (f"call{number}", f"{number} " + "x" * size))
    return messages


def law_a_batch_pays(seed: int, choose: Choose) -> int:
    """With a batch, the next requests of a conversation that has an eighth as many still to come cost no more."""
    messages = make_history(seed)
    whole = project(messages, "anthropic", model="claude-opus-4-5")
    batch = choose(whole)
    if not batch:
        return 0
    remembered = Remembered(results=by_call(tuple(each.decision for each in batch)))
    shorter = project(messages, "anthropic", model="claude-opus-4-5", remembered=remembered)
    before, after = (sum(each.details.sent_weights) / 4 for each in (whole, shorter))
    assert before - after >= BATCH_MIN_TOKENS
    first = shorter.receipt.first_changed
    kept = sum(shorter.details.sent_weights[:first]) / 4
    further = min(len(whole.details.walk.turns), EXPECTED_REQUESTS_MAX) / MARGIN
    with_batch = READ * kept + WRITTEN * (after - kept) + READ * after * further
    assert with_batch <= READ * before * (1 + further), f"seed {seed}"
    return 1


def test_a_batch_pays_and_leaves_out_much() -> None:
    assert sum(law_a_batch_pays(seed, choose) for seed in range(COUNT)) > COUNT // 10


def leave_out_all(projection: Projection) -> list[ColdResult]:
    return projection.cold_results(salt="s", settings=BATCHES)


def leave_out_little(projection: Projection) -> list[ColdResult]:
    return choose(projection)[:2]


@pytest.mark.parametrize("breach", [leave_out_all, leave_out_little])
def test_the_law_detects_a_planted_breach(breach: Choose) -> None:
    def check() -> None:
        for seed in range(COUNT):
            law_a_batch_pays(seed, breach)

    with pytest.raises(AssertionError):
        check()
