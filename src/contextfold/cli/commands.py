"""All commands of `context` in the order of the help, and the words of the help that belong to none of them."""

from __future__ import annotations

from contextfold.cli.command import ROOMS, commands_beginning_with

DESCRIPTION = (
    "Keep an agent's context small, relevant and explainable. Context goes out by folding: an agent's finished",
    "work is replaced by a summary in what its model is sent. It comes back by resolving: for a question and a",
    "token budget, the documents and sections worth showing.",
)
FIRST_STEPS = (
    "  context run claude                          start Claude Code with folding, for this one run",
    "  context build docs                          compile a folder of documents",
    '  context ask "how do we roll back?"          get the passages that answer a question',
)
EXIT_CODES = (
    "  0 ok   1 usage   2 invalid query   3 invalid budget   4 cache missing",
    "  5 cache, source or store invalid   6 I/O   7 internal   8 not possible in this session",
)
COMMANDS = tuple(command for word in ROOMS for command in commands_beginning_with(word))
