"""The one entry point: argv to a command, a failure to its exit code and two lines that help. Knows no domain rule."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from contextfold import __version__
from contextfold.cli.commands import COMMANDS, EXIT_CODES, Command, Option
from contextfold.cli.render import report, say
from contextfold.errors import ContextError, InternalError, StorageFailed
from contextfold.failures import EXIT_CODES as EXIT_CODE_OF
from contextfold.failures import EXIT_OK, EXIT_USAGE

EXIT_INTERRUPTED = 130

DESCRIPTION = "Keep an agent's context small, relevant and explainable: compile documents once, then ask for what fits."
FIRST_STEPS = """\
first steps:
  context build --sources docs --cache docs.cache
  context resolve --cache docs.cache --query "deploy to production" --budget 4000 --format pretty
"""


class UsageError(Exception):
    """The arguments make no command."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="context",
        description=DESCRIPTION,
        epilog=f"{FIRST_STEPS}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"contextfold {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for command in COMMANDS:
        _add_command(commands, command)
    return parser


def _add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], command: Command) -> None:
    parser = commands.add_parser(
        command.name,
        help=command.summary,
        description=command.description,
        epilog=f"examples:\n{command.examples}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for option in command.options:
        if option.metavar:
            parser.add_argument(
                option.name,
                metavar=option.metavar,
                help=option.help,
                required=option.required,
                choices=option.choices or None,
                default=option.default,
            )
        else:
            parser.add_argument(option.name, help=option.help, action="store_true")
    if command.argument:
        argument = command.argument
        parser.add_argument(argument.name, metavar=argument.metavar, help=argument.help, choices=argument.choices)


def _joined(argv: Sequence[str]) -> Iterator[str]:
    """`--option value` as `--option=value`, so that a value may begin with a dash."""
    taking_value = {option.name for command in COMMANDS for option in command.options if option.metavar}
    words = iter(argv)
    for word in words:
        if word in taking_value and (value := next(words, None)) is not None:
            yield f"{word}={value}"
        else:
            yield word


def main(argv: Sequence[str]) -> int:
    """Run one command; the answer goes to stdout only when there is one, anything else to stderr."""
    try:
        arguments = make_parser().parse_args(list(_joined(argv)))
        return _execute(arguments)
    except UsageError as problem:
        report("the arguments make no command", str(problem))
        return EXIT_USAGE
    except ContextError as problem:
        report(problem.message, problem.reason)
        return EXIT_CODE_OF[problem.code]
    except KeyboardInterrupt:
        report("interrupted", "nothing was changed; run the command again to start over")
        return EXIT_INTERRUPTED
    except MemoryError:
        report(StorageFailed.message, "out of memory; free some, or work on fewer or smaller documents")
        return EXIT_CODE_OF[StorageFailed.code]
    except Exception as problem:  # the one broad net: a bug must end in a code and a line, not in a trace
        report(InternalError.message, f"this is a bug in contextfold {__version__}: {_whereabouts(problem)}")
        return EXIT_CODE_OF[InternalError.code]


def _execute(arguments: argparse.Namespace) -> int:
    from importlib import import_module

    command = import_module(f"contextfold.cli.{arguments.command}")
    code: int = command.run(arguments)
    return code


def _whereabouts(problem: Exception) -> str:
    trace = problem.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    place = f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else ""
    return f"{type(problem).__name__}: {problem}{place}"


def run() -> NoReturn:
    """The `context` script."""
    code = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        code = code or EXIT_CODE_OF[StorageFailed.code]
    sys.exit(code)


__all__ = ["EXIT_OK", "Option", "main", "make_parser", "run", "say"]
