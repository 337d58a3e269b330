"""Parses argv by the tables of commands.

It does not use `argparse`, because importing it takes a quarter of the time of a small resolve. A value may begin with
a dash, because a query often does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from contextfold.cli.command import GROUPS, SYNONYMS, TOPICS, Command, Option, commands_beginning_with
from contextfold.errors import BudgetInvalid

HELP_WORDS = ("-h", "--help")
VERSION_WORDS = ("-V", "--version", "version")
THOUSAND = 1_000
HELP = Option("--help", "show what the command does")


class UsageError(Exception):
    """The arguments do not form a command."""


class Values(dict[str, str]):
    """The value of each option, by its name without dashes. The value of a switch is empty."""

    def __init__(self, given: dict[str, list[str]], rest: Sequence[str] = ()) -> None:
        super().__init__({key: values[-1] for key, values in given.items()})
        self._given = given
        self.rest = tuple(rest)

    def every(self, key: str) -> tuple[str, ...]:
        """All values of an option that may be repeated, in order."""
        return tuple(self._given.get(key, ()))


class Invocation(NamedTuple):
    command: Command | None
    values: Values
    wants: str = "run"
    topic: str = ""


def parse(argv: Sequence[str]) -> Invocation:  # noqa: PLR0911 - one return for each thing to show
    """Find the command to run, or the subject of the help to show.

    `wants` is "run", "help" or "version". Help without a command is about `context` itself or about a topic: a group of
    commands, or `settings`.
    """
    if not argv or argv[0] in HELP_WORDS:
        return _help(None)
    first, *words = argv
    if first == "help":
        if not words or words[0] in TOPICS or (words[0] in GROUPS and len(words) == 1):
            return _help(None, *words[:1])
        return _help(_command(words)[0])
    if first in VERSION_WORDS:
        return Invocation(None, Values({}), "version")
    if first in GROUPS and (not words or words[0] in (*HELP_WORDS, "help")):
        return _help(None, first)
    command, words = _command(argv)
    given: dict[str, list[str]] = {}
    rest: list[str] = []
    for option, value in _options_in(command, words, rest):
        if option is HELP:
            return _help(command)
        if option.key in given and not option.is_repeatable:
            raise _usage(command, f"{option.name} is given twice")
        given.setdefault(option.key, []).append(_chosen(command, option, value))
    return Invocation(command, Values(_completed(command, given), rest))


def _help(command: Command | None, topic: str = "") -> Invocation:
    return Invocation(command, Values({}), "help", topic)


def _options_in(command: Command, words: Sequence[str], rest: list[str]) -> Iterator[tuple[Option, str]]:
    """Each option with its value, written as `--name value` or as `--name=value`.

    If a command takes the arguments of another program, everything after its own argument is put into `rest`.
    """
    options = dict.fromkeys(HELP_WORDS, HELP) | {option.name: option for option in command.options}
    waiting = iter(words)
    for word in waiting:
        if word == "--" and command.positional:
            if command.takes_rest:
                yield command.positional, next(waiting, "")
                rest.extend(waiting)
            yield from ((command.positional, value) for value in waiting)
            return
        name, equals, value = word.partition("=")
        option = options.get(name)
        if option is None:
            yield _positional(command, word), word
            if command.takes_rest:
                rest.extend(waiting)
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
    """The command that the first words name, and the words after it."""
    name = argv[0]
    if name in GROUPS:
        in_group = {command.name.partition(" ")[2]: command for command in commands_beginning_with(name)}
        second = SYNONYMS.get(argv[1], argv[1]) if len(argv) > 1 else ""
        if second in in_group:
            return in_group[second], list(argv[2:])
        hint = _nearest(argv[1], in_group) if len(argv) > 1 else ""
        raise UsageError(f"`context {name}` has no command {second!r}{hint}; see `context {name} --help`")
    for command in commands_beginning_with(SYNONYMS.get(name, name)):
        return command, list(argv[1:])
    raise UsageError(f"there is no command {name!r}{_suggestion(name)}; see `context --help`")


def _suggestion(name: str) -> str:
    """The most similar command. It may be in a group: for `context status` it is `context fold status`."""
    from contextfold.cli.help import COMMANDS

    wanted = SYNONYMS.get(name, name)
    for command in COMMANDS:
        if command.group and command.name.partition(" ")[2] == wanted:
            return f" (did you mean `context {command.name}`?)"
    return _nearest(name, ["help", "version", *(command.group or command.name for command in COMMANDS)])


def _positional(command: Command, word: str) -> Option:
    positional = command.positional
    if positional and (not word.startswith("-") or (word == "-" and positional.takes_file)):
        return positional
    raise _usage(command, f"{word!r} is not known here{_nearest(word, [option.name for option in command.options])}")


def _chosen(command: Command, option: Option, value: str) -> str:
    if not option.choices or value in option.choices:
        return value
    if value in option.aliases:
        return option.aliases[value]
    hint = _nearest(value, option.choices)
    raise _usage(command, f"{option.name} is one of {', '.join(option.choices)}, not {value!r}{hint}")


def _completed(command: Command, given: dict[str, list[str]]) -> dict[str, list[str]]:
    options = [*command.options, *([command.argument] if command.argument else [])]
    missing = [_described(option) for option in options if option.required and option.key not in given]
    if missing:
        raise _usage(command, f"missing {', '.join(missing)}{command.when_incomplete}")
    defaults = {option.key: [option.default] for option in options if option.default is not None}
    return defaults | given


def _described(option: Option) -> str:
    return f"{option.name} ({', '.join(option.choices)})" if option.choices else option.name


def _usage(command: Command, problem: str) -> UsageError:
    return UsageError(f"{problem}; see `context {command.name} --help`")


def _nearest(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    return "".join(f" (did you mean {match}?)" for match in get_close_matches(word, list(known), 1))


def budget_for_people(text: str | None, default: int) -> int:
    """Parse a budget, written as 4000, 4,000 or 4k."""
    if text is None:
        return default
    digits = text.replace(",", "").replace("_", "").lower()
    scale = THOUSAND if digits.endswith("k") else 1
    digits = digits.removesuffix("k")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(2**63)):
        raise BudgetInvalid(f"{text!r} is not a number of tokens; write 4000 or 4k")
    return int(digits) * scale
