"""`context store migrate`: removed; names the commands that replace it."""

from __future__ import annotations

from contextfold.cli.parse import Values
from contextfold.errors import StoreInvalid


def run(_values: Values) -> int:
    raise StoreInvalid(
        "`context store migrate` was removed: use `context store export FILE` and then"
        " `context store import FILE --store STORE`"
    )
