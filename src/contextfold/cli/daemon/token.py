"""`context token`: makes a bearer token for an owner and prints it. It cannot be shown again."""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.cli.output import plain, print_answer, print_note
from contextfold.errors import EXIT_OK


def run_token(values: Mapping[str, str]) -> int:
    from contextfold.serve.http.bearer_tokens import add

    path = values["token-file"]
    token = add(path, values["owner"])
    print_answer(token + "\n")
    print_note(f"this token is shown once: {plain(path)} keeps its hash alone; remove that line to revoke it")
    return EXIT_OK
