"""`context` with a long timeout for the last export of traces, for busy machines."""

from __future__ import annotations

from contextfold.cli.main import run
from contextfold.serve.ops import tracing

if __name__ == "__main__":
    tracing.CLOSE_S = 60.0
    run()
