"""How fast hook reports are recorded on SQLite, and how old a report can be that a killed daemon would lose.

python -m bench.hook_reports
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from contextfold.fold.project import Caller, Target, project_at, target_of
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.inbox import InboxFull
from contextfold.fold.service.reports import HookReport
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.stores.sqlite.store import SqliteStore

FLOOD = 20_000
RATES = (100, 1_000, 2_000)
PACED_S = 4.0
AGE_MAX_S = 1.0
PER_SECOND_MIN = 5_000
STEP_S = 0.01
TEXT = '{{"command":"ls src/{}"}}\nREADME.md  src  tests'


def _service(folder: str) -> FoldService:
    opened = SqliteStore(str(Path(folder) / "state.db"))
    return FoldService(opened, standard_scrubber())


def _report(number: int) -> HookReport:
    return HookReport("claude-code", "Bash", TEXT.format(number), 8, False, f"call {number}")


async def _recorded(service: FoldService, target: Target) -> int:
    log = await service.store.load(target.key)
    return max(0, len(log.events) - 1) if log else 0


async def flood(sessions: int) -> float:
    """Reports recorded in a second if the inbox is always full."""
    with tempfile.TemporaryDirectory() as folder:
        service = _service(folder)
        targets = [target_of(Caller("local"), project_at(f"/p{number}")) for number in range(sessions)]
        begin_s = time.perf_counter()
        for number in range(FLOOD):
            target = targets[number % sessions]
            while True:
                try:
                    service.reports.receive(target, _report(number))
                    break
                except InboxFull:
                    await asyncio.sleep(0.001)
            if number % 50 == 0:
                await asyncio.sleep(0)
        while service.reports.waiting:
            await asyncio.sleep(0.001)
        elapsed_s = time.perf_counter() - begin_s
        assert sum([await _recorded(service, target) for target in targets]) == FLOOD
        await service.close()
    return FLOOD / elapsed_s


async def oldest(rate: int) -> float:
    """The greatest age of a report that is not yet recorded, at this rate in one session."""
    with tempfile.TemporaryDirectory() as folder:
        service = _service(folder)
        target = target_of(Caller("local"), project_at("/p"))
        received_s: list[float] = []
        worst_s, recorded, begin_s = 0.0, 0, time.perf_counter()
        while (now := time.perf_counter()) - begin_s < PACED_S:
            while len(received_s) < (now - begin_s) * rate:
                service.reports.receive(target, _report(len(received_s)))
                received_s.append(now)
            await asyncio.sleep(STEP_S)
            recorded = len(received_s) - service.reports.waiting
            if recorded < len(received_s):
                worst_s = max(worst_s, time.perf_counter() - received_s[recorded])
        await service.close()
    return worst_s


def main() -> bool:
    is_within = True
    for rate in RATES:
        age_s = asyncio.run(oldest(rate))
        is_within = is_within and age_s <= AGE_MAX_S
        print(f"hook reports, {rate}/s in one session: the oldest that could be lost is {age_s:.2f} s old")
    for sessions in (1, 16):
        per_second = asyncio.run(flood(sessions))
        is_within = is_within and per_second >= PER_SECOND_MIN
        print(f"hook reports, {sessions} session(s): {per_second:,.0f} recorded a second")
    return is_within


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
