"""Runs `context` and kills it with SIGKILL at the N-th step that touches a file.

python killed_build.py exchange|no-exchange N argv…
"""

import os
import signal
import sys

from contextfold.cli.main import run
from contextfold.resolve.rebuild import replace

STEPS = {
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.listdir",
    "os.scandir",
    "os.utime",
    "os.truncate",
    "ctypes.dlsym",
}
if sys.argv.pop(1) == "no-exchange":
    # This simulates a file system that does not have the call.
    replace._EXCHANGE = replace._NO_REPLACE = 1 << 30
remaining_steps = int(sys.argv.pop(1))


def count_down(event: str, _arguments: object) -> None:
    global remaining_steps  # noqa: PLW0603
    if event in STEPS:
        remaining_steps -= 1
        if remaining_steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)


sys.addaudithook(count_down)
run()
