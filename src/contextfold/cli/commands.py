"""The commands: what each is called, which function declares it, and the pages of help above single commands.

The module of a command has its options, what it does and its output. Only the module of the command that was typed is
imported.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import NamedTuple

from contextfold import __version__
from contextfold.cli.output import print_answer
from contextfold.cli.parser import (
    EXIT_CODE_LINES,
    HELP_COLUMN,
    HELP_WORDS,
    CommandParser,
    UsageError,
    suggest,
)

PROGRAM = "context"
VERSION_WORDS = ("-V", "--version", "version")
# The purpose of each group of commands, and the topics of `context help` that are not commands.
GROUPS = {
    "fold": "sessions and their branches: what is open, what was folded, what it saved",
    "store": "everything that the daemon has stored",
}
TOPICS = {"settings": "every setting of the daemon and the stdio server"}
# Words that people type for a command of another name.
SYNONYMS = {
    "ls": "list",
    "log": "tail",
    "watch": "tail",
    "find": "search",
    "grep": "search",
    "undo": "rollback",
    "cat": "show",
    "start": "serve",
    "daemon": "serve",
    "compile": "build",
    "query": "ask",
    "check": "verify",
    "remove": "uninstall",
    "setup": "install",
}


class Command(NamedTuple):
    """A command: its module, and the function there that declares its options and names the function that runs it."""

    name: str
    module: str
    function: str
    summary: str

    @property
    def group(self) -> str:
        """The first word of a name that has two."""
        return self.name.rpartition(" ")[0]

    @property
    def word(self) -> str:
        return self.name.rpartition(" ")[2]

    def parser(self) -> CommandParser:
        parser = CommandParser(f"{PROGRAM} {self.name}")
        self.declare(parser)
        return parser

    def declare(self, parser: CommandParser) -> None:
        getattr(import_module(f"contextfold.cli.{self.module}"), self.function)(parser)


COMMANDS = (
    Command("build", "build", "declare_build", "compile a folder of documents into a cache"),
    Command("ask", "ask", "declare_ask", "find the passages that answer a question"),
    Command("recall", "fold.search", "declare_recall", "find earlier work that was folded, of any session"),
    Command("get", "ask", "declare_get", "print a document of a cache, or a part of it"),
    Command("ls", "ask", "declare_ls", "list the documents of a cache"),
    Command("resolve", "resolve", "declare_resolve", "select the documents worth showing for a query"),
    Command("inspect", "resolve", "declare_inspect", "show what a cache is"),
    Command("verify", "resolve", "declare_verify", "read every byte of a cache and list each fault"),
    Command("serve", "serve", "declare_serve", "run the daemon, or the stdio server"),
    Command("run", "run", "declare_run", "start an agent program with folding, for this one run"),
    Command("audit", "audit", "declare_audit", "what did my agents cost, and what would the proxy have saved?"),
    Command("open", "doctor", "declare_open", "open the daemon's page in the browser"),
    Command("doctor", "doctor", "declare_doctor", "check that daemon, hooks and proxy work together"),
    Command("service", "serve", "declare_service", "run the daemon in the background, from log-in on"),
    Command("statusline", "hook", "declare_statusline", "print one line for a host's status bar"),
    Command("token", "serve", "declare_token", "make a token that gives access to the daemon"),
    Command("fold status", "fold.status", "declare_status", "show the state of a project's session"),
    Command("fold list", "fold.list", "declare_list", "draw a session's branches as a tree"),
    Command("fold show", "fold.show", "declare_show", "show what a branch did"),
    Command("fold expand", "fold.show", "declare_expand", "print what a branch read and wrote"),
    Command(
        "fold savings",
        "fold.savings",
        "declare_savings",
        "compare what requests cost with what they would have cost unfolded",
    ),
    Command(
        "fold misses",
        "fold.misses",
        "declare_misses",
        "say why the provider's prompt cache did not hold what was sent before",
    ),
    Command("fold report", "fold.report", "declare_report", "write a session as a document, to share it"),
    Command("fold now", "fold.now", "declare_now", "fold the agent's finished work by hand"),
    Command("fold rollback", "fold.rollback", "declare_rollback", "go back to where a branch began"),
    Command("fold search", "fold.search", "declare_search", "search the summaries of folded branches"),
    Command("fold tail", "fold.tail", "declare_tail", "follow events as they happen"),
    Command("store export", "store", "declare_export", "write everything that the store holds to a file"),
    Command("store import", "store", "declare_import", "read an exported file into an empty store"),
    Command("store verify", "store", "declare_verify", "check that everything in the store is as it was stored"),
    Command("store delete", "store", "declare_delete", "delete everything that the store holds; asks once"),
    Command("install", "install", "declare_install", "connect an agent program to the daemon"),
    Command("uninstall", "install", "declare_uninstall", "remove what install wrote"),
    Command("hook", "hook", "declare_hook", "pass a hook's report on to the daemon"),
    Command("completion", "commands", "declare_completion", "print a script that completes this command in your shell"),
)
_BY_NAME = {command.name: command for command in COMMANDS}


def parse_command_line(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a whole command line; `run` of the result is the function to call with it. Raises UsageError.

    The help of a single command is printed here, and then SystemExit is raised, as argparse does.
    """
    first, *words = argv or ["help"]
    if first in HELP_WORDS:
        return _print_later(_overview())
    if first in VERSION_WORDS:
        return _print_later([f"contextfold {__version__}"])
    if first == "help":
        return _parse_help(words)
    if first in GROUPS and (not words or words[0] in (*HELP_WORDS, "help")):
        return _print_later(_group_page(first))
    command, rest = find_command(argv)
    return command.parser().parse_words(rest)


