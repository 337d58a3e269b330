"""`context completion`: prints a script for bash, zsh or fish, which `shtab` writes from the commands' parsers."""

from __future__ import annotations

import argparse

from contextfold.cli.commands import COMMANDS, GROUPS, PROGRAM
from contextfold.cli.output import print_answer
from contextfold.cli.parser import CommandParser
from contextfold.errors import EXIT_OK

SHELLS = ("bash", "zsh", "fish")


def declare_completion(parser: CommandParser) -> None:
    parser.describe(
        "Print a completion script for your shell.",
        "source <(context completion bash)",
        "context completion zsh > ~/.zfunc/_context",
        "context completion fish > ~/.config/fish/completions/context.fish",
    )
    parser.add_choice("shell", SHELLS, "your shell")
    parser.set_defaults(run=run_completion)


def run_completion(args: argparse.Namespace) -> int:
    import shtab

    print_answer(shtab.complete(_build_parser(shtab.DIR, shtab.FILE), args.shell) + "\n")
    return EXIT_OK


def _build_parser(folder: object, file: object) -> argparse.ArgumentParser:
    """A parser of the whole program. Folders and files are recognised by the word that the help has for a value."""
    paths = {"DIR": folder, "FILE": file}
    root = CommandParser(PROGRAM)
    root.add_argument("-V", "--version", action="store_true", help="show the version")
    commands = root.add_subparsers()
    groups = {group: commands.add_parser(group, help=purpose) for group, purpose in GROUPS.items()}
    in_groups = {group: parser.add_subparsers() for group, parser in groups.items()}
    for command in COMMANDS:
        parent = in_groups.get(command.group, commands)
        parser = parent.add_parser(command.name.rpartition(" ")[2], help=command.summary)
        command.declare(parser)
        for action in parser.arguments:
            if action.metavar in paths:
                # The attribute is how shtab is told what completes a value.
                action.complete = paths[action.metavar]  # type: ignore[attr-defined]
    return root
