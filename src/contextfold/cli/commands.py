"""The table of commands and options of `context`. The parser, the help and the shell completion are derived from it."""

from __future__ import annotations

from contextfold.common.record import Record
from contextfold.settings_table import NATS, SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Option(Record):
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


class Command(Record):
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
        """The module below `contextfold.cli` whose `run` carries the command out."""
        name = self.name.replace(" ", "_")
        if self.group == "fold":
            return f"fold.{name.removeprefix('fold_')}"
        return f"{_ROOMS[name]}.{name}" if name in _ROOMS else name

    @property
    def group(self) -> str:
        """The first word of a name that has two."""
        return self.name.partition(" ")[0] if " " in self.name else ""

    @property
    def positional(self) -> Option | None:
        """The option or argument that a word without dashes is a value of."""
        return self.argument or next((option for option in self.options if option.key == self.bare_word), None)


_ROOMS = {
    name: room
    for room, names in {
        "agents": ("hook", "install", "run", "statusline", "uninstall"),
        "caches": ("ask", "build", "get", "inspect", "pack", "resolve", "unpack", "verify"),
        "fold": ("recall",),
        "daemon": ("doctor", "serve", "service", "store_export", "store_import", "store_migrate", "token"),
    }.items()
    for name in names
}

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

CACHE = Option("--cache", "the cache folder", "DIR", required=True, takes_folder=True)
ASKED_CACHE = Option(
    "--cache",
    "a cache; may be repeated (default: the nearest one)",
    "DIR",
    takes_folder=True,
    is_repeatable=True,
)
ASKED_ROOT = Option("--cache-root", "ask every cache in this folder", "DIR", takes_folder=True)
HOST = Option(
    "host",
    "the program to be configured",
    "HOST",
    required=True,
    choices=(
        "claude-code",
        "claude-desktop",
        "cursor",
        "vscode",
        "codex",
        "opencode",
        "gemini-cli",
        "zed",
        "windsurf",
    ),
    aliases={"claude": "claude-code", "code": "vscode", "vs-code": "vscode", "gemini": "gemini-cli"},
)
PROJECT = Option("--project", "the project's folder (default: the current one)", "DIR", takes_folder=True)
INSTALLED_PROJECT = Option("--project", "write the files of this project instead of your own", "DIR", takes_folder=True)
USER = Option("--user", "write your own files, for all projects (the default if the program has such files)")
URL = Option("--url", "the daemon's address (default: http://localhost:9090)", "URL")
TOKEN_VARIABLE = Option(
    "--token-variable", "the environment variable with the token, if the daemon requires one", "NAME"
)
YES = Option("--yes", "do not ask for confirmation")
DRY_RUN = Option("--dry-run", "print the changes and write nothing")


def _setting(name: str, *, takes_folder: bool = False) -> Option:
    """The option of a setting."""
    setting = SETTINGS[name]
    default = f" (default: {setting.default})" if setting.default and setting.default != "0" else ""
    return Option(f"--{name}", setting.help + default, setting.metavar, takes_folder=takes_folder)


STORE = _setting("store")
CONFIG = Option("--config", "a TOML file of settings", "FILE")
JSON = Option("--json", "print JSON, for programs")
OF_NATS = tuple(_setting(name)._replace(is_advanced=True) for name in NATS)
OF_SESSION = (
    PROJECT,
    Option("--session", "the name of a session (default: the project's unnamed one)", "NAME"),
    Option("--owner", "the owner, if the daemon uses tokens (default: local)", "OWNER"),
    JSON,
    STORE,
    CONFIG,
)
BRANCH = Option("branch", "a branch's id or a unique beginning of it", "BRANCH", required=True)

