"""`context inspect`: prints version, size and validity of a cache as JSON."""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.cli.output import print_answer
from contextfold.error_codes import EXIT_OK
from contextfold.resolve.service import Cache


def run(values: Mapping[str, str]) -> int:
    print_answer(Cache(values["cache"]).inspect().to_json())
    return EXIT_OK
