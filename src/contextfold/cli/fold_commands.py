"""The table of the commands on sessions: `recall`, and the group `fold`."""

from __future__ import annotations

from contextfold.cli.command import BUDGET, CONFIG, JSON, OWNER, STORE, YES, Command, Option

PROJECT = Option("--project", "the project's folder (default: the current one)", "DIR", takes_folder=True)
OF_SESSION = (
    PROJECT,
    Option("--session", "the name of a session (default: the project's unnamed one)", "NAME"),
    OWNER,
    JSON,
    STORE,
    CONFIG,
)
BRANCH = Option("branch", "a branch's id or a unique beginning of it", "BRANCH", required=True)

COMMANDS: tuple[Command, ...] = (
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
            BUDGET,
            Option("--undone", "also folds that a rollback has undone"),
            OWNER,
            JSON,
            STORE,
            CONFIG,
        ),
        argument=Option("question", "what you want to know", "QUESTION", required=True, is_repeatable=True),
    ),
    Command(
        "fold status",
        "show the state of a project's session",
        (
            "Show a project's session: where work goes on, its tokens against the limit, what was folded and",
            "what that saved, its health, how many secrets were redacted. Works on the store itself, whether or",
            "not the daemon runs, as every `context fold` command does.",
        ),
        ("context fold status", "context fold status --all", "context fold status --project ~/work/app --json"),
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
        ("context fold list", "context fold list --limit 1000", "context fold list --ended --all"),
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
            "Show a branch's prompt, its operations, the branches below it and its summary, from the archive.",
            "Discarded branches can be shown, too. For a branch of an ended session give the whole id.",
        ),
        ("context fold show br_4c1d", "context fold show main", "context fold show br_4c1d --full | less"),
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
            "last one that ended, or the one with the given id. The document loads no other file, and quoted text",
            "cannot run as script or markup.",
        ),
        (
            "context fold report > report.md",
            "context fold report --format html > report.html",
            "context fold report sess_4c1d0a9be2f36170",
        ),
        (Option("--format", "Markdown or HTML", "FORMAT", choices=("md", "html"), default="md"), *OF_SESSION),
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
        ('context fold search "auth error"', "context fold search timeout --project ~/work/app --json"),
        (
            Option("--project", "only summaries of this project (default: all projects)", "DIR", takes_folder=True),
            Option("--limit", "the most results to print (default: 20)", "N"),
            OWNER,
            JSON,
            STORE,
            CONFIG,
        ),
        argument=Option("query", "the words to look for", "QUERY", required=True, is_repeatable=True),
    ),
    Command(
        "fold tail",
        "follow events as they happen",
        (
            "Print a line for everything that happens in a project's sessions, whichever process does it, until",
            "Ctrl-C. With --json, an object a line.",
        ),
        ("context fold tail", "context fold tail --all --since-start", "context fold tail --json | jq .event"),
        (
            Option("--all", "print events of every project"),
            Option("--since-start", "first print the events so far of live sessions"),
            *OF_SESSION,
        ),
    ),
)
