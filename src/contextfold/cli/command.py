"""What a command and an option are, and the words that begin a command line.

The commands of each folder are in a table of their own, because a command line names one: `cache_commands`,
`fold_commands`, `agent_commands`, `daemon_commands`. `help` has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from contextfold.settings import SETTINGS


class Option(NamedTuple):
    """An option, or an argument without dashes. Without a metavar it is a switch. `aliases` stand for choices."""

    name: str
    help: str
    metavar: str = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    default: str | None = None
    takes_folder: bool = False
    takes_file: bool = False
    is_repeatable: bool = False
    is_advanced: bool = False
    aliases: Mapping[str, str] = {}

    @property
    def key(self) -> str:
        return self.name.lstrip("-")


class Command(NamedTuple):
    """A command. A word without dashes is its `argument`, or the value of the option that `bare_word` names.

    `has_settings`: every setting may be given, which `context help settings` lists. `takes_rest`: what follows the
    argument belongs to another program. `when_incomplete` follows the list of missing options.
    """

    name: str
    summary: str
    description: tuple[str, ...]
    examples: tuple[str, ...]
    options: tuple[Option, ...] = ()
    argument: Option | None = None
    bare_word: str = ""
    has_settings: bool = False
    takes_rest: bool = False
    when_incomplete: str = ""

    @property
    def module(self) -> str:
        """The module below `contextfold.cli` that has the command's function."""
        first, _, second = self.name.partition(" ")
        return f"fold.{'show' if second == 'expand' else second}" if first == "fold" else MODULES[first]

    @property
    def function(self) -> str:
        """The function of that module which carries the command out."""
        return f"run_{self.name.rpartition(' ')[2]}"

    @property
    def group(self) -> str:
        """The first word of a name that has two."""
        return self.name.partition(" ")[0] if " " in self.name else ""

    @property
    def positional(self) -> Option | None:
        """The option or argument that a word without dashes is a value of."""
        return self.argument or next((option for option in self.options if option.key == self.bare_word), None)


# The first words of commands, in the order of the help, and the module of each. Those of `fold` have one each.
MODULES = {
    "build": "caches.build",
    "ask": "caches.ask",
    "recall": "fold.search",
    "get": "caches.ask",
    "resolve": "caches.resolve",
    "inspect": "caches.resolve",
    "verify": "caches.resolve",
    "serve": "daemon.serve",
    "run": "agents.run",
    "doctor": "daemon.doctor",
    "service": "daemon.service",
    "statusline": "agents.statusline",
    "token": "daemon.serve",
    "fold": "fold",
    "store": "daemon.store",
    "install": "agents.install",
    "uninstall": "agents.install",
    "hook": "agents.hook",
    "completion": "completion",
}
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


def commands_beginning_with(word: str) -> Sequence[Command]:
    """The commands whose first word it is. Imports only their table."""
    match MODULES.get(word, "").partition(".")[0]:
        case "caches":
            from contextfold.cli.cache_commands import COMMANDS
        case "fold":
            from contextfold.cli.fold_commands import COMMANDS
        case "daemon":
            from contextfold.cli.daemon_commands import COMMANDS
        case "":
            return ()
        case _:
            from contextfold.cli.agent_commands import COMMANDS
    return [command for command in COMMANDS if (command.group or command.name) == word]


# ---- options of commands in several rooms


def setting_option(name: str, *, takes_folder: bool = False) -> Option:
    """The option of a setting."""
    setting = SETTINGS[name]
    default = f" (default: {setting.default})" if setting.default and setting.default != "0" else ""
    return Option(f"--{name}", setting.help + default, setting.metavar, takes_folder=takes_folder)


STORE = setting_option("store")
CONFIG = Option("--config", "a TOML file of settings", "FILE")
JSON = Option("--json", "print JSON, for programs")
URL = Option("--url", "the daemon's address (default: http://localhost:9090)", "URL")
TOKEN_VARIABLE = Option(
    "--token-variable", "the environment variable with the token, if the daemon requires one", "NAME"
)
OWNER = Option("--owner", "the owner, if the daemon uses tokens (default: local)", "OWNER")
BUDGET = Option("--budget", "the most tokens the answer may have; 4k is 4000 (default: 4000)", "N")
YES = Option("--yes", "do not ask for confirmation")
