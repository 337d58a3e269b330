"""The figures of ended sessions, which are computed from their logs: processor time for a list and for the savings.

python -m bench.ended_sessions [SESSIONS]

A session has 150 events, about as many as a usual conversation; every third is a request.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from contextfold.fold.policy import FoldPolicy
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.overview import Overview
from contextfold.fold.service.stored_sessions import StoredSessions
from contextfold.fold.store import LOCAL_OWNER
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.stores.sqlite.state_file import SqliteReader
from contextfold.stores.sqlite.store import SqliteStore
from tests.contract.sessions import NOON, commit_of, key_of

SESSIONS, EVENTS = 300, 150
ENDED_AT = "2026-01-03T12:00:00Z"
# A person with ten sessions a day waits a second for the savings of a month.
SESSION_MAX_MS = 5.0


async def _fill(path: Path, sessions: int) -> None:
    store = SqliteStore(path)
    for number in range(sessions):
        await store.commit(commit_of(key_of(f"p{number}"), session_id=f"sess_{number}", events=EVENTS))
    await store.expire(NOON, ENDED_AT)
    await store.close()


async def _in_daemon(path: Path) -> tuple[float, float]:
    """Seconds for the savings in a daemon, the first time and after that."""
    service = FoldService(SqliteStore(path), standard_scrubber())
    overview, seconds = Overview(service), []
    for _ in range(2):
        begin = time.process_time()
        await overview.savings_by(LOCAL_OWNER, "day")
        seconds.append(time.process_time() - begin)
    await service.close()
    return seconds[0], seconds[1]


def main(sessions: int = SESSIONS) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        asyncio.run(_fill(path, sessions))
        reader = SqliteReader(path)
        stored = StoredSessions(reader, FoldPolicy())
        begin = time.process_time()
        listed = len(list(stored.ended_rows(LOCAL_OWNER)))
        list_s = time.process_time() - begin
        begin = time.process_time()
        stored.savings_by(LOCAL_OWNER, "day")
        savings_s = time.process_time() - begin
        reader.close()
        first_s, later_s = asyncio.run(_in_daemon(path))
    each_ms = max(list_s, savings_s) / listed * 1_000
    print(f"ended sessions, {listed:,} of {EVENTS} events: list {list_s:.2f} s, savings {savings_s:.2f} s;")
    print(f"  {each_ms:.1f} ms each (at most {SESSION_MAX_MS:g}); in a daemon {first_s:.2f} s, again {later_s:.3f} s")
    return each_ms <= SESSION_MAX_MS


if __name__ == "__main__":
    sys.exit(0 if main(int(sys.argv[1]) if len(sys.argv) > 1 else SESSIONS) else 1)
