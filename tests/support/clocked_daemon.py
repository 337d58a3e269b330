"""`context` with the clock of folding set forward: `python clocked_daemon.py SECONDS serve …`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from contextfold.cli.main import run
from contextfold.fold.service.fold_service import FoldService

if __name__ == "__main__":
    forward = timedelta(seconds=int(sys.argv.pop(1)))
    defaults = FoldService.__init__.__kwdefaults__
    assert defaults is not None
    defaults["clock"] = lambda: datetime.now(UTC) + forward
    sys.exit(run())
