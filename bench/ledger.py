"""Compares the ledger with an independent simulation of the same conversations (`bench.cache_simulation`).

    python -m bench.ledger [SHAPES]

Without a file of shapes, conversations are generated.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.cache_simulation import FoldingModel, SimulatedConversation, random_shape, read_shapes, run_without
from contextfold.fold.ledger import ledger_of
from contextfold.fold.model_catalog import RELATIVE_PRICES

SHAPES = Path(__file__).parents[2] / "shared" / "trajectories" / "shapes.jsonl"
WAYS = ("idle", "fold", "beside", "branch", "cold", "both")
ESTIMATE = 1.04
OFF_MAX = 0.03
# Below this part of the cost, the sign of a difference does not matter.
SIGN_FROM = 0.0005


class Agreement(NamedTuple):
    """Simulated costs and those of the ledger, in relative prices."""

    conversation: str
    way: str
    sent: int
    without: int
    ledger_sent: int
    ledger_without: int

    @property
    def off(self) -> float:
        return (self.ledger_without - self.without) / self.without

    @property
    def has_right_sign(self) -> bool:
        saved, ledger_saved = self.without - self.sent, self.ledger_without - self.ledger_sent
        return abs(saved) < SIGN_FROM * self.without or (saved > 0) == (ledger_saved > 0)


def compared(conversation: SimulatedConversation, way: str, *, writes_1h: bool = False) -> Agreement:
    without = run_without(conversation, writes_1h=writes_1h)
    run = FoldingModel(conversation, way, writes_1h=writes_1h, estimate=ESTIMATE).play()
    sums = ledger_of(run.events).sums
    costs = run.cost(RELATIVE_PRICES), without.cost(RELATIVE_PRICES)
    return Agreement(conversation.id, way, *costs, sums.cost_sent, sums.cost_without)


def main(argv: Sequence[str] = ()) -> bool:
    path = Path(argv[0]) if argv else SHAPES
    conversations = list(read_shapes(path)) if path.exists() else [random_shape(seed) for seed in range(60)]
    is_within = True
    for writes_1h in (False, True):
        for way in WAYS:
            rows = [compared(conversation, way, writes_1h=writes_1h) for conversation in conversations]
            worst = max(rows, key=lambda row: abs(row.off))
            wrong = [row for row in rows if not row.has_right_sign]
            dearer = sum(row.sent > row.without for row in rows)
            total = sum(row.sent for row in rows) / sum(row.without for row in rows)
            is_right = abs(worst.off) <= OFF_MAX and not wrong
            is_within = is_within and is_right
            print(
                f"ledger, {way}, {'1 h' if writes_1h else '5 min'}: {len(rows)} conversations, cost {total:.2f} of "
                f"unfolded, {dearer} dearer; off by at most {worst.off:+.2%} ({worst.conversation}), "
                f"{len(wrong)} wrong signs {'ok' if is_right else 'WRONG'}"
            )
            for row in wrong[:3]:
                print("   ", row, f"{row.off:+.3%}")
    return is_within


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
