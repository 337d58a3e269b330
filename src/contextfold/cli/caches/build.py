"""`context build`: a folder of documents becomes a cache. Silent in a pipe, stdout always empty."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import FrameType

from contextfold.cli.output import ProgressLine, tell_on_terminal
from contextfold.error_codes import EXIT_OK
from contextfold.resolve.build import build

EXIT_BY_SIGNAL = 128


def run(values: Mapping[str, str]) -> int:
    for ending in (signal.SIGTERM, signal.SIGHUP):  # so that the unfinished cache is removed on the way out
        if signal.getsignal(ending) is not signal.SIG_IGN:  # as under nohup
            signal.signal(ending, _terminate)
    progress = ProgressLine("building")
    try:
        built = build(
            values["sources"],
            values["cache"],
            kinds="markdown",
            force="force" in values,
            progress=progress,
        )
    finally:
        progress.clear()
    size = f"{built.document_count:,} documents, {built.content_bytes:,} bytes"
    tell_on_terminal(f"built {values['cache']}: {size}, {built.cache_version}")
    return EXIT_OK


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(EXIT_BY_SIGNAL + number)
