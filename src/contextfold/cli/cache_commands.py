"""The table of the commands of document caches: build, ask, get …"""

from __future__ import annotations

from contextfold.cli.command import BUDGET, CONFIG, JSON, STORE, Command, Option

CACHE = Option("--cache", "the cache folder", "DIR", required=True, takes_folder=True)
ASKED_CACHE = Option(
    "--cache", "a cache; may be repeated (default: the nearest one)", "DIR", takes_folder=True, is_repeatable=True
)
ASKED_ROOT = Option("--cache-root", "ask every cache in this folder", "DIR", takes_folder=True)
COUNTER = Option(
    "--counter",
    "how tokens are counted; o200k needs the extra of that name",
    "NAME",
    choices=("estimate-1", "o200k"),
    default="estimate-1",
)

COMMANDS: tuple[Command, ...] = (
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
            BUDGET,
            Option(
                "--unit",
                "what is selected: sections, or whole documents",
                "UNIT",
                choices=("section", "document"),
                default="section",
            ),
            COUNTER,
            Option("--why", "also print which terms each section was chosen for"),
            JSON,
        ),
        argument=Option("question", "what you want to know", "QUESTION", required=True, is_repeatable=True),
    ),
    Command(
        "get",
        "print a document of a cache, or a part of it",
        (
            "Print a document by its id or path, as `context ask` shows it: all of it, the section below a",
            "heading, or some lines, with neighbouring sections if wanted, within a token budget. The number of",
            "sections that do not fit is printed too.",
        ),
        (
            "context get guides/deployment.md",
            'context get guides/deployment.md --section "Roll back" --around 1',
            "context get guides/deployment.md --lines 40-58 --json",
        ),
        (
            ASKED_CACHE,
            ASKED_ROOT,
            Option("--section", "only the sections below this heading, or below a breadcrumb", "HEADING"),
            Option("--lines", "only the sections that have these lines", "A-B"),
            Option("--around", "the number of neighbouring sections to add before and after", "N"),
            Option("--budget", "the most tokens the answer may have; 4k is 4000 (default: 8000)", "N"),
            COUNTER,
            JSON,
        ),
        argument=Option("id", "the document's id or path", "ID", required=True),
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
)
