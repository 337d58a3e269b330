"""Generated conversations through the projection, the proxy's reader and the ledger, compared with a simulated cache.

This is a small sample; `python -m bench.economy` replays recorded shapes.
"""

from __future__ import annotations

import pytest

from bench.economy import COLD, LEDGER_OFF_MAX, WORST_MAX, compared, made_up_shape
from tests.support.machine import times

LONGEST_TURNS = times(24, 1_000)
SEEDS = [seed for seed in range(times(16, 60)) if len(made_up_shape(seed).turns) <= LONGEST_TURNS]


@pytest.mark.parametrize("is_1h", [False, True])
def test_leaving_out_cold_results_never_costs_more_and_the_ledger_agrees_with_the_cache(is_1h: bool) -> None:
    rows = [row for seed in SEEDS for row in compared(made_up_shape(seed), is_1h=is_1h)]
    for row in rows:
        assert row.off <= LEDGER_OFF_MAX, row
        assert not row.has_wrong_sign, row
        assert row.cost <= row.without * (1 if row.way is COLD else WORST_MAX), row
    cold = [row for row in rows if row.way is COLD]
    assert is_1h or sum(row.cost for row in cold) < sum(row.without for row in cold)