def find_command(argv: Sequence[str]) -> tuple[Command, Sequence[str]]:
    """The command that the first words name, and the words after it. Raises UsageError."""
    name = argv[0]
    if name in GROUPS:
        in_group = {command.word: command for command in COMMANDS if command.group == name}
        given = argv[1] if len(argv) > 1 else ""
        second = SYNONYMS.get(given, given)
        if second in in_group:
            return in_group[second], argv[2:]
        raise UsageError(
            f"`context {name}` has no command {second!r}{suggest(given, in_group)}; see `context {name} --help`"
        )
    command = _BY_NAME.get(name) or _BY_NAME.get(SYNONYMS.get(name, name))
    if command is None:
        raise UsageError(f"there is no command {name!r}{_suggest_command(name)}; see `context --help`")
    return command, argv[1:]


def _suggest_command(name: str) -> str:
    """The most similar command. It may be in a group: for `context status` it is `context fold status`."""
    wanted = SYNONYMS.get(name, name)
    for command in COMMANDS:
        if command.group and command.word == wanted:
            return f" (did you mean `context {command.name}`?)"
    return suggest(name, ["help", "version", *(command.group or command.name for command in COMMANDS)])


# ---- help


DESCRIPTION = (
    "Keep an agent's context small, relevant and explainable. Context goes out by folding: an agent's finished",
    "work is replaced by a summary in what its model is sent. It comes back by resolving: for a question and a",
    "token budget, the documents and sections worth showing.",
)
FIRST_STEPS = (
    "  contextfold audit                           what your agents cost, and what folding would have saved",
    "  contextfold run claude                      start Claude Code with folding, for this one run",
    "  contextfold build docs                      compile a folder of documents",
    '  contextfold ask "how do we roll back?"      get the passages that answer a question',
)


def _parse_help(words: Sequence[str]) -> argparse.Namespace:
    """Parse what follows `context help`: nothing, a topic, a group or a command."""
    if not words:
        return _print_later(_overview())
    if words[0] in TOPICS:
        from contextfold.cli.setting_options import format_settings

        return _print_later(format_settings())
    if words[0] in GROUPS and len(words) == 1:
        return _print_later(_group_page(words[0]))
    command, _ = find_command(words)
    return command.parser().parse_words(HELP_WORDS)


def _print_later(lines: Iterable[str]) -> argparse.Namespace:
    return argparse.Namespace(run=lambda _: print_answer("\n".join(lines) + "\n"))


def _overview() -> Iterator[str]:
    yield "usage: contextfold COMMAND [options]        (`context` is the short form)"
    yield from ("", *DESCRIPTION, "", "commands:")
    yield from _format_rows((command.name, command.summary) for command in COMMANDS)
    yield from ("", "options:")
    yield from _format_rows(
        [
            ("-h, --help", "show this, or what a command does: contextfold COMMAND --help"),
            ("-V, --version", "show the version"),
        ]
    )
    yield from ("", "first steps:", *FIRST_STEPS, "", "more help:")
    yield from _format_rows((f"context help {topic}", text) for topic, text in (GROUPS | TOPICS).items())
    yield from ("", "exit codes:", *EXIT_CODE_LINES)


def _group_page(group: str) -> Iterator[str]:
    yield f"usage: context {group} COMMAND [options]"
    yield from ("", f"{GROUPS[group][0].upper()}{GROUPS[group][1:]}.", "", "commands:")
    yield from _format_rows((command.name, command.summary) for command in COMMANDS if command.group == group)
    yield from ("", f"`context {group} COMMAND --help` shows the options of a command.")


def _format_rows(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, text in rows:
        if len(name) > HELP_COLUMN - 4:
            yield from (f"  {name}", " " * HELP_COLUMN + text)
        else:
            yield f"  {name:<{HELP_COLUMN - 2}}{text}"


# ---- completion


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


def run_completion(args: argparse.Namespace) -> None:
    import shtab

    print_answer(shtab.complete(_build_parser(shtab.DIR, shtab.FILE), args.shell) + "\n")


def _build_parser(folder: object, file: object) -> argparse.ArgumentParser:
    """A parser of the whole program, from which `shtab` writes the script.

    Folders and files are recognised by the word that the help has for a value.
    """
    paths = {"DIR": folder, "FILE": file}
    root = CommandParser(PROGRAM)
    root.add_argument("-V", "--version", action="store_true", help="show the version")
    commands = root.add_subparsers()
    groups = {group: commands.add_parser(group, help=purpose) for group, purpose in GROUPS.items()}
    in_groups = {group: parser.add_subparsers() for group, parser in groups.items()}
    for command in COMMANDS:
        parent = in_groups.get(command.group, commands)
        parser = parent.add_parser(command.word, help=command.summary)
        command.declare(parser)
        for action in parser.arguments:
            if action.metavar in paths:
                # The attribute is how shtab is told what completes a value.
                action.complete = paths[action.metavar]  # type: ignore[attr-defined]
    return root
