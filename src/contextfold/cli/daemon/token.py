"""`context token`: a bearer token for an owner. Stdout is the token alone, shown this once."""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.cli.output import note, plain, say
from contextfold.error_codes import EXIT_OK


def run(values: Mapping[str, str]) -> int:
    from contextfold.serve.http.bearer_tokens import add

    path = values["token-file"]
    token = add(path, values["owner"])
    say(token + "\n")
    note(f"this token is shown once: {plain(path)} keeps its hash alone; remove that line to revoke it")
    return EXIT_OK
