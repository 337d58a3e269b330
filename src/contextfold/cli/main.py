"""The entry point: runs the command in argv, and turns a failure into an exit code and a message of two lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from contextfold import __version__
from contextfold.cli.commands import parse_command_line
from contextfold.cli.output import print_error
from contextfold.cli.parser import UsageError
from contextfold.errors import (
    EXIT_CODES,
    EXIT_OK,
    EXIT_USAGE,
    ContextError,
    InternalError,
    SettingsError,
    StorageFailed,
    place_of,
)

EXIT_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:  # noqa: PLR0911 - one return for each way to end
    """Run one command and return its exit code. Results go to stdout, everything else to stderr."""
    try:
        args = parse_command_line(argv)
        # Most commands return nothing: they succeed or raise an error.
        return int(args.run(args) or EXIT_OK)
    except SystemExit as end:
        # argparse ends like this after printing help.
        if end.code is None:
            return EXIT_OK
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    except UsageError as problem:
        print_error("invalid command line", str(problem))
        return EXIT_USAGE
    except SettingsError as problem:
        print_error(str(problem))
        return EXIT_USAGE
    except ContextError as problem:
        print_error(problem.message, problem.reason)
        return EXIT_CODES[problem.code]
    except KeyboardInterrupt:
        print_error("interrupted", "nothing is left half done; run the command again")
        return EXIT_INTERRUPTED
    except MemoryError:
        print_error(StorageFailed.message, "out of memory; free some, or work on fewer or smaller documents")
        return EXIT_CODES[StorageFailed.code]
    except Exception as problem:
        # A bug ends with an exit code and a message instead of a traceback.
        location = f"{type(problem).__name__}: {problem} at {place_of(problem)}"
        print_error(InternalError.message, f"this is a bug in contextfold {__version__}: {location}")
        return EXIT_CODES[InternalError.code]


def run() -> NoReturn:
    """The `context` script."""
    sys.exit(main(sys.argv[1:]))


def run_stdio_server() -> NoReturn:
    """The `mcp-context-server` script."""
    sys.exit(main(["serve", "--stdio", *sys.argv[1:]]))


def run_daemon() -> NoReturn:
    """The `contextd` script."""
    sys.exit(main(["serve", *sys.argv[1:]]))
