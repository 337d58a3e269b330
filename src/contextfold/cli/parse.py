"""argv to a command and its values, by the table of commands. Knows words, not what a command does with them.

Written by hand because the standard parser and what it imports would be a quarter of a small resolve's time; the table
keeps it to what this command line needs. A value may begin with a dash: a query often does.
"""

from __future__ import annotations

from contextfold.cli.command import Command, Option
from contextfold.cli.commands import COMMANDS
from contextfold.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

HELP_WORDS = ("-h", "--help")
SEPARATOR = "\0"  # between the values of an option that was repeated; no argument of a process can contain it
HELP = Option("--help", "show what the command does")


class UsageError(Exception):
    """The words make no command."""


class Invocation(Record):
    command: Command | None  # none: about `context` itself
    values: Mapping[str, str]  # by name without dashes; a switch that was given has an empty value
    wants: str = "run"  # or "help", "version"


def parse(argv: Sequence[str]) -> Invocation:
    if not argv:
        raise UsageError("no command given; see `context --help`")
    first, *words = argv
    if first in HELP_WORDS or first == "help":
        return Invocation(_command(words)[0] if words else None, {}, "help")
    if first == "--version":
        return Invocation(None, {}, "version")
    command, words = _command(argv)
    values: dict[str, str] = {}
    for option, value in _given(command, words):
        if option is HELP:
            return Invocation(command, {}, "help")
        if option.key in values and not option.is_repeatable:
            raise _usage(command, f"{option.name} is given twice")
        if option.choices and value not in option.choices:
            raise _usage(command, f"{option.name} is one of {', '.join(option.choices)}, not {value!r}")
        values[option.key] = SEPARATOR.join((values[option.key], value)) if option.key in values else value
    return Invocation(command, _completed(command, values))


def all_of(values: Mapping[str, str], key: str) -> list[str] | None:
    """Each value of an option that may be repeated; None if it was not given."""
    return values[key].split(SEPARATOR) if key in values else None


def _given(command: Command, words: Sequence[str]) -> Iterator[tuple[Option, str]]:
    """Each option with its value, whether written as `--name value` or as `--name=value`."""
    options = dict.fromkeys(HELP_WORDS, HELP) | {option.name: option for option in command.options}
    waiting = iter(words)
    for word in waiting:
        if word == "--" and command.argument:  # what follows is no option, whatever it begins with
            yield from ((command.argument, rest) for rest in waiting)
            return
        name, equals, value = word.partition("=")
        option = options.get(name)
        if option is None:
            yield _positional(command, word), word
        elif option.metavar:
            following = value if equals else next(waiting, None)
            if following is None:
                raise _usage(command, f"{name} needs a value: {name} {option.metavar}")
            yield option, following
        elif equals:
            raise _usage(command, f"{name} takes no value")
        else:
            yield option, ""


def _command(argv: Sequence[str]) -> tuple[Command, list[str]]:
    """The command that the first words name, and the words after."""
    name = argv[0]
    in_group = {command.name.partition(" ")[2]: command for command in COMMANDS if command.group == name}
    if in_group:
        if len(argv) > 1 and argv[1] in in_group:
            return in_group[argv[1]], list(argv[2:])
        raise UsageError(f"`context {name}` is followed by {' or '.join(in_group)}; see `context --help`")
    for command in COMMANDS:
        if command.name == name:
            return command, list(argv[1:])
    known = [command.group or command.name for command in COMMANDS]
    raise UsageError(f"there is no command {name!r}{_nearest(name, known)}; see `context --help`")


def _positional(command: Command, word: str) -> Option:
    if command.argument and not word.startswith("-"):
        return command.argument
    known = [option.name for option in command.options]
    raise _usage(command, f"{word!r} is not known here{_nearest(word, known)}")


def _completed(command: Command, values: dict[str, str]) -> dict[str, str]:
    options = [*command.options, *([command.argument] if command.argument else [])]
    missing = [option.name for option in options if option.required and option.key not in values]
    if missing:
        raise _usage(command, f"missing {', '.join(missing)}")
    defaults = {option.key: option.default for option in options if option.default is not None}
    return defaults | values


def _usage(command: Command, problem: str) -> UsageError:
    return UsageError(f"{problem}; see `context {command.name} --help`")


def _nearest(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    return "".join(f", did you mean {match}?" for match in get_close_matches(word, list(known), 1))
