"""The commands that turn documents into caches and caches into files, as data."""

from __future__ import annotations

from contextfold.cli.command import Command, Option

DOCUMENT_COMMANDS = (
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
            "A GLOB is a pattern as in a .gitignore file: '*.rst', 'drafts/', '/api/**/*.html'. A cache remembers",
            "the patterns, so a later build needs none.",
        ),
        (
            "context build docs",
            "context build . --exclude 'tests/' --exclude '*.sql' --watch",
            "context build --sources docs --cache docs.cache",
            "context build --sources docs --cache docs.cache --include '*.rst' --gitignore --force",
        ),
        (
            Option("--sources", "the folder whose .md files are the documents", "DIR", takes_folder=True),
            Option("--cache", "where the cache is to be; DIR/.context-cache if not given", "DIR", takes_folder=True),
            Option("--force", "replace a cache that is already there, once the new one is complete"),
            Option("--include", "further files to take; may be repeated", "GLOB", is_repeatable=True),
            Option("--exclude", "files and folders to leave out; may be repeated", "GLOB", is_repeatable=True),
            Option("--gitignore", "leave out what .gitignore files say, as DIR alone does"),
            Option("--defaults", "forget the patterns that the cache remembers"),
            Option("--watch", "build again whenever a document changes, until Ctrl-C"),
        ),
        argument=Option("folder", "the folder to read, with the defaults for people", "DIR", takes_folder=True),
    ),
    Command(
        "pack",
        "write a cache into one file, to share it",
        (
            "Write all documents of a cache into one file, and print the file's SHA-256. The same documents give",
            "the same bytes, whoever built and packs them. `context unpack` makes a cache of the file again.",
        ),
        (
            "context pack docs.cache",
            "context pack docs/.context-cache -o docs.ctxpack",
            "context pack docs.cache -o - | gzip > docs.ctxpack.gz",
        ),
        (Option("-o", "the file to write, NAME.ctxpack if not given; - is stdout", "FILE", takes_file=True),),
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
            Option("--cache", "where the cache is to be, NAME.cache if not given", "DIR", takes_folder=True),
            Option("--force", "replace a cache that is already there, once the new one is complete"),
        ),
        argument=Option("file", "the packed cache", "FILE", required=True, takes_file=True),
    ),
)
