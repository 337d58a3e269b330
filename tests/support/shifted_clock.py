"""The `context` command with a clock that is ahead by the number of seconds in a file.

It replaces `time.time` before the product is imported, so that a test need not wait for hours.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

offset_file, sys.argv = Path(sys.argv[1]), ["context", *sys.argv[2:]]
_now = time.time
time.time = lambda: _now() + float(offset_file.read_text())

from contextfold.cli.main import run  # noqa: E402

run()
