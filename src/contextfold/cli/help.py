"""The text of `--help`, written from the table of commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from contextfold.cli.commands import COMMANDS, DESCRIPTION, EXIT_CODES, FIRST_STEPS, Command, Option

COLUMN = 20
WIDTH = 100


def help_text(command: Command | None) -> str:
    return "\n".join(_overview() if command is None else _page(command)) + "\n"


def _overview() -> Iterator[str]:
    yield "usage: context COMMAND [options]"
    yield from ("", *DESCRIPTION, "", "commands:")
    yield from _rows((command.name, command.summary) for command in COMMANDS)
    yield from ("", "options:")
    yield from _rows(
        [("--help", "show this, or what a command does: context COMMAND --help"), ("--version", "show the version")]
    )
    yield from ("", "first steps:", *FIRST_STEPS, "", "exit codes:", *EXIT_CODES)


def _page(command: Command) -> Iterator[str]:
    argument = [command.argument] if command.argument else []
    yield " ".join(["usage: context", command.name, *(_usage_of(option) for option in (*argument, *command.options))])
    yield from ("", *command.description)
    if command.options or argument:
        yield from ("", "options:")
        yield from _rows((_flag(option), _explained(option)) for option in (*argument, *command.options))
    yield from ("", "examples:", *(f"  {line}" for line in command.examples), "", "exit codes:", *EXIT_CODES)


def _flag(option: Option) -> str:
    if not option.name.startswith("-"):
        return option.metavar
    return f"{option.name} {option.metavar}".rstrip()


def _usage_of(option: Option) -> str:
    return _flag(option) if option.required else f"[{_flag(option)}]"


def _explained(option: Option) -> str:
    choices = f" ({' or '.join(option.choices)})" if option.choices else ""
    default = f", {option.default} if not given" if option.default else ""
    return option.help + choices + default


def _rows(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    from textwrap import wrap

    for name, text in rows:
        first, *rest = wrap(text, WIDTH - COLUMN) or [""]
        yield f"  {name:<{COLUMN - 2}}{first}"
        yield from (" " * COLUMN + line for line in rest)
