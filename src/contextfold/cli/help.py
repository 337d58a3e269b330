"""The text of `--help`, written from the tables of commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from contextfold.cli.command import GROUPS, MODULES, TOPICS, Command, Option, commands_beginning_with

COLUMN = 22
WIDTH = 100
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
# All commands, in the order of the help.
COMMANDS = tuple(command for word in MODULES for command in commands_beginning_with(word))


def help_text(command: Command | None, topic: str = "") -> str:
    """The help for a command, for a topic or, without either, for `context` itself."""
    if command:
        lines = _page(command)
    elif topic in GROUPS:
        lines = _group(topic)
    elif topic:
        lines = _settings_page()
    else:
        lines = _overview()
    return "\n".join(lines) + "\n"


def _overview() -> Iterator[str]:
    yield "usage: context COMMAND [options]        (contextfold is the same program)"
    yield from ("", *DESCRIPTION, "", "commands:")
    yield from _rows((command.name, command.summary) for command in COMMANDS)
    yield from ("", "options:")
    yield from _rows(
        [
            ("-h, --help", "show this, or what a command does: context COMMAND --help"),
            ("-V, --version", "show the version"),
        ]
    )
    yield from ("", "first steps:", *FIRST_STEPS, "", "more help:")
    yield from _rows((f"context help {topic}", text) for topic, text in (GROUPS | TOPICS).items())
    yield from ("", "exit codes:", *EXIT_CODES)


def _group(group: str) -> Iterator[str]:
    yield f"usage: context {group} COMMAND [options]"
    yield from ("", f"{GROUPS[group][0].upper()}{GROUPS[group][1:]}.", "", "commands:")
    yield from _rows((command.name, command.summary) for command in COMMANDS if command.group == group)
    yield from ("", f"`context {group} COMMAND --help` shows the options of a command.")


def _page(command: Command) -> Iterator[str]:
    argument = [command.argument] if command.argument else []
    options = [option for option in (*argument, *command.options) if not option.is_advanced]
    yield from _wrapped(f"usage: context {command.name}", [_usage_of(command, option) for option in options])
    yield from ("", *command.description)
    if options:
        yield from ("", "options:")
        yield from _rows((_flag(option), _explained(option)) for option in options)
    if command.has_settings:
        yield from ("", "Every setting can also be a variable or a line of the --config file, and those of NATS can be")
        yield "options here: `context help settings` lists them."
    yield from ("", "examples:", *(f"  {line}" for line in command.examples), "", "exit codes:", *EXIT_CODES)


def _settings_page() -> Iterator[str]:
    yield "Every setting is a variable of the environment, and a line of the TOML file that --config or CONTEXT_CONFIG"
    yield "names. Common ones are also options of `context serve`. An option counts before a variable, and a variable"
    yield "before the file."
    yield from ("", "settings, by their name in the file and their variable:", *_settings())


def _settings() -> Iterator[str]:
    from contextfold.settings import SETTINGS

    for setting in SETTINGS.values():
        default = f" ({setting.default})" if setting.default else ""
        yield f"  {setting.name.replace('-', '_')}, {setting.variable}"
        yield f"      {setting.help}{default}"


def _wrapped(line: str, parts: Iterable[str]) -> Iterator[str]:
    """A line and the parts that follow it, wrapped between parts."""
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


def _usage_of(command: Command, option: Option) -> str:
    flag = f"[{option.name}] {option.metavar}" if option.key == command.bare_word else _flag(option)
    if command.takes_rest and option is command.argument:
        flag += " [ARGS…]"
    return (flag if option.required else f"[{flag}]") + ("…" if option.is_repeatable else "")


def _explained(option: Option) -> str:
    choices = f" ({' or '.join(option.choices)})" if option.choices else ""
    default = f" (default: {option.default})" if option.default else ""
    return option.help + choices + default


def _rows(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    from textwrap import wrap

    for name, text in rows:
        first, *rest = wrap(text, WIDTH - COLUMN) or [""]
        if len(name) > COLUMN - 4:
            yield f"  {name}"
            rest.insert(0, first)
        else:
            yield f"  {name:<{COLUMN - 2}}{first}"
        yield from (" " * COLUMN + line for line in rest)
