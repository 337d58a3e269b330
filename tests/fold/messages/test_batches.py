"""What a cache still holds is left out only if that pays, as a sum over the next requests says."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from contextfold.fold.messages import Projection, Remembered, by_call, project
from contextfold.fold.messages.batches import (
    BATCH_MIN_TOKENS,
    EXPECTED_REQUESTS_MAX,
    MARGIN,
    choose_batch,
    pays_if_undone,
)
from contextfold.fold.messages.cold_results import AUTO, BATCHES, ColdResult
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
    further = min(len(whole.details.walk.turns), EXPECTED_REQUESTS_MAX) / MARGIN
    with_batch = WRITTEN * after + READ * after * further
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


def pays(projection: Projection, cold: list[ColdResult]) -> bool:
    return pays_if_undone(projection, cold, RELATIVE_PRICES, [RELATIVE_PRICES], life_s=HOUR_S)


def law_another_model_and_back_cost_no_more(seed: int, decide: Callable[[Projection, list[ColdResult]], bool]) -> int:
    """A request to another model, which writes all, and the next to the one before, which has the whole results."""
    messages = make_history(seed)
    whole = project(messages, "anthropic", model="claude-opus-4-5")
    cold = whole.cold_results(salt="s", settings=AUTO, first_place=random.Random(seed).choice([0, len(messages) // 2]))
    if not cold or not decide(whole, cold):
        return 0
    remembered = Remembered(results=by_call(tuple(each.decision for each in cold)))
    shorter = project(messages, "anthropic", model="claude-opus-4-5", remembered=remembered)
    before, after = (sum(each.details.sent_weights) / 4 for each in (whole, shorter))
    # Estimates of single results are rounded up.
    assert 2 * WRITTEN * after <= (WRITTEN + READ) * before + len(cold), f"seed {seed}"
    return 1


def test_leaving_out_for_another_model_costs_nothing_even_if_the_one_before_is_next() -> None:
    assert sum(law_another_model_and_back_cost_no_more(seed, pays) for seed in range(COUNT)) > COUNT // 10


def test_the_law_of_another_model_detects_a_planted_breach() -> None:
    def check() -> None:
        for seed in range(COUNT):
            law_another_model_and_back_cost_no_more(seed, lambda projection, cold: True)

    with pytest.raises(AssertionError):
        check()
