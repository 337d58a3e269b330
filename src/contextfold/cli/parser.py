"""The parser of one command: `argparse`, with the habits of this program.

A value may begin with a dash, because a query often does; words and options may be mixed; an option that does not
exist is answered with the most similar one; an error is one sentence that names the page to read.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from contextfold.cli.output import print_answer
from contextfold.errors import BudgetInvalid

HELP_WORDS = ("-h", "--help")
HELP_COLUMN = 22
HELP_WIDTH = 100
THOUSAND = 1_000
EXIT_CODE_LINES = (
    "  0 ok   1 usage   2 invalid query   3 invalid budget   4 cache missing",
    "  5 cache, source or store invalid   6 I/O   7 internal   8 not possible in this session",
)


class UsageError(Exception):
    """The arguments do not form a command."""


class CommandParser(argparse.ArgumentParser):
    """Parses the words after a command's name into a namespace, whose `run` is the function to call with it.

    `word_option` names an option whose value may also be given as a word without the option's name. `when_incomplete`
    follows the list of missing arguments.
    """

    def __init__(self, prog: str, **options: Any) -> None:  # noqa: ANN401 - what argparse passes on
        self.arguments: list[argparse.Action] = []
        self.examples: Sequence[str] = ()
        self.word_option = ""
        self.when_incomplete = ""
        layout = partial(argparse.RawDescriptionHelpFormatter, max_help_position=HELP_COLUMN, width=HELP_WIDTH)
        super().__init__(prog, allow_abbrev=False, formatter_class=layout, **options)

    def describe(self, description: str, *examples: str, more: str = "") -> None:
        """Set the text of the help: the description, what follows the options, and examples."""
        self.description = _strip_lines(description)
        self.examples = examples
        blocks = [["examples:", *(f"  {line}" for line in examples)], ["exit codes:", *EXIT_CODE_LINES]]
        self.epilog = "\n\n".join([*filter(None, [_strip_lines(more)]), *("\n".join(block) for block in blocks)])

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:  # noqa: ANN401
        action = super().add_argument(*names, **options)
        self.arguments.append(action)
        return action

    def add_switch(self, name: str, help: str) -> None:
        self.add_argument(name, action="store_true", help=help)

    def add_choice(
        self,
        name: str,
        choices: Sequence[str],
        help: str,
        *,
        aliases: Mapping[str, str] | None = None,
        default: str | None = None,
        metavar: str | None = None,
    ) -> None:
        """Add an argument that is one of some words. `aliases` has other words for them.

        The usage lists the words, unless there is a metavar.
        """

        def choose(value: str) -> str:
            chosen = (aliases or {}).get(value, value)
            if chosen not in choices:
                self.error(f"{name} is one of {', '.join(choices)}, not {value!r}{suggest(value, choices)}")
            return chosen

        if default is not None:
            help += " (default: %(default)s)"
        self.add_argument(name, choices=choices, type=choose, default=default, metavar=metavar, help=help)

    def parse_words(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words after the command's name. Raises UsageError; prints the help and exits if it is asked for."""
        arguments, unknown = self.parse_known_args(self._arrange(words))
        if unknown:
            self.error(f"{unknown[0]!r} is not known here")
        return arguments

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")

    def print_help(self, file: object = None) -> None:
        print_answer(self.format_help())

    def _arrange(self, words: Sequence[str]) -> list[str]:
        """The words in an order and a form that argparse cannot misunderstand: `--name=value`, and then the rest.

        argparse itself takes a value that begins with a dash for an option, and takes several words for one argument
        only if they stand together. If another program's arguments follow, everything behind its name is left alone.
        """
        takes_rest = any(action.nargs == argparse.REMAINDER for action in self.arguments)
        options: list[str] = []
        rest: list[str] = []
        given: set[str] = set()
        remaining = iter(words)
        for word in remaining:
            if word == "--":
                rest.extend(remaining)
            elif word == "-" or not word.startswith("-"):
                rest.append(word)
                rest.extend(remaining if takes_rest else ())
            elif word in HELP_WORDS:
                return [word]
            else:
                options.append(self._join_option(word, remaining, given))
        if self.word_option:
            options += [self._join_option(f"{self.word_option}={word}", remaining, given) for word in rest]
            rest = []
        self._refuse_if_incomplete(given, has_words=bool(rest))
        return [*options, "--", *rest] if any(word.startswith("-") for word in rest) else [*options, *rest]

    def _join_option(self, word: str, following: Iterator[str], given: set[str]) -> str:
        """An option and its value, which may be the following word, as one word. Adds the option to `given`."""
        known = {name: action for action in self.arguments for name in action.option_strings}
        name, equals, _ = word.partition("=")
        if name not in known:
            self.error(f"{word!r} is not known here{suggest(word, known)}")
        action = known[name]
        # Only an option whose values make a list may be repeated.
        if action.dest in given and not isinstance(action.default, list):
            self.error(f"{name} is given twice")
        given.add(action.dest)
        takes_value = action.nargs != 0
        if equals and not takes_value:
            self.error(f"{name} takes no value")
        if equals or not takes_value:
            return word
        value = next(following, None)
        if value is None:
            self.error(f"{name} needs a value: {name} {action.metavar or '|'.join(action.choices or ())}")
        return f"{name}={value}"

    def _refuse_if_incomplete(self, given: set[str], *, has_words: bool) -> None:
        missing = []
        for action in self.arguments:
            is_given = action.dest in given if action.option_strings else has_words
            if action.required and not is_given and action.nargs != argparse.REMAINDER:
                choices = f" ({', '.join(action.choices)})" if action.choices else ""
                missing.append((action.option_strings or [action.dest])[0] + choices)
        if missing:
            self.error(f"missing {', '.join(missing)}{self.when_incomplete}")


def _strip_lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def suggest(word: str, known: Iterable[str]) -> str:
    """The most similar of some words, as a question in parentheses; empty if none is similar."""
    # Only mistakes need it.
    from difflib import get_close_matches

    return "".join(f" (did you mean {match}?)" for match in get_close_matches(word, list(known), 1))


def parse_budget(text: str | None, default: int) -> int:
    """Parse a budget, written as 4000, 4,000 or 4k."""
    if text is None:
        return default
    digits = text.replace(",", "").replace("_", "").lower()
    scale = THOUSAND if digits.endswith("k") else 1
    digits = digits.removesuffix("k")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(2**63)):
        raise BudgetInvalid(f"{text!r} is not a number of tokens; write 4000 or 4k")
    return int(digits) * scale
