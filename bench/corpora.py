"""The corpora the figures are taken on: made once by gen_corpus.py's own functions, kept in .bench/."""

from __future__ import annotations

import os
import random
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench import gen_corpus
from bench.figures import tell

HERE = Path(__file__).resolve().parent.parent / ".bench"
SEED = 20240607
PER_FOLDER = 100


def corpus(count: int) -> Path:
    """A folder of `count` documents around 4 KB."""
    path = HERE / f"corpus-{count}"
    if not path.exists():
        tell(f"making {count:,} documents (once)")
        making = path.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        starts = range(0, count, PER_FOLDER)
        with ProcessPoolExecutor() as pool:
            list(pool.map(_write_folder, [making] * len(starts), starts, [count] * len(starts), chunksize=8))
        making.rename(path)
    return path


def _write_folder(out: Path, start: int, count: int) -> None:
    words, weights = _vocabulary()
    folder = out / f"sec{start // PER_FOLDER % 1000:03d}"
    os.makedirs(folder, exist_ok=True)
    for k in range(start, min(start + PER_FOLDER, count)):
        (folder / f"doc{k:06d}.md").write_text(gen_corpus.document(k, words, weights, SEED), encoding="utf-8")


_known: list[tuple[list[str], list[float]]] = []


def _vocabulary() -> tuple[list[str], list[float]]:
    if not _known:
        words = gen_corpus.vocabulary(random.Random(SEED))
        weights, total = [], 0.0
        for rank in range(len(words)):
            total += 1.0 / (rank + 2) ** 1.07
            weights.append(total)
        _known.append((words, weights))
    return _known[0]
