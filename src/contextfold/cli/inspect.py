"""`context inspect`: what a cache is, as JSON on stdout."""

from __future__ import annotations

import argparse

from contextfold.cli.render import say
from contextfold.failures import EXIT_OK
from contextfold.resolve.service import Cache


def run(arguments: argparse.Namespace) -> int:
    say(Cache(arguments.cache).inspect().to_json())
    return EXIT_OK
