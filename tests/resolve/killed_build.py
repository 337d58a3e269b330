"""Run `context` and die by SIGKILL at the N-th step that touches a file: python killed_build.py N argv…"""

import os
import signal
import sys

from contextfold.cli.main import run

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
left = int(sys.argv.pop(1))


def count_down(event: str, _arguments: object) -> None:
    global left  # noqa: PLW0603
    if event in STEPS:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


sys.addaudithook(count_down)
run()
