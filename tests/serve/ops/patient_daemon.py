"""`context` that waits for the collector of traces at its end however busy this machine is."""

from __future__ import annotations

from contextfold.cli.main import run
from contextfold.serve.ops import tracing

if __name__ == "__main__":
    tracing.CLOSE_S = 60.0
    run()
