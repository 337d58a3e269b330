"""The harness of the tests of the ledger, on every store."""

from __future__ import annotations

import pytest

from contextfold.fold.store import Store
from tests.contract.stores import store
from tests.fold.ledger.ledger_harness import LedgerHarness

__all__ = ["store"]


@pytest.fixture
def harness(store: Store) -> LedgerHarness:
    return LedgerHarness(store)
