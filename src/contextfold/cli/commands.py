"""Every command and option of `context`, as data: the parser, the help and the shell completion are made from it."""

from __future__ import annotations

from contextfold.record import Record


class Option(Record):
    name: str
    help: str
    metavar: str = ""  # a switch, if empty
    required: bool = False
    choices: tuple[str, ...] = ()
    default: str | None = None
    takes_folder: bool = False

    @property
    def key(self) -> str:
        return self.name.lstrip("-")


class Command(Record):
    name: str
    summary: str
    description: tuple[str, ...]
    examples: tuple[str, ...]
    options: tuple[Option, ...] = ()
    argument: Option | None = None


DESCRIPTION = (
    "Keep an agent's context small, relevant and explainable: compile a folder of documents once,",
    "then ask for those that answer a question and fit a token budget.",
)
FIRST_STEPS = (
    "  context build --sources docs --cache docs.cache",
    '  context resolve --cache docs.cache --query "deploy to production" --budget 4000 --format pretty',
)
EXIT_CODES = (
    "  0 ok   1 usage   2 invalid query   3 invalid budget   4 cache missing",
    "  5 cache or source invalid   6 I/O   7 internal",
)

CACHE = Option("--cache", "the cache folder", "DIR", required=True, takes_folder=True)
HOST = Option(
    "host",
    "the program to be configured",
    "HOST",
    required=True,
    choices=("claude-code", "claude-desktop", "cursor", "vscode"),
)
PROJECT = Option("--project", "the project's folder, the current one if not given", "DIR", takes_folder=True)
USER = Option("--user", "the file for all projects (cursor)")
DRY_RUN = Option("--dry-run", "print the difference and change nothing")

COMMANDS = (
    Command(
        "build",
        "compile a folder of .md documents into a cache",
        (
            "Compile every .md file below a folder into an immutable cache. The cache appears whole or not at",
            "all; without --force nothing that exists is touched.",
        ),
        (
            "context build --sources docs --cache docs.cache",
            "context build --sources docs --cache docs.cache --force",
        ),
        (
            Option("--sources", "the folder that holds the documents", "DIR", required=True, takes_folder=True),
            Option("--cache", "where the cache is to be", "DIR", required=True, takes_folder=True),
            Option("--force", "replace a cache that is already there, once the new one is complete"),
        ),
    ),
    Command(
        "resolve",
        "select the documents worth showing for a query",
        (
            "Print the documents that answer a query best and fit a token budget, as JSON, each with the reason",
            "for its score. The same cache, query and budget give the same bytes on every machine.",
        ),
        (
            'context resolve --cache docs.cache --query "deploy to production" --budget 4000',
            "context resolve --cache docs.cache --query rollback --budget 800 --format pretty",
        ),
        (
            CACHE,
            Option("--query", "what you want to know; whole words are matched, in any case", "TEXT", required=True),
            Option(
                "--budget", "how many tokens the documents may have together; four bytes are one", "N", required=True
            ),
            Option("--format", "one line, or indented", "FORMAT", choices=("json", "pretty"), default="json"),
        ),
    ),
    Command(
        "inspect",
        "tell what a cache is",
        ("Print a cache's version, number of documents, their size in bytes, and whether it is valid, as JSON.",),
        ("context inspect --cache docs.cache",),
        (CACHE,),
    ),
    Command(
        "verify",
        "read every byte of a cache and list each fault",
        ("Read every file of a cache, trusting no timestamp, and list everything that is wrong with it.",),
        ("context verify --cache docs.cache",),
        (CACHE,),
    ),
    Command(
        "serve",
        "let agents ask, over MCP",
        (
            "Serve the caches below a folder to an agent over MCP on stdin and stdout. An agent's host starts",
            "this; `mcp-context-server` is the same. CONTEXT_CACHE_ROOT names the folder where --cache-root",
            "does not, and CONTEXT_TOOL_TIMEOUT_SECS (30) is how long a call may take.",
        ),
        ("context serve --stdio --cache-root caches",),
        (
            Option("--stdio", "speak on stdin and stdout"),
            Option("--cache-root", "the folder that holds the caches", "DIR", takes_folder=True),
        ),
    ),
    Command(
        "install",
        "let an agent's host start the server",
        (
            "Write the entry that starts `context serve --stdio` into an agent host's own configuration file, and",
            "print the difference. Everything else in the file stays as it is, to the byte.",
        ),
        (
            "context install claude-code --cache-root caches",
            "context install cursor --user --cache-root caches",
            "context install vscode --cache-root caches --project ~/work/app --dry-run",
        ),
        (
            Option(
                "--cache-root",
                "the folder that holds the caches, CONTEXT_CACHE_ROOT if not given",
                "DIR",
                takes_folder=True,
            ),
            PROJECT,
            USER,
            Option("--force", "replace an entry of this name that somebody else wrote"),
            DRY_RUN,
        ),
        argument=HOST,
    ),
    Command(
        "uninstall",
        "take back what install wrote",
        (
            "Remove our entry from an agent host's configuration file, and print the difference. Without edits in",
            "between, the file is what it was before `context install`, to the byte; with edits, they stay.",
        ),
        (
            "context uninstall claude-code",
            "context uninstall cursor --user --dry-run",
        ),
        (PROJECT, USER, DRY_RUN),
        argument=HOST,
    ),
    Command(
        "completion",
        "print a script that completes this command in your shell",
        ("Print a completion script for your shell.",),
        (
            "source <(context completion bash)",
            "context completion zsh > ~/.zfunc/_context",
            "context completion fish > ~/.config/fish/completions/context.fish",
        ),
        argument=Option("shell", "your shell", "SHELL", required=True, choices=("bash", "zsh", "fish")),
    ),
)