COMMANDS = (
    Command(
        "build",
        "compile a folder of documents into a cache",
        (
            "Compile the documents below a folder into an immutable cache. The cache appears whole or not at all.",
            "",
            "context build DIR reads Markdown, text, reStructuredText, AsciiDoc, Org, HTML, notebooks and source",
            "code, follows .gitignore files, says what it left out, and puts the cache at DIR/.context-cache.",
            "Run it again after a change: what did not change is taken over from the cache before.",
            "",
            "context build --sources DIR --cache DIR takes every .md file and nothing else, and fails on a file",
            "that is not UTF-8. Without --force nothing that exists is touched.",
            "",
            "context build --from-folds --cache DIR makes a document of every fold in the store, or of one",
            "project's, so that they can be shared, verified and resolved like any others.",
            "",
            "A GLOB is a pattern as in a .gitignore file: '*.rst', 'drafts/', '/api/**/*.html'. A cache remembers",
            "the patterns, so a later build needs none.",
        ),
        (
            "context build docs",
            "context build . --exclude 'tests/' --exclude '*.sql' --watch",
            "context build --sources docs --cache docs.cache",
            "context build --sources docs --cache docs.cache --include '*.rst' --gitignore --force",
            "context build --from-folds --project . --cache folds.cache",
        ),
        (
            Option("--sources", "the folder whose .md files are the documents", "DIR", takes_folder=True),
            Option("--cache", "the cache to write (default: DIR/.context-cache)", "DIR", takes_folder=True),
            Option("--force", "replace a cache that is already there, once the new one is complete"),
            Option("--include", "further files to take; may be repeated", "GLOB", is_repeatable=True),
            Option("--exclude", "files and folders to leave out; may be repeated", "GLOB", is_repeatable=True),
            Option("--gitignore", "leave out what .gitignore files exclude; `context build DIR` always does"),
            Option("--defaults", "forget the patterns that the cache remembers"),
            Option("--watch", "build again whenever a document changes, until Ctrl-C"),
            Option("--from-folds", "the documents are the summaries of folded branches"),
            Option("--project", "with --from-folds: only folds of this project", "DIR", takes_folder=True),
            Option("--owner", "with --from-folds: the owner, if the daemon uses tokens (default: local)", "OWNER"),
            STORE,
            CONFIG,
        ),
        argument=Option(
            "folder", "the folder to read: many kinds of documents, .gitignore respected", "DIR", takes_folder=True
        ),
    ),
    Command(
        "pack",
        "write a cache into one file, to share it",
        (
            "Write all documents of a cache into one file, and print the file's SHA-256. The same documents give",
            "the same bytes on every machine. `context unpack` makes a cache of the file again.",
        ),
        (
            "context pack docs.cache",
            "context pack docs/.context-cache -o docs.ctxpack",
            "context pack docs.cache -o - | gzip > docs.ctxpack.gz",
        ),
        (Option("-o", "the file to write; - is stdout (default: NAME.ctxpack)", "FILE", takes_file=True),),
        argument=Option("cache", "the cache folder", "CACHE", required=True, takes_folder=True),
    ),
    Command(
        "unpack",
        "make a cache of a file that `context pack` wrote",
        (
            "Check every byte of a packed cache, then write the cache that was packed. It appears whole or not at",
            "all; a file that is truncated or altered gives an error that says so.",
        ),
        (
            "context unpack docs.ctxpack",
            "context unpack docs.ctxpack --cache caches/docs --force",
        ),
        (
            Option("--cache", "the cache to write (default: NAME.cache)", "DIR", takes_folder=True),
            Option("--force", "replace a cache that is already there, once the new one is complete"),
        ),
        argument=Option("file", "the packed cache", "FILE", required=True, takes_file=True),
    ),
    Command(
        "ask",
        "find the passages that answer a question",
        (
            "Print the sections that answer a question best and fit a token budget. On a terminal they are",
            "there to be read; in a pipe they are JSON, each with the terms that it was chosen for. The nearest",
            "cache is asked: .context-cache in this folder or one above. The same caches, question and budget",
            "give the same bytes on every machine.",
        ),
        (
            'context ask "roll back a deployment"',
            'context ask "how are tokens counted?" --budget 2k --why',
            'context ask "rate limits" --cache docs.cache --cache api.cache --json',
        ),
        (
            ASKED_CACHE,
            ASKED_ROOT,
            Option("--budget", "the most tokens the answer may have; 4k is 4000 (default: 4000)", "N"),
            Option(
                "--unit",
                "what is selected: sections, or whole documents",
                "UNIT",
                choices=("section", "document"),
                default="section",
            ),
            Option(
                "--counter",
                "how tokens are counted; o200k needs the extra of that name",
                "NAME",
                choices=("estimate-1", "o200k"),
                default="estimate-1",
            ),
            Option("--why", "also print which terms each section was chosen for"),
            JSON,
        ),
        argument=Option("question", "what you want to know", "QUESTION", required=True),
    ),
    Command(
        "recall",
        "find earlier work that was folded, of any session",
        (
            "Find folded branches and left-out tool results that answer a question, of every session that the",
            "store still has, best first, within a token budget. Words of descriptions, prompts and summaries",
            "count most, then those of what was done: commands, paths, errors. On a terminal it is text to read,",
            "in a pipe JSON. The same store and question give the same bytes.",
        ),
        (
            'context recall "where did we see ECONNRESET"',
            'context recall "login fails" --project . --since 7d --budget 1k',
        ),
        (
            Option("--project", "only folds of this project (default: all projects)", "DIR", takes_folder=True),
            Option("--since", "only folds since a date like 2026-01-31, or within a duration like 12h, 7d, 4w", "WHEN"),
            Option("--budget", "the most tokens the answer may have; 4k is 4000 (default: 4000)", "N"),
            Option("--undone", "also folds that a rollback has undone"),
            Option("--owner", "the owner, if the daemon uses tokens (default: local)", "OWNER"),
            JSON,
            STORE,
            CONFIG,
        ),
        argument=Option("question", "what you want to know", "QUESTION", required=True),
    ),
    Command(
        "get",
        "print a document of a cache, or a part of it",
        (
            "Print a document by the id that `context ask` shows: all of it, the section below a heading, or",
            "some lines, with neighbouring sections if wanted, within a token budget.",
        ),
        (
            "context get guides/deployment.md",
            'context get guides/deployment.md --section "Roll back" --around 1',
            "context get guides/deployment.md --lines 40-58 --json",
        ),
        (
            ASKED_CACHE,
            ASKED_ROOT,
            Option("--section", "only the sections below this heading", "HEADING"),
            Option("--lines", "only the sections that have these lines", "A-B"),
            Option("--around", "the number of neighbouring sections to add before and after", "N"),
            Option("--budget", "the most tokens the answer may have; 4k is 4000 (default: 8000)", "N"),
            JSON,
        ),
        argument=Option("id", "the document's id", "ID", required=True),
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
                "--budget", "the most tokens the documents may have together; a token is four bytes", "N", required=True
            ),
            Option("--format", "one line, or indented", "FORMAT", choices=("json", "pretty"), default="json"),
        ),
        bare_word="query",
        when_incomplete=" (`context ask QUESTION` finds the nearest cache and has a default budget)",
    ),
    Command(
        "inspect",
        "show what a cache is",
        ("Print a cache's version, number of documents, their size in bytes, and whether it is valid, as JSON.",),
        ("context inspect --cache docs.cache", "context inspect docs.cache"),
        (CACHE,),
        bare_word="cache",
    ),
    Command(
        "verify",
        "read every byte of a cache and list each fault",
        ("Read every file of a cache, trusting no timestamp, and list everything that is wrong with it.",),
        ("context verify --cache docs.cache", "context verify docs.cache"),
        (CACHE,),
        bare_word="cache",
    ),
    Command(
        "serve",
        "run the daemon, or the stdio server",
        (
            "Without --stdio: the daemon. It listens on http://localhost:9090/mcp, lets agents branch into a",
            "subtask and fold it back to a summary, and answers from the caches below a folder. `contextd` is",
            "the same.",
            "With --stdio: one agent's server on stdin and stdout, which its host starts; `mcp-context-server`",
            "is the same.",
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
            _setting("host"),
            _setting("port"),
            _setting("cache-root", takes_folder=True),
            STORE,
            _setting("tools"),
            _setting("branch-reminder"),
            _setting("recall-at-start"),
            _setting("token-file"),
            _setting("allow-host"),
            _setting("anthropic-upstream"),
            _setting("openai-upstream"),
            _setting("gemini-upstream"),
            _setting("fold-results"),
            _setting("prompt-cache-s")._replace(is_advanced=True),
            CONFIG,
            *OF_NATS,
        ),
        has_settings=True,
    ),
    Command(
        "run",
        "start an agent program with folding, for this one run",
        (
            "Start a program with the daemon behind it. Claude Code gets the proxy, the tools, the hooks and",
            "the skill; codex, opencode and gemini get the proxy and the tools; any other program gets the",
            "proxy by ANTHROPIC_BASE_URL, OPENAI_BASE_URL and GOOGLE_GEMINI_BASE_URL. No file of the project",
            "or of yours changes. If no daemon answers, one runs for as long as the program does. Everything",
            "behind the program's name is passed on to it, and its exit status is that of this command.",
        ),
        (
            "context run claude",
            "context run claude -p 'why does the build fail?'",
            "context run codex",
            "context run --tools fold,resolve claude",
            "context run python my_agent.py",
        ),
        (
            Option(
                "--tools",
                "the tools to offer: resolve, fold or both (default: context_fold and context_expand)",
                "LIST",
            ),
            URL,
            TOKEN_VARIABLE,
        ),
        argument=Option("program", "the program and its arguments", "PROGRAM", required=True),
        takes_rest=True,
    ),
    Command(
        "doctor",
        "check that daemon, hooks and proxy work together",
        (
            "Check what has to work together, a line each, with what to do where it does not: the daemon and its",
            "version, the hooks of each program and when they last reported, the proxy and when it last",
            "forwarded a request, the nearest document cache. Exits with 1 if there is a problem.",
        ),
        ("context doctor", "context doctor --url http://localhost:9100"),
        (URL, TOKEN_VARIABLE, JSON),
    ),
    Command(
        "service",
        "run the daemon in the background, from log-in on",
        (
            "Manage the daemon as a service of your own user: systemd on Linux, launchd on macOS. It restarts",
            "when it fails, and its log is where the system keeps logs. Options of install become options of",
            "the daemon.",
        ),
        (
            "context service install",
            "context service install --port 9100 --cache-root ~/caches",
            "context service status",
            "context service uninstall",
        ),
        (
            Option("--host", "the address to listen on (default: 127.0.0.1)", "ADDRESS"),
            Option("--port", "the port to listen on (default: 9090)", "N"),
            Option("--cache-root", "the folder that holds the caches", "DIR", takes_folder=True),
            STORE,
            Option(
                "--token-file", "the file of owners and token hashes; required for any address but loopback", "FILE"
            ),
            CONFIG,
            URL,
            TOKEN_VARIABLE,
        ),
        argument=Option(
            "action",
            "what to do",
            "ACTION",
            required=True,
            choices=("install", "uninstall", "start", "stop", "status"),
        ),
    ),
    Command(
        "statusline",
        "print one line for a host's status bar",
        (
            "Print the tokens, the open branch and the saving of the project's session, in one line. Claude",
            'Code runs it with {"statusLine": {"type": "command", "command": "context statusline"}} in its',
            "settings.json.",
        ),
        ("context statusline", "context statusline --url http://localhost:9100"),
        (URL, TOKEN_VARIABLE),
    ),
    Command(
        "token",
        "make a token that gives access to the daemon",
        (
            "Make a bearer token for an owner, print it, and add its hash to the file that `context serve` is",
            "given. The token itself is not stored, so it is shown only now. A running daemon takes the file's",
            "new state at once: a new line grants access, a removed line revokes it.",
        ),
        (
            "context token alice --token-file tokens",
            "context token build-robot --token-file /etc/contextfold/tokens > robot.token",
        ),
        (
            Option(
                "--token-file", "the file of owners and token hashes; created if it is missing", "FILE", required=True
            ),
        ),
        argument=Option(
            "owner", "the owner whose sessions the token opens: letters, digits and . _ @ -", "OWNER", required=True
        ),
    ),
    Command(
        "fold status",
        "show the state of a project's session",
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
        (Option("--all", "list every live session, the latest activity first"), *OF_SESSION),
    ),
    Command(
        "fold list",
        "draw a session's branches as a tree",
        (
            "Draw the tree of a session's branches, each with how it stands, its tokens, and what folding saved.",
            "In a pipe, a line each: id, status, tokens, saved, description. With --ended: the sessions that have",
            "ended and are still stored, of this project and those below it, or with --all of every project.",
        ),
        (
            "context fold list",
            "context fold list --limit 1000",
            "context fold list --ended --all",
        ),
        (
            Option("--limit", "the most branches or sessions to list, the latest ones (default: 200)", "N"),
            Option("--ended", "list ended sessions instead of branches"),
            Option("--all", "with --ended: list those of every project"),
            *OF_SESSION,
        ),
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
        (Option("--full", "print texts in full, not only their first lines"), *OF_SESSION),
        argument=BRANCH,
    ),
    Command(
        "fold expand",
        "print what a branch read and wrote",
        (
            "Print the texts of a branch as the archive has them, with secrets redacted: its prompt, what it did,",
            "its summary. What a rollback undid is left out. A res_… id gives a tool result that the proxy left",
            "out of a request. Control characters are escaped unless --raw is given. With --json, all the entries",
            "that `context_expand` gives.",
        ),
        (
            "context fold expand br_4c1d",
            "context fold expand br_4c1d | grep -n timeout",
            "context fold expand res_0f3a --raw > result.txt",
        ),
        (Option("--raw", "print the stored bytes, including control characters"), *OF_SESSION),
        argument=BRANCH._replace(help="a branch's id or a unique beginning of it, or a left-out result's res_… id"),
    ),
    Command(
        "fold savings",
        "compare what requests cost with what they would have cost unfolded",
        (
            "Compare what the session's requests cost with what they would have cost if nothing had ever been",
            "folded: tokens, their price with the provider's prompt cache in mind, money where the model's price",
            "is known, and which folds cost more than they saved. Counted are the requests that went through the",
            "daemon's proxy. `context help settings` lists the prices for models that are not known.",
        ),
        (
            "context fold savings",
            "context fold savings --all",
            "context fold savings --by day",
            "context fold savings --json | jq .cost_saved",
        ),
        (
            Option("--all", "list every live session, the latest activity first"),
            Option(
                "--by",
                "print totals of all live and ended sessions by this",
                "GROUP",
                choices=("day", "project", "model", "session"),
            ),
            *OF_SESSION,
        ),
    ),
    Command(
        "fold report",
        "write a session as a document, to share it",
        (
            "Write a session as Markdown or HTML on stdout: its branches as a tree, the summaries of folded",
            "work, what was sent and saved, how many secrets were redacted. It is the project's session, or the",
            "last one that ended, or the one with the given id. The document loads nothing, and what it quotes",
            "cannot act in it.",
        ),
        (
            "context fold report > report.md",
            "context fold report --format html > report.html",
            "context fold report sess_4c1d0a9be2f36170",
        ),
        (
            Option("--format", "Markdown or HTML", "FORMAT", choices=("md", "html"), default="md"),
            *OF_SESSION,
        ),
        argument=Option("id", "a session's whole id, as `context fold list --ended` shows it", "SESSION"),
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
            Option("--keep", "discard only the later branches; operations outside them stay"),
            YES,
            Option("--dry-run", "print what would be undone, and change nothing"),
            *OF_SESSION,
        ),
        argument=BRANCH,
    ),
    Command(
        "fold search",
        "search the summaries of folded branches",
        (
            "Search the summaries of folded branches, the best first. Every word must be there, in any case;",
            "the last may be the beginning of one. Works on the store itself, whether or not the daemon runs.",
        ),
        (
            'context fold search "auth error"',
            "context fold search timeout --project ~/work/app --json",
        ),
        (
            Option("--project", "only summaries of this project (default: all projects)", "DIR", takes_folder=True),
            Option("--limit", "the most results to print (default: 20)", "N"),
            Option("--owner", "the owner, if the daemon uses tokens (default: local)", "OWNER"),
            JSON,
            STORE,
            CONFIG,
        ),
        argument=Option("query", "the words to look for", "QUERY", required=True),
    ),
    Command(
        "fold tail",
        "follow events as they happen",
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
            Option("--all", "print events of every project"),
            Option("--since-start", "first print the events so far of live sessions"),
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
        "connect an agent program to the daemon",
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
            Option(
                "--stdio", "have the host start a stdio server itself; CONTEXT_CACHE_ROOT names its folder of caches"
            ),
            Option(
                "--cache-root",
                "the folder that holds the caches of a server that the host starts",
                "DIR",
                takes_folder=True,
            ),
            INSTALLED_PROJECT,
            USER,
            Option("--force", "replace an entry named contextfold that `context install` did not write"),
            YES,
            DRY_RUN,
        ),
        argument=HOST,
    ),
    Command(
        "uninstall",
        "remove what install wrote",
        (
            "Remove our server and our hooks from an agent host's configuration files, and print the difference.",
            "Without edits in between, the files are what they were before `context install`, to the byte; with",
            "edits, they stay.",
        ),
        (
            "context uninstall claude-code",
            "context uninstall cursor --user --dry-run",
        ),
        (INSTALLED_PROJECT, USER, YES, DRY_RUN),
        argument=HOST,
    ),
    Command(
        "hook",
        "pass a hook's report on to the daemon",
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
        argument=Option(
            "host", "the host whose hook this is", "HOST", required=True, choices=("claude-code", "cursor", "vscode")
        ),
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
