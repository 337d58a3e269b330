"""Every command and option of `context`, as data: the parser, the help and the shell completion are made from it."""

from __future__ import annotations

from contextfold.common.record import Record


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
    has_settings: bool = False  # that its help lists

    @property
    def module(self) -> str:
        """The module below `contextfold.cli` whose `run` carries the command out."""
        name = self.name.replace(" ", "_")
        if self.group == "fold":
            return f"fold.{name.removeprefix('fold_')}"
        return f"{_ROOMS[name]}.{name}" if name in _ROOMS else name

    @property
    def group(self) -> str:
        """The first word of a name that has two."""
        return self.name.partition(" ")[0] if " " in self.name else ""


_ROOMS = {
    name: room
    for room, names in {
        "agents": ("hook", "install", "uninstall"),
        "caches": ("build", "inspect", "resolve", "verify"),
        "daemon": ("serve", "store_export", "store_import", "store_migrate", "token"),
    }.items()
    for name in names
}

DESCRIPTION = (
    "Keep an agent's context small, relevant and explainable: compile a folder of documents once, then ask",
    "for those that answer a question and fit a token budget; and let an agent branch into a subtask and",
    "fold it back to a summary.",
)
FIRST_STEPS = (
    "  context build --sources docs --cache docs.cache",
    '  context resolve --cache docs.cache --query "deploy to production" --budget 4000 --format pretty',
    "  context serve",
)
EXIT_CODES = (
    "  0 ok   1 usage   2 invalid query   3 invalid budget   4 cache missing",
    "  5 cache, source or store invalid   6 I/O   7 internal   8 not possible in this session",
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
USER = Option("--user", "the files for all projects (cursor)")
URL = Option("--url", "where the daemon listens, http://localhost:9090 if not given", "URL")
TOKEN_VARIABLE = Option("--token-variable", "the variable that holds the token, where the daemon asks for one", "NAME")
YES = Option("--yes", "do not ask, where somebody could answer")
DRY_RUN = Option("--dry-run", "print the difference and change nothing")

STORE = Option("--store", "what holds the folding state: a file, or nats://HOST:PORT,…", "STORE")
CONFIG = Option("--config", "a TOML file of settings", "FILE")
JSON = Option("--json", "for programs")
OF_NATS = (
    Option("--nats-prefix", "what streams and subjects begin with, contextfold if not given", "NAME"),
    Option("--nats-domain", "the JetStream domain", "NAME"),
    Option("--nats-replicas", "servers that keep each stream, 1 for new ones if not given", "N"),
    Option("--nats-creds", "credentials for NATS", "FILE"),
    Option("--nats-nkey", "the seed of an nkey for NATS", "FILE"),
    Option("--nats-user", "the user on NATS", "NAME"),
    Option("--nats-password-file", "the user's password, on its first line", "FILE"),
    Option("--nats-tls-ca", "the authorities that NATS servers' certificates are from", "FILE"),
    Option("--nats-tls-cert", "our certificate, where NATS servers ask for one", "FILE"),
    Option("--nats-tls-key", "its key", "FILE"),
)
OF_SESSION = (
    PROJECT,
    Option("--session", "the named session, the project's own if not given", "NAME"),
    Option("--owner", "whose, where the daemon has tokens; local if not given", "OWNER"),
    JSON,
    STORE,
    CONFIG,
)
BRANCH = Option("branch", "a branch's id or a unique beginning of it", "BRANCH", required=True)

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
        "let agents fold and ask, over MCP",
        (
            "Without --stdio: the daemon. It listens on http://localhost:9090/mcp, lets agents branch into a",
            "subtask and fold it back to a summary, and answers from the caches below a folder. `contextd` is",
            "the same.",
            "With --stdio: one agent's server on stdin and stdout, which its host starts; `mcp-context-server`",
            "is the same. Each setting below can be a variable, or a line of the TOML file that --config names.",
        ),
        (
            "context serve",
            "context serve --port 9100 --cache-root caches",
            "context serve --host 0.0.0.0 --token-file tokens --allow-host ctx.example.org",
            "context serve --store nats://n1:4222,nats://n2:4222 --nats-creds daemon.creds --nats-replicas 3",
            "context serve --stdio --cache-root caches",
        ),
        (
            Option("--stdio", "speak on stdin and stdout instead of HTTP"),
            Option("--host", "the address to listen on, 127.0.0.1 if not given", "ADDRESS"),
            Option("--port", "the port to listen on, 9090 if not given; 0 takes a free one", "N"),
            Option("--cache-root", "the folder that holds the caches", "DIR", takes_folder=True),
            STORE,
            Option("--tools", "resolve, fold or resolve,fold", "LIST"),
            Option("--branch-reminder", "on, or off: no line about the open branch beside results", "on|off"),
            Option("--token-file", "who may call; needed to listen beyond this machine", "FILE"),
            Option("--allow-host", "further names clients may call this machine by, with commas", "NAMES"),
            Option("--anthropic-upstream", "where /proxy/anthropic leads, as in ANTHROPIC_BASE_URL", "URL"),
            Option("--openai-upstream", "where /proxy/openai/v1 leads, as in OPENAI_BASE_URL", "URL"),
            CONFIG,
            *OF_NATS,
        ),
        has_settings=True,
    ),
    Command(
        "token",
        "make a token that lets somebody use the daemon",
        (
            "Make a bearer token for an owner, print it, and add its hash to the file that `context serve` is",
            "given. The token itself is kept nowhere, so it is shown this once. A running daemon takes the file's",
            "new state at once: a new line lets somebody in, a removed line shuts them out.",
        ),
        (
            "context token alice --token-file tokens",
            "context token build-robot --token-file /etc/contextfold/tokens > robot.token",
        ),
        (Option("--token-file", "the file of owners and hashes, made if it is not there", "FILE", required=True),),
        argument=Option("owner", "whose sessions the token opens: letters, digits and . _ @ -", "OWNER", required=True),
    ),
    Command(
        "fold status",
        "tell how a project's session stands",
        (
            "Show a project's session: where work goes on, its tokens against the limit, what was folded and",
            "what that saved, its health, how many secrets were scrubbed. Works on the store itself, whether or",
            "not the daemon runs, as every `context fold` command does.",
        ),
        (
            "context fold status",
            "context fold status --all",
            "context fold status --project ~/work/app --json",
        ),
        (Option("--all", "every live session, the latest activity first"), *OF_SESSION),
    ),
    Command(
        "fold list",
        "draw a session's branches as a tree",
        (
            "Draw the tree of a session's branches, each with how it stands, its tokens, and what folding saved.",
            "In a pipe, a line each: id, status, tokens, saved, description.",
        ),
        (
            "context fold list",
            "context fold list --limit 1000",
            "context fold list --json",
        ),
        (Option("--limit", "how many branches at most, the last ones; 200 if not given", "N"), *OF_SESSION),
    ),
    Command(
        "fold show",
        "show what a branch did",
        (
            "Show a branch's prompt, its operations, the branches below it and its summary, from the archive:",
            "discarded ones too, and by their whole id those of ended sessions.",
        ),
        (
            "context fold show br_4c1d",
            "context fold show main",
            "context fold show br_4c1d --full | less",
        ),
        (Option("--full", "every text to its end, not only its first lines"), *OF_SESSION),
        argument=BRANCH,
    ),
    Command(
        "fold expand",
        "give back what a branch read and wrote",
        (
            "Print the texts of a branch as the archive has them, without their secrets and without anything of",
            "ours: its prompt, what it did, its summary. What a rollback undid is left out. With --json, all the",
            "entries that `context_expand` gives.",
        ),
        (
            "context fold expand br_4c1d",
            "context fold expand br_4c1d | grep -n timeout",
        ),
        OF_SESSION,
        argument=BRANCH,
    ),
    Command(
        "fold savings",
        "compare what requests cost with what they would have cost unfolded",
        (
            "Show what folding saved at the provider, or cost: tokens sent with and without it, their price with",
            "the provider's cache in mind, and which folds cost more than they saved. Counted are the requests",
            "that went through the daemon's proxy; prices are the settings price-cache-read-percent and",
            "price-cache-write-percent.",
        ),
        (
            "context fold savings",
            "context fold savings --all",
            "context fold savings --json | jq .cost_saved",
        ),
        (Option("--all", "every live session, the latest activity first"), *OF_SESSION),
    ),
    Command(
        "fold rollback",
        "go back to where a branch began",
        (
            "Undo everything since a branch began: later branches are discarded, and the branch is open again.",
            "Says first what that discards, and asks. Nothing is erased: `context fold show` still has it.",
        ),
        (
            "context fold rollback br_4c1d --dry-run",
            "context fold rollback br_4c1d",
            "context fold rollback br_4c1d --keep --yes",
        ),
        (
            Option("--keep", "discard the later branches alone; what else was done stays"),
            Option("--yes", "do not ask"),
            Option("--dry-run", "say what it would do, and change nothing"),
            *OF_SESSION,
        ),
        argument=BRANCH,
    ),
    Command(
        "fold search",
        "find what folded branches came to",
        (
            "Search the summaries of folded branches, the best first. Every word must be there, in any case;",
            "the last may be the beginning of one. Works on the store itself, whether or not the daemon runs.",
        ),
        (
            'context fold search "auth error"',
            "context fold search timeout --project ~/work/app --json",
        ),
        (
            Option("--project", "only this project's", "DIR", takes_folder=True),
            Option("--limit", "how many at most, 20 if not given", "N"),
            Option("--owner", "whose summaries, where the daemon has tokens; local if not given", "OWNER"),
            JSON,
            STORE,
            CONFIG,
        ),
        argument=Option("query", "the words to look for", "QUERY", required=True),
    ),
    Command(
        "fold tail",
        "follow what happens, as it happens",
        (
            "Print a line for everything that happens in a project's sessions, whichever process does it, until",
            "Ctrl-C. With --json, an object a line.",
        ),
        (
            "context fold tail",
            "context fold tail --all --since-start",
            "context fold tail --json | jq .event",
        ),
        (
            Option("--all", "of every project"),
            Option("--since-start", "first what has happened so far in live sessions"),
            *OF_SESSION,
        ),
    ),
    Command(
        "store export",
        "write everything that the store holds to a file",
        (
            "Write all sessions of every owner, live and ended, with their receipts, archive, summaries and",
            "left-out results to one new file: a backup, or the way to another store. Daemons may keep running.",
            "The file is compressed if its name ends in .gz. docs/export.md describes the format.",
        ),
        (
            "context store export backup.jsonl.gz",
            "context store export backup.jsonl --store nats://n1:4222,nats://n2:4222",
        ),
        (STORE, JSON, CONFIG, *OF_NATS),
        Option("file", "the file to write; it must not exist", "FILE", required=True),
    ),
    Command(
        "store import",
        "read an exported file into an empty store",
        (
            "Verify an exported file, store everything in it and compare. The store must be empty; a file is",
            "created if it is missing. Into a file it is all or nothing. An import into NATS that was interrupted",
            "says what to delete before it is repeated.",
        ),
        (
            "context store import backup.jsonl.gz --store nats://n1:4222",
            "context store import backup.jsonl.gz --store sqlite:restored.db --json",
        ),
        (STORE, JSON, CONFIG, *OF_NATS),
        Option("file", "the exported file", "FILE", required=True),
    ),
    Command(
        "store migrate",
        "replaced by store export and store import",
        (
            "Removed. Export the one store with `context store export FILE` and import the file into the other",
            "with `context store import FILE --store STORE`.",
        ),
        ("context store export backup.jsonl.gz",),
        (
            Option("--from", "ignored", "STORE"),
            Option("--to", "ignored", "STORE"),
            JSON,
            CONFIG,
            *OF_NATS,
        ),
    ),
    Command(
        "install",
        "wire an agent's host to the daemon, or let it start the server",
        (
            "Write our server and our hooks into an agent host's own configuration files, once you have seen the",
            "difference. Everything else in the files stays as it is, to the byte. Without --stdio and",
            "--cache-root it is the daemon that `context serve` runs: the host calls it, and its hooks tell it",
            "what the agent does. With one of them the host starts `context serve --stdio` itself, and there",
            "are no hooks.",
        ),
        (
            "context install claude-code",
            "context install vscode --project ~/work/app --dry-run",
            "context install cursor --url https://ctx.example.org --token-variable CONTEXT_TOKEN",
            "context install claude-code --cache-root caches",
        ),
        (
            URL,
            TOKEN_VARIABLE,
            Option("--stdio", "let the host start the server; CONTEXT_CACHE_ROOT may name its caches"),
            Option(
                "--cache-root",
                "the folder that holds the caches of a server that the host starts",
                "DIR",
                takes_folder=True,
            ),
            PROJECT,
            USER,
            Option("--force", "replace an entry of this name that somebody else wrote"),
            YES,
            DRY_RUN,
        ),
        argument=HOST,
    ),
    Command(
        "uninstall",
        "take back what install wrote",
        (
            "Remove our server and our hooks from an agent host's configuration files, and print the difference.",
            "Without edits in between, the files are what they were before `context install`, to the byte; with",
            "edits, they stay.",
        ),
        (
            "context uninstall claude-code",
            "context uninstall cursor --user --dry-run",
        ),
        (PROJECT, USER, YES, DRY_RUN),
        argument=HOST,
    ),
    Command(
        "hook",
        "tell the daemon what a host's hook says",
        (
            "Read one hook's JSON from stdin, send it to the daemon, and print what the daemon wants the host to",
            "know, mostly nothing. `context install` writes this command where a host cannot call the daemon",
            "itself. A daemon that is down, slow or unwilling is no failure: the agent must not notice.",
        ),
        (
            "context hook cursor < hook.json",
            "context hook claude-code --url http://localhost:9100 < hook.json",
        ),
        (URL, TOKEN_VARIABLE),
        argument=Option("host", "whose hook it is", "HOST", required=True, choices=("claude-code", "cursor", "vscode")),
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
