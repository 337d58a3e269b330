"""The ledger: what requests cost, what they would have cost without us, and which folds did not pay."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cache_simulation import random_shape, read_shapes
from bench.ledger import OFF_MAX, SHAPES, WAYS, compared
from contextfold.common.canonical import encode
from contextfold.fold.events import BranchCreated, Event, FoldSeen, RequestSent, from_json, to_json
from contextfold.fold.ledger import SavingsLedger, ledger_of
from contextfold.fold.model_catalog import MODELS, LedgerPrices, ModelsInvalid, parse_models, plain_name
from contextfold.fold.sent_request import Usage, was_warm
from contextfold.fold.service.session_views import ledger_result
from tests.support.machine import times

AT = "2026-01-17T10:30:00Z"


def request(
    n: int,
    before: int,
    after: int | None = None,
    usage: Usage | None = None,
    *folds: FoldSeen,
    reason: str = "",
    model: str = "m",
    at: str = AT,
) -> RequestSent:
    """A request. Without `after`, nothing was folded."""
    return RequestSent(
        n,
        at,
        api="anthropic",
        model=model,
        tokens_before=before,
        tokens_after=before if after is None else after,
        turns_dropped=0,
        first_changed=None,
        reason=reason,
        input_tokens=usage.input_tokens if usage else None,
        cache_read_tokens=usage.cache_read_tokens if usage else None,
        cache_write_tokens=usage.cache_write_tokens if usage else None,
        output_tokens=usage.output_tokens if usage else None,
        call_id=f"c{n}",
        folds=folds,
    )


def cached(read: int, written: int, output: int = 0) -> Usage:
    """The usage of a provider that writes to its cache whatever it did not find there."""
    return Usage(0, read, written, output)


def costs(ledger: SavingsLedger) -> tuple[int, int]:
    return ledger.sums.cost_sent, ledger.sums.cost_without


FOLDED = (
    request(1, 5_000, None, cached(0, 5_000)),
    request(2, 9_000, None, cached(5_000, 4_000)),
    request(3, 9_100, 5_100, cached(5_000, 100), FoldSeen("br_a", 4_000, 5_000)),
    request(4, 9_300, 5_300, cached(5_100, 200)),
    request(5, 9_500, 5_500, cached(5_300, 200)),
)


def test_without_requests_there_is_nothing_to_compare() -> None:
    ledger = ledger_of([BranchCreated(1, AT, "br_a", None, "d", "p", 1, 0)])
    assert (ledger.sums.requests, *costs(ledger)) == (0, 0, 0)
    assert ledger_result(ledger)["money"] is None


def test_without_folds_and_without_our_tools_both_cost_the_same() -> None:
    usages = [cached(0, 5_000, 100), cached(5_000, 300, 20), cached(0, 5_600, 7), cached(5_100, 700, 1)]
    ledger = ledger_of(request(n, 5_000 + 300 * n, None, usage) for n, usage in enumerate(usages, 1))
    assert ledger.sums.cost_saved == 0


def test_a_fold_saves_the_tokens_that_would_have_been_read_again() -> None:
    sent, without = costs(ledger_of(FOLDED))
    assert without - sent == 3 * 4_000 * 10


def test_tokens_that_our_tools_add_to_requests_are_counted_as_a_loss() -> None:
    events = [event._replace(our_tokens=850) for event in (request(1, 5_000, None, cached(0, 5_000)),)]
    sent, without = costs(ledger_of(events))
    assert sent - without == 850 * 125


def test_a_request_that_only_called_our_tools_would_not_have_been_made() -> None:
    first = request(1, 5_000, None, cached(0, 5_000, 50))
    tool_request = request(2, 6_000, None, cached(5_000, 1_000, 300))._replace(only_ours=True, our_output_tokens=300)
    after = request(3, 6_500, None, cached(6_000, 500, 80))._replace(our_tokens=500)
    ledger = ledger_of([first, tool_request, after])
    assert ledger.sums.extra_requests == 1
    assert ledger.sums.output_tokens_without == 130
    # Without us there are two requests, and the second one writes the 1,000 new tokens.
    assert ledger.sums.cost_without == 5_000 * 125 + 50 * 500 + 5_000 * 10 + 1_000 * 125 + 80 * 500


def test_a_title_that_the_same_model_is_asked_for_in_between_changes_no_saving() -> None:
    with_tools = [event._replace(has_tools=True) for event in FOLDED]
    title = request(6, 300, None, cached(0, 300))
    sent, without = costs(ledger_of([*with_tools[:4], title, with_tools[4]]))
    assert without - sent == 3 * 4_000 * 10


def test_after_a_pause_the_cache_is_also_cold_for_the_run_without_us() -> None:
    later = request(3, 9_100, 5_100, cached(0, 5_100), at="2026-01-17T12:30:00Z")
    events = [*FOLDED[:2], later._replace(kept_tokens=5_000, results_dropped=3)]
    ledger = ledger_of(events)
    assert ledger.sums.cost_saved == 4_000 * 125
    assert ledger.results_dropped == 3


def test_a_prefix_that_was_still_warm_is_not_counted_as_saved() -> None:
    later = request(3, 9_100, 5_100, cached(4_900, 200), at="2026-01-17T12:30:00Z")
    ledger = ledger_of([*FOLDED[:2], later._replace(kept_tokens=5_000)])
    assert ledger.sums.cost_without == ledger_of(FOLDED[:2]).sums.cost_without + 9_000 * 10 + 100 * 125


def test_a_run_without_us_does_not_shrink_when_the_mark_for_the_cache_moves_onto_our_result() -> None:
    """Our part seems to grow by a few tokens more than the request."""
    again = request(3, 9_060, 5_060, cached(5_000, 60), FoldSeen("br_a", 4_000, 5_000))._replace(our_tokens=80)
    before = ledger_of(FOLDED[:2]).sums.cost_without
    assert ledger_of([*FOLDED[:2], again]).sums.cost_without == pytest.approx(before + 9_000 * 10, rel=0.01)


def test_what_a_fork_has_left_out_from_its_beginning_is_counted_as_results_of_tools() -> None:
    """Its first request is the first of a session: only the estimate says what is not in it."""
    first = request(1, 20_000, 10_000, cached(9_900, 100))
    # As many tokens as the rest would have by its bytes, and a sixth more.
    assert ledger_of([first]).sums.tokens_without == 10_000 + 11_500
    assert ledger_of([first, request(2, 20_400, 10_400, cached(10_000, 400))]).points[-1].without == 21_900


def test_what_other_conversations_share_is_not_a_warm_prefix() -> None:
    """The first request has read 3,000 tokens that others wrote. After a loss the same are read, and no more."""
    first, *folded = FOLDED
    first = first._replace(cache_read_tokens=3_000, cache_write_tokens=2_000)
    lost = request(6, 9_600, 5_600, cached(3_000, 2_600))
    without = ledger_of([first, *folded, lost]).sums.cost_without - ledger_of([first, *folded]).sums.cost_without
    assert without == 3_000 * 10 + 6_600 * 125


def test_what_is_lost_behind_a_fold_would_have_been_lost_without_it_too() -> None:
    requests = [
        request(1, 12_000, None, cached(10_000, 2_000)),
        request(2, 15_000, None, cached(12_000, 3_000)),
        request(3, 15_200, 12_200, cached(12_000, 200), FoldSeen("br_a", 3_000, 12_000)),
        request(4, 18_400, 15_400, cached(12_200, 3_200)),
        # The host has changed its last message. Most of what is the conversation's own is written again.
        request(5, 21_600, 18_600, cached(12_300, 6_300)),
    ]
    assert ledger_of(requests).sums.cost_saved == 3 * 3_000 * 10


def test_a_prompt_that_was_still_cached_is_counted_and_extends_the_assumed_cache_lifetime() -> None:
    """The second pause is shorter. Its usage cannot show that the prompt was cached, because results were left out."""
    warm = request(3, 9_100, None, cached(9_000, 100), at="2026-01-17T10:40:00Z")._replace(warm_after_s=600)
    shortened = request(4, 9_200, 5_200, cached(1_000, 4_200), at="2026-01-17T10:49:00Z")._replace(kept_tokens=5_000)
    ledger = ledger_of([*FOLDED[:2], warm, shortened])
    assert ledger.sums.warm_requests == 1
    assert ledger.sums.cost_without == ledger_of([*FOLDED[:2], warm]).sums.cost_without + 9_100 * 10 + 100 * 125
    unknown = ledger_of([*FOLDED[:2], warm._replace(warm_after_s=0), shortened])
    assert unknown.sums.cost_without > ledger.sums.cost_without


@pytest.mark.parametrize(("read", "is_warm"), [(23_100, True), (21_500, False), (0, False)])
def test_only_a_cache_read_beyond_the_opening_shows_a_warm_conversation(read: int, is_warm: bool) -> None:
    assert was_warm(cached(read, 40_000 - read), 41_600, 21_000) is is_warm


def test_one_hour_writes_are_priced_as_such() -> None:
    event = request(1, 5_000, None, cached(0, 5_000))._replace(cache_write_1h_tokens=4_000)
    assert costs(ledger_of([event])) == (4_000 * 200 + 1_000 * 125,) * 2


def test_a_compaction_by_the_host_restarts_both_runs() -> None:
    compacted = request(6, 2_000, None, cached(1_000, 1_000))
    grown = request(7, 2_500, None, cached(2_000, 500))
    before = ledger_of(FOLDED).sums.cost_saved
    assert ledger_of([*FOLDED, compacted, grown]).sums.cost_saved == before


def test_a_model_with_known_prices_is_accounted_in_money() -> None:
    events = [event._replace(model="claude-opus-4-5-20251101", output_tokens=100) for event in FOLDED]
    result = ledger_result(ledger_of(events))
    dollars_read = 3 * 4_000 * 0.5 / 1_000_000
    assert result["money"] == {
        "currency": "USD",
        "sent_micros": pytest.approx(78_500, abs=30_000),
        "without_micros": pytest.approx(84_500, abs=30_000),
        "saved_micros": pytest.approx(dollars_read * 1_000_000, abs=1),
    }
    mixed = ledger_result(ledger_of([*events, request(6, 100, None, cached(0, 100))]))
    assert mixed["money"] is None


def test_configured_prices_override_the_catalog() -> None:
    own = MODELS.with_models(parse_models({"models": {"m": {"input": 1, "output": 2, "cache_read": 0.5}}}))
    ledger = ledger_of([request(1, 1_000, None, cached(0, 1_000))], LedgerPrices(own))
    assert ledger.sums.money_sent == 1_000 * 1_000


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"models": 3},
        {"models": {}, "more": 1},
        {"models": {"m": 1}},
        {"models": {"m": {"input": 1}}},
        {"models": {"m": {"odd": 1}}},
        {"models": {"m": {"input": -1, "output": 1}}},
        {"models": {"m": {"context_tokens": 0}}},
    ],
)
def test_an_invalid_list_of_models_is_refused(tables: dict[str, object]) -> None:
    with pytest.raises(ModelsInvalid):
        parse_models(tables)


@given(
    st.lists(st.sampled_from(["us.", "EU.", "apac.", "é.", "anthropic.", "models/", "a", "Claude-", "/", ".", "\n"]))
)
def test_the_prefix_of_a_gateway_is_removed_from_a_model_name(parts: list[str]) -> None:
    gateway_prefix = r"^(?:.*/)?(?:[a-z]{2,4}\.)?(?:anthropic\.|models/)?"
    assert plain_name("".join(parts)) == re.sub(gateway_prefix, "", "".join(parts).lower(), count=1)


def test_every_model_in_the_list_has_a_date_and_a_source() -> None:
    assert all(facts.read_on and facts.source and facts.context_tokens for facts in MODELS.models)


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("claude-fable-5-1-20261001", "claude-fable-5-1"),
        ("claude-fable-5-2", "claude-fable-5-2"),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", "claude-haiku-4-5"),
        ("claude-opus-4-5@20251101", "claude-opus-4-5"),
        ("claude-opus-4-6[1m]", "claude-opus-4-6"),
        ("gpt-4o-2024-11-20", "gpt-4o"),
        ("claude-fable-5-3", None),
        ("claude-fable-5-2-fast", None),
        ("gpt-5-pro", None),
        ("gpt-5.6-luna-pro", None),
        ("claude-opus-4-5-2025", None),
    ],
)
def test_a_model_is_priced_by_its_exact_name_or_its_name_with_a_date(model: str, known: str | None) -> None:
    assert MODELS.prices(model) == (MODELS.prices(known) if known else None)
    result = ledger_result(ledger_of([request(1, 100, None, cached(0, 100))._replace(model=model)]))
    assert (result["money"] is None) == (known is None)


def test_savings_say_when_and_where_prices_were_read() -> None:
    events = [request(1, 100, None, cached(0, 100))._replace(model=model) for model in ("claude-fable-5-2", "m")]
    prices: Any = ledger_result(ledger_of(events))["prices"]
    assert [(each["read_on"], bool(each["source"])) for each in prices] == [("2026-11-16", True), (None, False)]


def test_the_calls_that_made_a_fold_are_charged_to_that_fold() -> None:
    tool_request = request(2, 5_100, None, cached(5_000, 100, 400))._replace(only_ours=True, our_output_tokens=400)
    folded = request(3, 5_200, 3_200, cached(3_000, 200), FoldSeen("br_a", 2_000, 3_000))
    ledger = ledger_of([FOLDED[0], tool_request, folded])
    assert [fold.branch_id for fold in ledger.folds if fold.saved < 0] == ["br_a"]
    assert ledger.folds[0].saved == ledger.sums.cost_saved


def test_the_sums_of_days_add_up_to_the_total() -> None:
    events = [*FOLDED, request(6, 9_600, 5_600, cached(0, 5_600), at="2026-01-18T10:30:00Z")]
    ledger = ledger_of(events)
    assert list(ledger.days) == ["2026-01-17", "2026-01-18"]
    assert ledger.days["2026-01-17"].plus(ledger.days["2026-01-18"]) == ledger.sums


def test_a_ledger_that_grows_event_by_event_equals_one_of_the_whole_log() -> None:
    ledger = SavingsLedger(LedgerPrices())
    for event in FOLDED:
        ledger.take(event)
        assert encode(ledger_result(ledger)) == encode(ledger_result(ledger_of(FOLDED[: event.n])))


def test_conversations_are_accounted_separately() -> None:
    other = [event._replace(conversation="sub", n=event.n + 5) for event in FOLDED]
    both: list[Event] = [event for pair in zip(FOLDED, other, strict=True) for event in pair]
    assert ledger_of(both).sums.cost_saved == 2 * ledger_of(FOLDED).sums.cost_saved


def test_requests_without_usage_are_estimated() -> None:
    events = [*FOLDED[:2], *(event._replace(cache_read_tokens=None, cache_write_tokens=None) for event in FOLDED[2:])]
    ledger = ledger_of(events)
    assert ledger.sums.estimated_requests == 3
    assert ledger.sums.cost_saved == ledger_of(FOLDED).sums.cost_saved


def test_optional_members_of_a_request_survive_the_log() -> None:
    event = FOLDED[2]._replace(kept_tokens=0, our_tokens=3, only_ours=True, conversation="c", new_blocks=2)
    assert from_json(to_json(event)) == event


def test_a_request_without_a_model_can_be_read_again() -> None:
    """The stored form omits an empty model, as that of other events does."""
    event = RequestSent(1, "2026-01-01T00:00:00Z", "gemini", "", 9, 9, 0, None, "", None, None, None, None)
    assert from_json(to_json(event)) == event


@pytest.mark.parametrize("way", WAYS)
def test_the_ledger_agrees_with_an_independent_simulation(way: str) -> None:
    for seed in range(times(6, 200)):
        for writes_1h in (False, True):
            agreement = compared(random_shape(seed), way, writes_1h=writes_1h)
            assert agreement.ledger_sent == agreement.sent
            assert abs(agreement.off) <= OFF_MAX, agreement
            assert agreement.has_right_sign, agreement


@pytest.mark.skipif(not SHAPES.exists(), reason="the shapes of public conversations are not there")
@pytest.mark.parametrize("way", WAYS)
def test_the_ledger_agrees_with_a_simulation_of_public_conversations(way: str) -> None:
    for conversation in list(read_shapes(SHAPES))[:: times(12, 1)]:
        agreement = compared(conversation, way)
        assert abs(agreement.off) <= OFF_MAX, agreement
        assert agreement.has_right_sign, agreement
