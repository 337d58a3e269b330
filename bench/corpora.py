"""The corpora that the figures use: generated once by gen_corpus.py and stored in .bench/."""

from __future__ import annotations

import os
import random
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench import gen_corpus
from bench.figures import report_progress

HERE = Path(__file__).resolve().parent.parent / ".bench"
SEED = 20240607
PER_FOLDER = 100


def corpus(count: int) -> Path:
    """A folder of `count` documents of about 4 KB each; generated if it does not exist."""
    path = HERE / f"corpus-{count}"
    if not path.exists():
        report_progress(f"generating {count:,} documents (once)")
        temporary = path.with_suffix(".making")
        shutil.rmtree(temporary, ignore_errors=True)
        starts = range(0, count, PER_FOLDER)
        with ProcessPoolExecutor() as pool:
            list(pool.map(_write_folder, [temporary] * len(starts), starts, [count] * len(starts), chunksize=8))
        temporary.rename(path)
    return path


def _write_folder(out: Path, start: int, count: int) -> None:
    words, weights = _vocabulary()
    folder = out / f"sec{start // PER_FOLDER % 1000:03d}"
    os.makedirs(folder, exist_ok=True)
    for k in range(start, min(start + PER_FOLDER, count)):
        (folder / f"doc{k:06d}.md").write_text(gen_corpus.document(k, words, weights, SEED), encoding="utf-8")


_vocabularies: list[tuple[list[str], list[float]]] = []


def _vocabulary() -> tuple[list[str], list[float]]:
    if not _vocabularies:
        words = gen_corpus.vocabulary(random.Random(SEED))
        weights, total = [], 0.0
        for rank in range(len(words)):
            total += 1.0 / (rank + 2) ** 1.07
            weights.append(total)
        _vocabularies.append((words, weights))
    return _vocabularies[0]
