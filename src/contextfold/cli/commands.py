"""Every command and option of `context`, as data: the parser, the help and the shell completion are made from it."""

from __future__ import annotations

from typing import NamedTuple


class Option(NamedTuple):
    name: str
    help: str
    metavar: str = ""  # a switch, if empty
    required: bool = False
    choices: tuple[str, ...] = ()
    default: str | None = None
    takes_folder: bool = False


class Command(NamedTuple):
    name: str
    summary: str
    description: str
    examples: str
    options: tuple[Option, ...] = ()
    argument: Option | None = None


CACHE = Option("--cache", "the cache folder", "DIR", required=True, takes_folder=True)

EXIT_CODES = """\
exit codes:
  0 ok   1 usage   2 invalid query   3 invalid budget   4 cache missing   5 cache or source invalid   6 I/O   7 internal
"""

COMMANDS = (
    Command(
        "build",
        "compile a folder of .md documents into a cache",
        "Compile every .md file below a folder into an immutable cache. The cache appears whole or not at all; without\n"
        "--force nothing that exists is touched.",
        "  context build --sources docs --cache docs.cache\n"
        "  context build --sources docs --cache docs.cache --force    replace it once the new one is complete\n",
        (
            Option("--sources", "the folder that holds the documents", "DIR", required=True, takes_folder=True),
            Option("--cache", "where the cache is to be", "DIR", required=True, takes_folder=True),
            Option("--force", "replace a cache that is already there"),
        ),
    ),
    Command(
        "resolve",
        "select the documents worth showing for a query",
        "Print the documents that answer a query best and fit a token budget, as JSON, each with the reason for its score.\n"
        "The same cache, query and budget give the same bytes on every machine.",
        '  context resolve --cache docs.cache --query "deploy to production" --budget 4000\n'
        "  context resolve --cache docs.cache --query rollback --budget 800 --format pretty\n",
        (
            CACHE,
            Option("--query", "what you want to know; words are matched whole, in any case", "TEXT", required=True),
            Option(
                "--budget", "how many tokens the documents may have together (a token is 4 bytes)", "N", required=True
            ),
            Option(
                "--format",
                "json: one line (the default); pretty: indented",
                "FORMAT",
                choices=("json", "pretty"),
                default="json",
            ),
        ),
    ),
    Command(
        "inspect",
        "tell what a cache is",
        "Print a cache's version, number of documents, their size in bytes, and whether it is valid, as JSON.",
        "  context inspect --cache docs.cache\n",
        (CACHE,),
    ),
    Command(
        "verify",
        "read every byte of a cache and list each fault",
        "Read every file of a cache, trusting no timestamp, and list everything that is wrong with it.",
        "  context verify --cache docs.cache\n",
        (CACHE,),
    ),
    Command(
        "completion",
        "print a script that completes this command in your shell",
        "Print a completion script for your shell.",
        "  source <(context completion bash)                                     bash, for this session\n"
        "  context completion zsh > ~/.zfunc/_context                            zsh, with ~/.zfunc in fpath\n"
        "  context completion fish > ~/.config/fish/completions/context.fish     fish\n",
        argument=Option("shell", "your shell", "SHELL", required=True, choices=("bash", "zsh", "fish")),
    ),
)
