"""The text of `--help`, written from the table of commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from contextfold.cli.command import Command, Option
from contextfold.cli.commands import COMMANDS, DESCRIPTION, EXIT_CODES, FIRST_STEPS

COLUMN = 22
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
    yield from _wrapped(
        f"usage: context {command.name}", [_usage_of(option) for option in (*argument, *command.options)]
    )
    yield from ("", *command.description)
    if command.options or argument:
        yield from ("", "options:")
        yield from _rows((_flag(option), _explained(option)) for option in (*argument, *command.options))
    if command.has_settings:
        yield from ("", "settings, by the name in the file and the variable:", *_settings())
    yield from ("", "examples:", *(f"  {line}" for line in command.examples), "", "exit codes:", *EXIT_CODES)


def _settings() -> Iterator[str]:
    from contextfold.settings import SETTINGS

    for setting in SETTINGS.values():
        default = f" ({setting.default})" if setting.default else ""
        yield f"  {setting.name.replace('-', '_')}, {setting.variable}"
        yield f"      {setting.help}{default}"


def _wrapped(line: str, parts: Iterable[str]) -> Iterator[str]:
    """Parts behind a beginning, none of them broken, on as many lines as it takes."""
    for part in parts:
        if len(line) + 1 + len(part) > WIDTH:
            yield line
            line = " " * len("usage:")
        line += f" {part}"
    yield line


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
        if len(name) > COLUMN - 4:  # no room beside it
            yield f"  {name}"
            rest.insert(0, first)
        else:
            yield f"  {name:<{COLUMN - 2}}{first}"
        yield from (" " * COLUMN + line for line in rest)
