"""The `context` command with a clock that is ahead by as many seconds as a file says, each time it is asked.

Replaces `time.time` before the product is imported: a pause of hours takes a test no time.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ahead, sys.argv = Path(sys.argv[1]), ["context", *sys.argv[2:]]
_now = time.time
time.time = lambda: _now() + float(ahead.read_text())

from contextfold.cli.main import run  # noqa: E402

run()
