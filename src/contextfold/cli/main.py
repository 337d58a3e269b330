"""The entry point: runs the command in argv, and turns a failure into an exit code and a message of two lines."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from contextfold import __version__
from contextfold.cli.output import print_answer, print_error
from contextfold.cli.parse import Invocation, UsageError, parse
from contextfold.errors import EXIT_CODES, EXIT_OK, EXIT_USAGE, ContextError, InternalError, StorageFailed
from contextfold.settings import SettingsError

EXIT_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:  # noqa: PLR0911 - one return for each way to end
    """Run one command. Results go to stdout, everything else to stderr."""
    try:
        return _execute(parse(argv))
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
        print_error(InternalError.message, f"this is a bug in contextfold {__version__}: {_location(problem)}")
        return EXIT_CODES[InternalError.code]


def _execute(invocation: Invocation) -> int:
    if invocation.wants == "version":
        print_answer(f"contextfold {__version__}\n")
    elif invocation.wants == "help" or invocation.command is None:
        from contextfold.cli.help import help_text

        print_answer(help_text(invocation.command, invocation.topic))
    else:
        # Modules leave no garbage, and looking for some would take a tenth of their import, or more later.
        gc.disable()
        # As `importlib.import_module` does, which takes longer to import than some commands.
        name = f"contextfold.cli.{invocation.command.module}"
        __import__(name)
        run = getattr(sys.modules[name], invocation.command.function)
        gc.freeze()
        gc.enable()
        code: int = run(invocation.values)
        return code
    return EXIT_OK


def _location(problem: Exception) -> str:
    from contextfold.errors import place_of

    return f"{type(problem).__name__}: {problem} at {place_of(problem)}"


def run() -> NoReturn:
    """The `context` script."""
    _end(main(sys.argv[1:]))


def _end(code: int) -> NoReturn:
    """End the process at once if nothing else runs in it.

    Otherwise the interpreter would first take all modules apart, which takes as long as importing a fifth of them.
    Results are on their way: they are written without buffers.
    """
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            # The reader has closed it.
            pass
    os._exit(code)


def run_stdio_server() -> NoReturn:
    """The `mcp-context-server` script."""
    sys.exit(main(["serve", "--stdio", *sys.argv[1:]]))


def run_daemon() -> NoReturn:
    """The `contextd` script."""
    sys.exit(main(["serve", *sys.argv[1:]]))
