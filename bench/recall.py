"""Recall over many folded branches on SQLite: time of an answer, growth of the file, cost of a commit.

python -m bench.recall [FOLDS]

Folds have random words of this repository, as frequent as they are in it: description, prompt, summary and operations.
A question is a few neighbouring words of a fold. Times are processor time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.daemon import ERAS, RawHttpClient, daemon, request
from contextfold.common.question import read_question
from contextfold.common.words import tokens
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.project import Caller, project_at
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.store import SessionKey, Summary
from contextfold.fold.store_export import ExportedSession, ExportRecord
from contextfold.fold.tool_calls import RecallRequest
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.stores.sqlite.statements import fts_query
from contextfold.stores.sqlite.store import SqliteStore

FOLDS = 100_000
PROJECTS = 20
PER_SESSION = 50
# Fewer days than the archive of a session is retained, so that a daemon has nothing to index again.
DAYS = 20
QUESTIONS = 200
COMMITS = 400
P50_MAX_MS = 60.0
TO_FULL_TEXT_MAX = 3.0
COMMIT_MAX = 1.15
# The triggers that recall adds to a state file. `_without_recall` drops them.
TRIGGERS = [f"recall_{table}_{name}" for table in ("summaries", "left_out") for name in ("added", "changed", "gone")]


class Folds:
    """Random folds, the same in every run."""

    def __init__(self, count: int) -> None:
        root = Path(__file__).parent.parent
        files = sorted([*root.glob("docs/*.md"), *root.glob("src/contextfold/**/*.py")])
        self._words = [word for file in files for word in tokens(file.read_text(encoding="utf-8"))]
        self._rng = random.Random(7)
        self._now = datetime.now(UTC)
        self.count = count
        self.questions: list[str] = []

    def text(self, words: int) -> str:
        """Text of pieces of six neighbouring words, so that some words occur together."""
        starts = (self._rng.randrange(len(self._words) - 6) for _ in range(-(-words // 6)))
        return " ".join(" ".join(self._words[start : start + 6]) for start in starts)

    def records(self) -> Iterator[ExportRecord]:
        projects = sorted(
            (project_at(f"/work/project-{number:02}") for number in range(PROJECTS)), key=lambda each: each.hash
        )
        firsts = range(0, self.count, PER_SESSION)
        for project, first in (
            (project, first) for at, project in enumerate(projects) for first in firsts[at::PROJECTS]
        ):
            session_id = f"sess_{first:08}"
            at = (self._now - timedelta(days=first * DAYS // self.count)).strftime("%Y-%m-%dT12:00:00Z")
            yield ExportedSession(SessionKey("local", project.hash, f"{first:08}"), session_id, 1, at, at, "")
            numbers = range(first, min(first + PER_SESSION, self.count))
            entries: list[ArchiveEntry] = []
            for number in numbers:
                branch_id = f"br_{number:08}"
                description, summary, operation_text = self.text(8), self.text(60), self.text(120)
                if number % (self.count // QUESTIONS or 1) == 0:
                    self.questions.append(
                        " ".join(self._rng.choice((description, summary, operation_text)).split()[:6])
                    )
                entries.append(ArchiveEntry(branch_id, 3 * number, at, "prompt", self.text(30)))
                entries.append(ArchiveEntry(branch_id, 3 * number + 1, at, "operation", operation_text, type="Bash"))
                yield Summary(project.hash, project.path, session_id, branch_id, description, summary, 9_000, at)
            yield from entries


async def _answers(service: FoldService, questions: list[str], project_path: str | None) -> list[float]:
    times_ms = []
    project = project_at(project_path) if project_path else None
    for question in questions:
        begin = time.process_time()
        await service.recalls.answer("local", RecallRequest(question, project))
        times_ms.append((time.process_time() - begin) * 1_000)
    return times_ms


def _daemon_answers(folder: str, questions: list[str]) -> list[float]:
    """Asks a daemon on that state file the same questions over MCP; gives the processor time of its threads."""
    server = daemon(folder)
    client = RawHttpClient(server.port)
    times_ms = []
    for question in [*questions[:20], *questions]:
        begin = _run_ms(server.process.pid)
        client.call(request(ERAS[-1], "context_recall", query=question, project_path="/work/project-03"))
        times_ms.append(_run_ms(server.process.pid) - begin)
    client.close()
    server.stop()
    return times_ms[20:]


def _run_ms(process: int) -> float:
    files = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e6


def _full_text(path: Path, questions: list[str]) -> tuple[list[float], list[float]]:
    """Times of the full-text table of summaries: for any of the words, and for all of them, as `fold search` does."""
    connection = sqlite3.connect(path)
    any_words: list[float] = []
    all_words: list[float] = []
    for question in questions:
        all_query = fts_query(question)
        for matching, times_ms in (
            (all_query.removesuffix(" *").replace(" AND ", " OR "), any_words),
            (all_query, all_words),
        ):
            begin = time.process_time()
            connection.execute(
                "SELECT m.* FROM summary_words JOIN summaries m ON m.id = summary_words.rowid"
                " WHERE summary_words MATCH ? ORDER BY bm25(summary_words), m.id LIMIT 50",
                (matching,),
            ).fetchall()
            times_ms.append((time.process_time() - begin) * 1_000)
    connection.close()
    return any_words, all_words


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.parent.iterdir())


def _without_recall(path: Path) -> None:
    """Makes a state file as before recall: nothing is queued for indexing."""
    connection = sqlite3.connect(path, isolation_level=None)
    for trigger in TRIGGERS:
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.close()


async def _fold_costs(folder: Path, folds: Folds, *, has_recall: bool) -> tuple[float, float]:
    """Milliseconds of processor time for a branch and its fold, and for indexing it afterwards."""
    path = folder / "state.db"
    store = SqliteStore(path)
    if not has_recall:
        _without_recall(path)
    service = FoldService(store, standard_scrubber())
    project = {"project_path": "/work/app"}
    times_s = []
    for _ in range(COMMITS):
        branch = {"description": folds.text(8)[:200], "prompt": folds.text(30), **project}
        message = {"message": folds.text(60), **project}
        begin = time.process_time()
        await service.open_branch(Caller("local"), branch)
        await service.return_branch(Caller("local"), message)
        times_s.append(time.process_time() - begin)
    begin = time.process_time()
    while await store.unindexed(None, 1):
        await service.recalls.maintain()
    indexed = time.process_time() - begin
    await service.close()
    return statistics.median(times_s) * 1_000, indexed / COMMITS * 1_000


async def _commit_costs(folds: Folds) -> tuple[float, float, float]:
    """Measures with and without recall in turns. The least of each counts, because other programs only add to it."""
    plain: list[float] = []
    queued: list[float] = []
    indexed: list[float] = []
    for _ in range(3):
        for has_recall, costs in ((False, plain), (True, queued)):
            with tempfile.TemporaryDirectory() as folder:
                cost, indexing = await _fold_costs(Path(folder), folds, has_recall=has_recall)
                costs.append(cost)
                if has_recall:
                    indexed.append(indexing)
    return min(plain), min(queued), min(indexed)


async def measured(count: int) -> bool:
    folds = Folds(count)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state" / "state.db"
        path.parent.mkdir()
        store = SqliteStore(path)
        await store.import_all(folds.records())
        service = FoldService(store, standard_scrubber())
        _checkpoint(path)
        before = _size(path)
        begin = time.process_time()
        while await store.unindexed(None, 1):
            await service.recalls.maintain()
        indexing_ms = (time.process_time() - begin) / count * 1_000
        _checkpoint(path)
        after = _size(path)
        valid_questions = (question for question in folds.questions if read_question(question, 0).terms)
        questions = list(itertools.islice(valid_questions, QUESTIONS))
        await _answers(service, questions[:20], None)
        everywhere = await _answers(service, questions, None)
        here = await _answers(service, questions, "/work/project-03")
        any_words, all_words = _full_text(path, questions)
        await service.close()
        in_daemon = _daemon_answers(folder, questions)
    plain, queued, later = await _commit_costs(folds)
    p50, to_full_text, commit = statistics.median(everywhere), _ratio(everywhere, any_words), queued / plain
    any_ms, all_ms = statistics.median(any_words), statistics.median(all_words)
    print(f"recall, {count:,} folds: p50 {p50:.1f} ms, p95 {_p95(everywhere):.1f} ms (p50 at most {P50_MAX_MS:g})")
    print(f"  in one of {PROJECTS} projects: p50 {statistics.median(here):.1f} ms, p95 {_p95(here):.1f} ms")
    print(
        f"  the same in the daemon, over MCP: p50 {statistics.median(in_daemon):.1f} ms, p95 {_p95(in_daemon):.1f} ms"
    )
    print(f"  full-text query for any of the words: p50 {any_ms:.1f} ms, recall {to_full_text:.2f} times as long")
    print(f"  (at most {TO_FULL_TEXT_MAX:g}); for all of the words, as `fold search`: p50 {all_ms:.1f} ms")
    print(f"  state file: {before / 1e6:.0f} MB, with the index {after / 1e6:.0f} MB ({after / before:.2f})")
    print(f"  a branch and its fold: {queued:.2f} ms, without recall {plain:.2f} ms ({commit:.2f},")
    print(f"  at most {COMMIT_MAX:g}); indexing afterwards: {later:.2f} ms, with what was done {indexing_ms:.2f} ms")
    return p50 <= P50_MAX_MS and to_full_text <= TO_FULL_TEXT_MAX and commit <= COMMIT_MAX


def _checkpoint(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _ratio(some: list[float], others: list[float]) -> float:
    return statistics.median(some) / statistics.median(others)


def _p95(times: list[float]) -> float:
    return sorted(times)[len(times) * 95 // 100]


def main(count: int = FOLDS) -> bool:
    return asyncio.run(measured(count))


if __name__ == "__main__":
    sys.exit(0 if main(int(sys.argv[1]) if len(sys.argv) > 1 else FOLDS) else 1)
