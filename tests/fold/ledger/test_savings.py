"""The ledger: what requests cost, what they would have cost, and which folds did not pay. Computed here by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.common.canonical import encode
from contextfold.fold.events import BranchCreated, Event, RequestSent
from contextfold.fold.ledger.savings import FOLDS_TOLD, Book, Ledger, Point, Prices, ledger_of, told
from contextfold.fold.ledger.sent_request import FoldSeen, Usage
from tests.support.clauses import covers

AT = "2026-01-17T10:30:00Z"
PRICES = Prices()


def request(
    n: int,
    before: int,
    after: int | None = None,
    usage: Usage | None = None,
    *folds: FoldSeen,
    reason: str = "",
    model: str = "m",
) -> RequestSent:
    """A request; without an `after` nothing was folded."""
    return RequestSent(
        n,
        AT,
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
    """As a provider tells it that writes to its cache whatever it did not find there."""
    return Usage(0, read, written, output)


def ledger(*events: Event, prices: Prices = PRICES) -> Ledger:
    return ledger_of(events, prices)


def costs(of: Ledger) -> tuple[int, int]:
    return of.cost_sent, of.cost_without


def test_without_requests_there_is_nothing_to_compare() -> None:
    found = ledger(BranchCreated(1, AT, "br_a", None, "d", "p", 1, 0))
    assert (found.requests, found.cost_sent, found.cost_without) == (0, 0, 0)
    assert (
        told(found)["verdict"]
        == "No request of this session has gone through the proxy, so there is nothing to compare."
    )


class TestAPerfectCache:
    """5,000 tokens, a branch of 4,000 on them, a return of 100; then two more requests of 200 new tokens each."""

    EVENTS = (
        request(1, 5_000, None, cached(0, 5_000)),
        request(2, 9_000, None, cached(5_000, 4_000)),
        request(3, 9_100, 5_100, cached(5_000, 100), FoldSeen("br_a", 4_000, 5_000)),
        request(4, 9_300, 5_300, cached(5_100, 200)),
        request(5, 9_500, 5_500, cached(5_300, 200)),
    )

    def test_a_fold_saves_what_would_have_been_read_again(self) -> None:
        found = ledger(*self.EVENTS)
        written = 125 * (5_000 + 4_000 + 100 + 200 + 200)
        assert found.cost_sent == written + 10 * (5_000 + 5_000 + 5_100 + 5_300)
        assert found.cost_without == written + 10 * (5_000 + 9_000 + 9_100 + 9_300)
        assert (found.tokens_sent, found.tokens_without) == (29_900, 41_900)

    def test_each_fold_has_its_part(self) -> None:
        (fold,) = ledger(*self.EVENTS).folds
        assert (fold.branch_id, fold.tokens, fold.requests, fold.saved) == ("br_a", 4_000, 3, 3 * 10 * 4_000)

    def test_the_points_are_the_two_curves(self) -> None:
        points = ledger(*self.EVENTS).points
        assert [(point.sent, point.without) for point in points] == [
            (5_000, 5_000), (9_000, 9_000), (5_100, 9_100), (5_300, 9_300), (5_500, 9_500),
        ]  # fmt: skip

    def test_prices_are_settings(self) -> None:
        free = ledger(*self.EVENTS, prices=Prices(0, 200))
        assert costs(free) == (200 * 9_500, 200 * 9_500)
        dear = ledger(*self.EVENTS, prices=Prices(50, 100))
        assert dear.cost_saved == 3 * 50 * 4_000


class TestACacheThatIsLost:
    @covers("proxy.md#ledger")
    def test_a_fold_at_the_very_end_that_breaks_the_cache_costs_more_than_it_saves_and_is_named(self) -> None:
        found = ledger(
            BranchCreated(1, AT, "br_a", None, "Find the fault", "p", 1, 0),
            request(2, 5_000, None, cached(0, 5_000)),
            request(3, 9_000, None, cached(5_000, 4_000)),
            request(4, 9_100, 5_100, cached(0, 5_100), FoldSeen("br_a", 4_000, 5_000)),
        )
        # Without it 9,000 would have been read and 100 written; with it, all of 5,100 was written.
        assert found.cost_saved == (10 * 9_000 + 125 * 100) - 125 * 5_100 == -535_000
        assert [fold.branch_id for fold in found.costly] == ["br_a"]
        shape = told(found)
        assert shape["costly_folds"] == ["br_a"]
        assert encode(shape["folds"]) == (
            '[{"branch_id":"br_a","description":"Find the fault","tokens_dropped":4000,"requests":1,'
            '"cost_saved":-5350.00}]'
        )
        assert str(shape["verdict"]).startswith(
            "Folding cost more than it saved: the input of 3 requests became dearer"
        )

    def test_it_pays_off_once_enough_requests_follow(self) -> None:
        events = [
            request(1, 5_000, None, cached(0, 5_000)),
            request(2, 9_000, None, cached(5_000, 4_000)),
            request(3, 9_100, 5_100, cached(0, 5_100), FoldSeen("br_a", 4_000, 5_000)),
        ]
        seen = []
        for number in range(4, 20):
            size = 5_100 + 100 * (number - 3)
            events.append(request(number, size + 4_000, size, cached(size - 100, 100)))
            seen.append(ledger(*events).cost_saved)
        assert seen == [-535_000 + 40_000 * number for number in range(1, 17)]
        assert not ledger(*events).costly

    def test_what_expires_later_is_lost_either_way(self) -> None:
        found = ledger(
            request(1, 5_000, None, cached(0, 5_000)),
            request(2, 5_100, 4_100, cached(4_000, 100), FoldSeen("br_a", 1_000, 4_000)),
            request(3, 5_200, 4_200, cached(0, 4_200)),
        )
        assert found.cost_saved == 10 * 1_000 + 125 * 1_000

    def test_of_a_cache_that_reaches_to_before_a_fold_nothing_after_it_would_have_been_read(self) -> None:
        found = ledger(
            request(1, 9_000, 6_000, cached(0, 6_000), FoldSeen("br_a", 1_000, 2_000), FoldSeen("br_b", 2_000, 5_000)),
            request(2, 9_000, 6_000, cached(3_000, 3_000)),
        )
        first = 125 * 3_000
        assert found.cost_saved == first + 10 * 1_000 + 125 * 2_000
        assert [fold.saved for fold in found.folds] == [125 * 1_000 + 10 * 1_000, 2 * 125 * 2_000]

    def test_a_result_that_the_estimate_makes_too_small_does_not_make_a_fold_look_better(self) -> None:
        """All is as in a perfect cache, but the last result has 26,000 tokens where 20,000 are estimated."""
        found = ledger(
            request(1, 50_000, None, cached(0, 50_000)),
            request(2, 90_000, None, cached(50_000, 40_000)),
            request(3, 90_300, 50_300, cached(50_000, 300), FoldSeen("br_a", 40_000, 50_000)),
            request(4, 110_300, 70_300, cached(50_300, 26_000)),
        )
        assert 2 * 10 * 40_000 <= found.cost_saved <= 2 * 11 * 40_000


class TestProvidersWithOtherCaches:
    def test_a_cache_that_is_read_in_steps_does_not_make_a_fold_look_better(self) -> None:
        def counted(prompt: int, sent_before: int) -> Usage:
            read = sent_before // 128 * 128
            return Usage(prompt - read, read, 0, 0)

        sizes = (5_000, 9_000, 9_050, 9_150, 9_250)
        unfolded = [request(1 + at, size, None, counted(size, (0, *sizes)[at])) for at, size in enumerate(sizes)]
        folded = [
            *unfolded[:2],
            request(3, 9_050, 5_050, counted(5_050, 5_000), FoldSeen("br_a", 4_000, 5_000)),
            request(4, 9_150, 5_150, counted(5_150, 5_050)),
            request(5, 9_250, 5_250, counted(5_250, 5_150)),
        ]
        really = ledger(*unfolded).cost_sent - ledger(*folded).cost_sent
        assert 0.8 * really <= ledger(*folded).cost_saved <= really

    def test_no_cache_figures_at_all_are_plain_input_in_both(self) -> None:
        found = ledger(
            request(1, 500, None, Usage(500, 0, 0, 9)),
            request(2, 600, 400, Usage(400, 0, 0, 9), FoldSeen("br_a", 200, 350)),
        )
        assert costs(found) == (90_000, 110_000)
        assert (found.output_tokens, found.estimated_requests) == (18, 0)

    def test_new_tokens_are_plain_where_no_writes_are_told(self) -> None:
        found = ledger(
            request(1, 5_000, None, Usage(5_000, 0, 0, 0)),
            request(2, 5_100, None, Usage(100, 5_000, 0, 0)),
            request(3, 5_200, 3_200, Usage(200, 3_000, 0, 0), FoldSeen("br_a", 2_000, 3_000)),
        )
        assert found.cost_sent == 100 * 5_300 + 10 * 8_000
        assert found.cost_without == 100 * 5_300 + 10 * 10_000

    def test_models_have_caches_of_their_own(self) -> None:
        found = ledger(
            request(1, 5_000, None, cached(0, 5_000)),
            request(2, 5_100, 4_100, cached(0, 4_100), FoldSeen("br_a", 1_000, 4_000), model="another"),
        )
        assert found.cost_saved == 125 * 1_000  # nothing was lost: it had never seen any of it


class TestEstimates:
    def test_without_figures_the_estimates_stand_at_the_plain_price(self) -> None:
        found = ledger(request(1, 300), request(2, 500, 350, None, FoldSeen("br_a", 150, 300)))
        assert costs(found) == (65_000, 80_000)
        assert (found.requests, found.estimated_requests) == (2, 2)
        assert "2 of the requests by estimate alone" in str(told(found)["verdict"])

    def test_what_would_have_been_sent_is_corrected_by_what_the_estimate_was_off(self) -> None:
        found = ledger(request(1, 1_000, 800, Usage(1_000, 0, 0, 0), FoldSeen("br_a", 200, 700)))
        assert (found.tokens_sent, found.tokens_without) == (1_000, 1_250)

    def test_a_file_that_no_estimate_sees_does_not_make_a_fold_look_larger(self) -> None:
        found = ledger(
            request(1, 3_700, None, cached(0, 102_000)),
            request(2, 3_800, 1_800, cached(100_000, 100), FoldSeen("br_a", 2_000, 1_700)),
        )
        assert found.tokens_without - found.tokens_sent == 2_000
        assert found.cost_saved == 10 * 2_000

    def test_a_request_without_figures_among_others_has_the_cache_they_showed(self) -> None:
        found = ledger(
            request(1, 5_000, None, cached(0, 5_000)),
            request(2, 5_100),
            request(3, 5_200, 3_200, None, FoldSeen("br_a", 2_000, 3_000)),
        )
        assert found.cost_sent == 125 * 5_000 + (10 * 5_000 + 125 * 100) + (10 * 3_000 + 125 * 200)
        assert found.cost_saved == 10 * 2_000
        assert found.estimated_requests == 2


class TestFolds:
    def test_an_enclosing_fold_takes_over_from_those_in_it(self) -> None:
        found = ledger(
            request(1, 9_000, None, cached(0, 9_000)),
            request(2, 9_100, 8_100, cached(8_000, 100), FoldSeen("br_inner", 1_000, 8_000)),
            request(3, 9_200, 3_200, cached(3_000, 200), FoldSeen("br_outer", 6_000, 3_000)),
            request(4, 9_300, 3_300, cached(3_200, 100)),
        )
        assert [(fold.branch_id, fold.requests, fold.saved) for fold in found.folds] == [
            ("br_inner", 1, 10_000),
            ("br_outer", 2, 120_000),
        ]
        assert found.cost_saved == 130_000

    def test_a_small_fold_in_another_is_not_taken_for_what_estimates_are_off(self) -> None:
        found = ledger(
            request(1, 9_000, None, cached(0, 9_000)),
            request(2, 9_100, 9_090, cached(8_000, 1_090), FoldSeen("br_inner", 10, 8_000)),
            request(3, 9_204, 3_200, cached(3_000, 200), FoldSeen("br_outer", 6_000, 3_000)),
        )
        assert [fold.requests for fold in found.folds] == [1, 1]

    def test_a_request_of_another_conversation_has_no_fold_in_it(self) -> None:
        events = (
            request(1, 9_000, None, cached(0, 9_000)),
            request(2, 9_100, 8_100, cached(8_000, 100), FoldSeen("br_a", 1_000, 8_000)),
        )
        found = ledger(*events, request(3, 300, None, cached(0, 300)))
        assert found.cost_saved == ledger(*events).cost_saved
        assert found.folds[0].requests == 1

    def test_why_something_stayed_unfolded_is_counted(self) -> None:
        found = ledger(
            request(1, 10, reason="shared_turn"),
            request(2, 10),
            request(3, 10, reason="shared_turn"),
            request(4, 9, reason="roles"),
        )
        assert told(found)["failed_open"] == {"shared_turn": 2, "roles": 1}
        assert "Nothing was left out of 4 requests" in str(told(found)["verdict"])


USAGES = st.one_of(
    st.none(), st.builds(Usage, st.integers(0, 9_000), st.integers(0, 9_000), st.integers(0, 9_000), st.integers(0, 99))
)
UNFOLDED = st.lists(st.tuples(st.integers(0, 20_000), USAGES), max_size=30)
FOLDED = st.lists(
    st.tuples(st.integers(1, 20_000), st.integers(0, 19_999), USAGES, st.integers(0, 9_000), st.booleans()), max_size=30
)


class TestWhateverHappens:
    @given(UNFOLDED, st.integers(0, 200), st.integers(0, 200))
    def test_without_folds_both_ways_cost_the_same(
        self, sizes: list[tuple[int, Usage | None]], read: int, write: int
    ) -> None:
        found = ledger(
            *(request(n, size, None, usage) for n, (size, usage) in enumerate(sizes, 1)), prices=Prices(read, write)
        )
        assert found.cost_sent == found.cost_without
        assert found.tokens_sent == found.tokens_without

    @given(st.lists(st.integers(0, 5_000), min_size=1, max_size=30))
    def test_with_a_perfect_cache_each_token_is_written_once_and_read_from_then_on(self, growths: list[int]) -> None:
        events, size = [], 0
        for n, growth in enumerate(growths, 1):
            events.append(request(n, size + growth, None, cached(size, growth)))
            size += growth
        found = ledger(*events)
        reads = sum(sum(growths[:n]) for n in range(len(growths)))
        assert found.cost_without == found.cost_sent == 125 * size + 10 * reads

    @given(FOLDED)
    def test_a_longer_log_only_adds(self, drawn: list[tuple[int, int, Usage | None, int, bool]]) -> None:
        book = Book(PRICES)
        events: list[Event] = []
        points: list[Point] = []
        for n, (before, less, usage, kept, is_new) in enumerate(drawn, 1):
            after = max(0, before - less)
            folds = (FoldSeen(f"br_{n}", before - after, kept),) if is_new and after < before else ()
            events.append(request(n, before, after, usage, *folds))
            book.take(events[-1])
            found = book.ledger()
            assert found == ledger(*events)
            assert found.tokens_without >= found.tokens_sent
            assert list(found.points[:-1]) == points
            points = list(found.points)

    @given(st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 5_000), USAGES), min_size=1, max_size=30))
    def test_what_the_folds_came_to_is_all_that_was_saved(self, drawn: list[tuple[int, int, Usage | None]]) -> None:
        """Branches one after another, each folded by the request after it."""
        events: list[Event] = []
        kept, dropped = 1_000, 0
        for n, (growth, branch, usage) in enumerate(drawn, 1):
            folds = (FoldSeen(f"br_{n}", branch, kept),) if branch else ()
            dropped += branch
            events.append(request(n, kept + growth + dropped, kept + growth, usage, *folds))
            kept += growth
        found = ledger(*events)
        assert sum(fold.saved for fold in found.folds) == found.cost_saved
        assert [fold.requests for fold in found.folds] == [
            len(drawn) - place for place, (_, branch, _) in enumerate(drawn) if branch
        ]


@pytest.mark.parametrize("count", [1_000, 5_000])
def test_a_long_session_keeps_its_figures_and_is_told_in_few_points(count: int) -> None:
    events = [request(n, 100 * n, 60 * n, cached(60 * (n - 1), 60)) for n in range(1, count + 1)]
    found = ledger(*events)
    assert found.requests == count
    assert found.tokens_sent == sum(60 * n for n in range(1, count + 1))
    assert 100 < len(found.points) <= 240
    assert found.points[-1].n == count


def test_of_very_many_folds_the_latest_are_told_and_none_is_lost_of_what_all_saved() -> None:
    folds = 2 * FOLDS_TOLD
    first = request(1, 1_000, None, cached(0, 1_000))
    later = [
        request(
            n + 1, 1_000 + 110 * n, 1_000 + 10 * n, cached(990 + 10 * n, 10), FoldSeen(f"br_{n}", 100, 990 + 10 * n)
        )
        for n in range(1, folds + 1)
    ]
    found = ledger(first, *later)
    assert found.cost_saved == 10 * sum(100 * n for n in range(1, folds + 1))
    assert [fold.requests for fold in found.folds[-3:]] == [3, 2, 1]
    assert found.folds[0].requests == FOLDS_TOLD
