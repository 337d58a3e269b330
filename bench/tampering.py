"""Checks that caching does not hide tampering: every access notices a changed letter in an unselected document."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.corpora import HERE
from bench.resolve import BUDGET, CONTEXT, QUERY, SIZES
from bench.stdio import StdioClient
from contextfold import ContextError, open_cache

# This budget selects one of the three small documents.
SMALL_BUDGET = 8


def main(sizes: tuple[int, ...] = SIZES) -> bool:
    """This must run last, because it changes the caches that the other figures need."""
    noticed = {count: _noticed(HERE / f"cache-{count}", BUDGET if count > 3 else SMALL_BUDGET) for count in (3, *sizes)}
    for count, accesses in noticed.items():
        print(
            f"\ntampering with an unselected document of {count:,}: "
            + ", ".join(_described(*access) for access in accesses.items())
        )
    return all(all(accesses.values()) for accesses in noticed.values())


def _described(access: str, noticed: bool) -> str:
    return f"{access} {'noticed' if noticed else 'NOT NOTICED'}"


def _noticed(cache: Path, budget: int) -> dict[str, bool]:
    warm_cache, client = open_cache(cache), StdioClient()
    answer = warm_cache.resolve(QUERY, budget)
    client.resolve(cache.name)
    document = _unselected(cache, {selected.id for selected in answer.documents})
    before, content = document.stat(), document.read_bytes()
    offset = content.index(b"e", content.index(b'"content":"') + len(b'"content":"'))
    document.write_bytes(content[:offset] + b"E" + content[offset + 1 :])
    # Size and modification time stay the same, so only the contents show the change.
    os.utime(document, ns=(before.st_atime_ns, before.st_mtime_ns))
    argv: list[str | Path] = [CONTEXT, "resolve", "--cache", cache, "--query", QUERY, "--budget", str(budget)]
    one_shot = subprocess.run(argv, capture_output=True, check=False)
    noticed = {
        "one-shot": one_shot.returncode == 5 and one_shot.stdout == b"",
        "warm library": _refuses(lambda: warm_cache.resolve(QUERY, budget)),
        "warm stdio": _refuses(lambda: client.resolve(cache.name)),
    }
    document.write_bytes(content)
    client.close()
    return noticed


def _unselected(cache: Path, selected: set[str]) -> Path:
    entries = json.loads((cache / "manifest.json").read_text(encoding="utf-8"))["documents"]
    files: list[str] = [entry["file"] for entry in entries if entry["id"] not in selected]
    return cache / files[-1]


def _refuses(action: Callable[[], object]) -> bool:
    try:
        action()
    except (ContextError, SystemExit):
        return True
    return False
