"""The sums that are stored with an ended session, and the totals that still count them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from contextfold.fold.ledger import LedgerSums, sums_from
from contextfold.fold.messages import Receipt
from contextfold.fold.project import Caller, project_at, target_of
from contextfold.fold.sent_request import RequestReport, Usage
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.overview import Overview
from contextfold.scrub.scrubber import standard_scrubber
from tests.support.temporary_store import TemporaryStore

PROJECT = "/work/shop"


def test_stored_sums_are_read_as_they_were_written() -> None:
    sums = LedgerSums(*range(1, len(LedgerSums._fields) + 1))
    assert sums_from(sums._asdict()) == sums


def test_unknown_members_of_stored_sums_are_ignored() -> None:
    assert sums_from({"requests": 3, "tokens_sent": "many", "unknown": 1}) == LedgerSums(requests=3)
    assert sums_from([]) == LedgerSums()


def test_totals_still_include_ended_sessions() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)

    async def act() -> tuple[Any, Any, Any]:
        nonlocal now
        service = FoldService(TemporaryStore(), standard_scrubber(), clock=lambda: now)
        target = target_of(Caller("local"), project_at(PROJECT))
        usage = Usage(12, 0, 900, 50)
        service.reports.receive(target, RequestReport("r1", "anthropic", "m", Receipt(1000, 1000), usage))
        await service.reports.settle(target.key)
        overview = Overview(service)
        live = await overview.savings_by("local", "project")
        now += timedelta(days=3)
        assert await service.end_idle() == 1
        totals = await overview.savings_by("local", "project")
        listed = await overview.ended_sessions("local", limit=5)
        await service.close()
        return live, totals, listed

    live, totals, listed = asyncio.run(act())
    assert live["total"]["requests"] == 1
    assert totals == live
    (session,) = listed["sessions"]
    assert (session["model"], session["savings"]["tokens_sent"]) == ("m", live["total"]["tokens_sent"])
