"""Run `context` and die by SIGKILL at the N-th step of `context store migrate`.

python killed_migrate.py told|put N argv…: a step is that it tells how far it is, or a message that goes to NATS.
"""

import os
import signal
import sys

from contextfold.cli.main import run
from contextfold.cli.output import ProgressLine
from contextfold.stores.nats.jetstream import Wire

step = sys.argv.pop(1)
left = int(sys.argv.pop(1))
put = Wire.put


def count_down() -> None:
    global left  # noqa: PLW0603
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def counted_tell(_line: ProgressLine, _how_far: str) -> None:
    count_down()


async def counted_put(*arguments, **named):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003, ANN201
    count_down()
    return await put(*arguments, **named)


if step == "told":
    ProgressLine.tell = counted_tell  # type: ignore[assignment,method-assign]
else:
    Wire.put = counted_put  # type: ignore[method-assign]
run()
