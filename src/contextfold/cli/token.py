"""`context token`: a bearer token for an owner. Stdout is the token alone, shown this once."""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.cli.render import note, plain, say
from contextfold.failures import EXIT_OK


def run(values: Mapping[str, str]) -> int:
    from contextfold.serve.tokens import add

    path = values["token-file"]
    token = add(path, values["owner"])
    say(token + "\n")
    note(f"this token is shown once: {plain(path)} keeps its hash alone; remove that line to revoke it")
    return EXIT_OK
