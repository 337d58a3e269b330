"""Recall on LoCoMo: the share of a question's evidence sessions among the first 5 and 10 folds.

python -m bench.locomo

Each session of a conversation becomes a fold at the session's time, whose message is what was said; each question is a
call of `context_recall`. Beside it FTS5's bm25() over the same texts and dates: any word of the question, with English
stems. The conversations are third-party data (CC BY-NC 4.0), so they are read from ../shared if they are there.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import sqlite3
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from contextfold.common.question import read_question
from contextfold.fold.project import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.tool_calls import RecallRequest
from contextfold.scrub.scrubber import standard_scrubber
from tests.support.temporary_store import TemporaryStore

CONVERSATIONS = Path(__file__).parent.parent.parent / "shared" / "relevance" / "locomo.json.xz"
# The least shares among the first 5 and 10.
AT_5_MIN, AT_10_MIN = 0.88, 0.93
BUDGET = 100_000
Members: TypeAlias = dict[str, Any]
PROJECT = {"project_path": "/conversation"}


class Shares(NamedTuple):
    """The shares of one question."""

    at_5: float
    at_10: float


def _shares(found: Sequence[int], evidence: set[int]) -> Shares:
    return Shares(*(len(evidence & set(found[:most])) / len(evidence) for most in (5, 10)))


def _text(session: Members) -> str:
    return "\n".join(f"{turn[0]}: {turn[1]}" for turn in session["turns"])


async def _recall(conversation: Members, times_s: list[float]) -> list[Shares]:
    now = datetime.now(UTC)
    service = FoldService(TemporaryStore(), standard_scrubber(), clock=lambda: now)
    numbers: dict[str, int] = {}
    for session in conversation["sessions"]:
        now = datetime.strptime(session["at"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        await service.open_branch(Caller("local"), {"description": "Session", "prompt": "Session.", **PROJECT})
        folded = await service.return_branch(Caller("local"), {"message": _text(session), **PROJECT})
        numbers[str(folded.answer["branch_id"])] = session["n"]
    shares = []
    for question in conversation["questions"]:
        if question["evidence"]:
            begin = time.process_time()
            answer = await service.recalls.answer("local", RecallRequest(question["q"], budget_tokens=BUDGET))
            times_s.append(time.process_time() - begin)
            shares.append(_shares([numbers[fold.id] for fold in answer.folds], set(question["evidence"])))
    await service.close()
    return shares


def _full_text(conversation: Members) -> list[Shares]:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE folds USING fts5 (text, tokenize='porter unicode61')")
    for session in conversation["sessions"]:
        text = f"{session['at']}\n{_text(session)}"
        connection.execute("INSERT INTO folds (rowid, text) VALUES (?, ?)", (session["n"], text))
    shares = []
    for question in conversation["questions"]:
        if question["evidence"]:
            words = [word for term in read_question(question["q"], 0).terms for word in term.words]
            rows = connection.execute(
                "SELECT rowid FROM folds WHERE folds MATCH ? ORDER BY bm25(folds), rowid",
                (" OR ".join(f'"{word}"' for word in words),),
            )
            shares.append(_shares([number for (number,) in rows], set(question["evidence"])))
    connection.close()
    return shares


def main() -> bool:
    if not CONVERSATIONS.exists():
        print(f"locomo: {CONVERSATIONS} is not there, so recall was not measured on it")
        return True
    with lzma.open(CONVERSATIONS, "rt", encoding="utf-8") as file:
        conversations = json.load(file)
    times_s: list[float] = []
    recalled = [share for each in conversations for share in asyncio.run(_recall(each, times_s))]
    full_text = [share for each in conversations for share in _full_text(each)]
    at_5, at_10 = (statistics.mean(shares) for shares in zip(*recalled, strict=True))
    others = " and ".join(f"{statistics.mean(shares):.3f}" for shares in zip(*full_text, strict=True))
    print(
        f"locomo, {len(recalled):,} questions: {at_5:.3f} of the evidence among the first 5 folds, {at_10:.3f} among 10"
    )
    print(f"  (at least {AT_5_MIN:g} and {AT_10_MIN:g}; FTS5's bm25(): {others})")
    print(f"  a question: p50 {statistics.median(times_s) * 1_000:.1f} ms of processor time")
    return bool(at_5 >= AT_5_MIN and at_10 >= AT_10_MIN)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
