"""`python -m contextfold` is the `context` command."""

from contextfold.cli.main import run

run()
