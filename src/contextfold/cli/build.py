"""`context build`: makes a cache of a folder. Stdout stays empty; stderr has the number of files left out.

With --from-folds the documents are folded summaries of the store, written into a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from types import FrameType

from contextfold.cli.fold.session_access import open_store, owner_of, project_of
from contextfold.cli.output import ProgressLine, escape, print_error, print_note, print_on_terminal
from contextfold.cli.parser import CommandParser, UsageError
from contextfold.cli.setting_options import add_store_options
from contextfold.errors import ContextError, NoDocuments
from contextfold.fold.store import LOCAL_OWNER, Summary
from contextfold.resolve.build import BuildReport, BuildRequest, Watch, describe_left_out
from contextfold.resolve.build import run_build as build_cache
from contextfold.resolve.kinds import ALL_TEXT, MARKDOWN_ONLY

EXIT_BY_SIGNAL = 128


def declare_build(parser: CommandParser) -> None:
    parser.describe(
        """
        Compile the documents below a folder into an immutable cache. The cache appears whole or not at all.

        context build DIR reads Markdown, text, reStructuredText, AsciiDoc, Org, HTML, notebooks and source
        code, follows .gitignore files, says what it left out, and puts the cache at DIR/.context-cache.
        Run it again after a change: what did not change is taken over from the cache before.

        context build --sources DIR --cache DIR takes every .md file and nothing else, and fails on a file
        that is not UTF-8. Without --force nothing that exists is touched.

        context build --from-folds --cache DIR makes a document of every fold in the store, or of one
        project's, so that they can be shared, verified and resolved like any others.

        A GLOB is a pattern as in a .gitignore file: '*.rst', 'drafts/', '/api/**/*.html'. A cache remembers
        the patterns, so a later build needs none.
        """,
        "context build docs",
        "context build . --exclude 'tests/' --exclude '*.sql' --watch",
        "context build --sources docs --cache docs.cache",
        "context build --sources docs --cache docs.cache --include '*.rst' --gitignore --force",
        "context build --from-folds --project . --cache folds.cache",
    )
    parser.add_argument(
        "folder", nargs="?", metavar="DIR", help="the folder to read: many kinds of documents, .gitignore respected"
    )
    parser.add_argument("--sources", metavar="DIR", help="the folder whose .md files are the documents")
    parser.add_argument("--cache", metavar="DIR", help="the cache to write (default: DIR/.context-cache)")
    parser.add_switch("--force", "replace a cache that is already there, once the new one is complete")
    for name, help in (("--include", "further files to take"), ("--exclude", "files and folders to leave out")):
        parser.add_argument(name, metavar="GLOB", action="append", default=[], help=f"{help}; may be repeated")
    parser.add_switch("--gitignore", "leave out what .gitignore files exclude; `context build DIR` always does")
    parser.add_switch("--defaults", "forget the patterns that the cache remembers")
    parser.add_switch("--watch", "build again whenever a document changes, until Ctrl-C")
    parser.add_switch("--from-folds", "the documents are the summaries of folded branches")
    parser.add_argument("--project", metavar="DIR", help="with --from-folds: only folds of this project")
    parser.add_argument(
        "--owner",
        metavar="OWNER",
        default=LOCAL_OWNER,
        help="with --from-folds: the owner, if the daemon uses tokens (default: %(default)s)",
    )
    add_store_options(parser)
    parser.set_defaults(run=run_build)


def run_build(args: argparse.Namespace) -> None:
    # The handler raises an exception, so an unfinished cache is removed. A signal that is ignored, as under nohup,
    # stays ignored.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, _terminate)
    if args.from_folds:
        _build_from_folds(args)
    elif args.watch:
        _watch(_request(args))
    else:
        request = _request(args)
        _print_report(request, _build(request))


def _request(args: argparse.Namespace) -> BuildRequest:
    folder = args.folder
    if folder is None:
        missing = [f"--{name}" for name in ("sources", "cache") if getattr(args, name) is None]
        if missing == ["--sources", "--cache"]:
            missing = ["DIR, or --sources and --cache"]
        if missing:
            raise UsageError(f"missing {', '.join(missing)}; see `context build --help`")
    elif args.sources is not None:
        raise UsageError("DIR and --sources are two ways to name the folder; see `context build --help`")
    return BuildRequest(
        args.sources if folder is None else folder,
        args.cache,
        kinds=MARKDOWN_ONLY if folder is None else ALL_TEXT,
        include=args.include or None,
        exclude=args.exclude or None,
        gitignore=True if args.gitignore else None,
        defaults=args.defaults,
        force=args.force,
    )


def _build_from_folds(args: argparse.Namespace) -> None:
    if args.cache is None or args.folder is not None or args.sources is not None or args.watch:
        raise UsageError("--from-folds needs --cache, and takes no folder and no --watch; see `context build --help`")
    with folder_of_folds(args) as (folder, newest_at):
        # The same store must give the same bytes.
        request = BuildRequest(folder, args.cache, kinds=MARKDOWN_ONLY, force=args.force, created_at=newest_at)
        _print_report(request, _build(request))


def _build(request: BuildRequest) -> BuildReport:
    with ProgressLine("building") as progress:
        return build_cache(request, progress)


def build_default_cache(folder: str) -> None:
    """Build the default cache of a folder, or bring it up to date."""
    request = BuildRequest(folder, None, kinds=ALL_TEXT)
    _print_report(request, _build(request))


def _print_left_out(request: BuildRequest, built: BuildReport) -> None:
    print_note(f"left out of {escape(os.fsdecode(request.sources))}: {describe_left_out(built.left_out) or 'nothing'}")


def _print_report(request: BuildRequest, built: BuildReport) -> None:
    if built.remembered:
        options = " ".join(escape(quote(word)) for word in built.remembered)
        print_note(f"with the options that the cache remembers: {options}; --defaults forgets them")
    if built.left_out:
        _print_left_out(request, built)
    size = f"{built.document_count:,} documents, {built.content_bytes:,} bytes"
    if built.is_changed:
        again = f", {built.reused:,} of them as before" if built.reused else ""
        print_on_terminal(f"built {built.cache}: {size}{again}, {built.cache_version}")
    else:
        print_on_terminal(f"{built.cache} is up to date: {size}, {built.cache_version}")


def _watch(request: BuildRequest) -> None:
    """Build now and after every change, until Ctrl-C. A failed build is reported; the next change starts another."""
    again = request._replace(force=True) if request.force or request.kinds == MARKDOWN_ONLY else request
    try:
        watch = Watch(request)
        built = _build(request)
        _print_report(request, built)
        print_note(f"watching {escape(os.fsdecode(request.sources))}; Ctrl-C ends it")
        for _ in watch.changes(time.sleep):
            before = built.left_out
            try:
                built = _build(again)
            except ContextError as problem:
                print_error(problem.message, problem.reason)
                continue
            if built.left_out != before:
                _print_left_out(request, built)
            if built.is_changed:
                print_note(f"built {escape(built.cache)}: {built.document_count:,} documents, {built.cache_version}")
    except KeyboardInterrupt:
        # Ctrl-C is the usual way to end the command.
        pass


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(EXIT_BY_SIGNAL + number)


# This many digits of the project's hash distinguish two projects whose folders have the same name.
HASH_DIGITS = 8


@contextmanager
def folder_of_folds(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """A folder with a document for each fold, and the time of the last one. Raises NoDocuments if there is none."""
    project = project_of(args) if args.project is not None else None
    with open_store(args) as store:
        summaries = store.sessions.store.summaries(owner_of(args), project.hash if project else None)
    if not summaries:
        raise NoDocuments("nothing was folded yet" if project is None else f"nothing was folded yet in {project.path}")
    with TemporaryDirectory(prefix="contextfold-folds-") as folder:
        for summary in summaries:
            path = Path(folder, _name(summary), f"{summary.branch_id}.md")
            path.parent.mkdir(exist_ok=True)
            path.write_text(_document(summary), encoding="utf-8", newline="\n")
        yield folder, max(summary.folded_at for summary in summaries)


def _name(summary: Summary) -> str:
    """The name of the folder for a project's folds."""
    name = os.path.basename(summary.project_path)
    safe = "".join(mark if mark.isascii() and (mark.isalnum() or mark in "-_") else "-" for mark in name)
    return f"{safe or 'root'}-{summary.project_hash[:HASH_DIGITS]}"


def _document(summary: Summary) -> str:
    title = " ".join(summary.description.split()) or summary.branch_id
    facts = f"Folded {summary.folded_at} in {summary.project_path}, session {summary.session_id}."
    return f"# {title}\n\n{facts} Full text: `context fold expand {summary.branch_id}`\n\n{summary.summary}\n"
