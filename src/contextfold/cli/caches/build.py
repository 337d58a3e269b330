"""`context build`: makes a cache of a folder. Stdout stays empty; stderr has the number of files left out.

With --from-folds the documents are folded summaries of the store, written into a temporary folder.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from types import FrameType

from contextfold.cli.fold.session_access import open_store, owner_of, project_of
from contextfold.cli.output import ProgressLine, plain, print_error, print_note, print_on_terminal
from contextfold.cli.parse import UsageError, Values
from contextfold.errors import EXIT_OK, ContextError, NoDocuments
from contextfold.fold.ports.store import Summary
from contextfold.resolve.build import BuildReport, BuildRequest, counted
from contextfold.resolve.build import run_build as build_cache
from contextfold.resolve.documents.rules import ALL_TEXT, MARKDOWN_ONLY
from contextfold.resolve.rebuild.watch import Watch, pause

EXIT_BY_SIGNAL = 128


def run_build(values: Values) -> int:
    # The handler raises an exception, so an unfinished cache is removed. A signal that is ignored, as under nohup,
    # stays ignored.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, _terminate)
    if "from-folds" in values:
        return _build_from_folds(values)
    request = _request(values)
    if "watch" in values:
        return _watch(request)
    _print_report(request, _built(request))
    return EXIT_OK


def _request(values: Values) -> BuildRequest:
    folder = values.get("folder")
    if folder is None:
        missing = [f"--{name}" for name in ("sources", "cache") if name not in values]
        if missing == ["--sources", "--cache"]:
            missing = ["DIR, or --sources and --cache"]
        if missing:
            raise UsageError(f"missing {', '.join(missing)}; see `context build --help`")
    elif "sources" in values:
        raise UsageError("DIR and --sources are two ways to name the folder; see `context build --help`")
    return BuildRequest(
        values["sources"] if folder is None else folder,
        values.get("cache"),
        kinds=MARKDOWN_ONLY if folder is None else ALL_TEXT,
        include=list(values.every("include")) or None,
        exclude=list(values.every("exclude")) or None,
        gitignore=True if "gitignore" in values else None,
        defaults="defaults" in values,
        force="force" in values,
    )


def _build_from_folds(values: Values) -> int:
    if "cache" not in values or any(name in values for name in ("folder", "sources", "watch")):
        raise UsageError("--from-folds needs --cache, and takes no folder and no --watch; see `context build --help`")
    with folder_of_folds(values) as (folder, newest_at):
        # The same store must give the same bytes.
        request = BuildRequest(
            folder, values["cache"], kinds=MARKDOWN_ONLY, force="force" in values, created_at=newest_at
        )
        _print_report(request, _built(request))
    return EXIT_OK


def _built(request: BuildRequest) -> BuildReport:
    with ProgressLine("building") as progress:
        return build_cache(request, progress, uses_processes=True)


def _print_left_out(request: BuildRequest, built: BuildReport) -> None:
    print_note(f"left out of {plain(os.fsdecode(request.sources))}: {counted(built.left_out) or 'nothing'}")


def _print_report(request: BuildRequest, built: BuildReport) -> None:
    if built.remembered:
        options = " ".join(plain(quote(word)) for word in built.remembered)
        print_note(f"with the options that the cache remembers: {options}; --defaults forgets them")
    if built.left_out:
        _print_left_out(request, built)
    size = f"{built.document_count:,} documents, {built.content_bytes:,} bytes"
    if built.is_changed:
        again = f", {built.reused:,} of them as before" if built.reused else ""
        print_on_terminal(f"built {built.cache}: {size}{again}, {built.cache_version}")
    else:
        print_on_terminal(f"{built.cache} is up to date: {size}, {built.cache_version}")


def _watch(request: BuildRequest) -> int:
    """Build now and after every change, until Ctrl-C. A failed build is reported; the next change starts another."""
    again = request._replace(force=True) if request.force or request.kinds == MARKDOWN_ONLY else request
    try:
        watch = Watch(request)
        built = _built(request)
        _print_report(request, built)
        print_note(f"watching {plain(os.fsdecode(request.sources))}; Ctrl-C ends it")
        for _ in watch.changes(pause):
            before = built.left_out
            try:
                built = _built(again)
            except ContextError as problem:
                print_error(problem.message, problem.reason)
                continue
            if built.left_out != before:
                _print_left_out(request, built)
            if built.is_changed:
                print_note(f"built {plain(built.cache)}: {built.document_count:,} documents, {built.cache_version}")
    except KeyboardInterrupt:
        # Ctrl-C is the usual way to end the command.
        pass
    return EXIT_OK


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(EXIT_BY_SIGNAL + number)


# This many digits of the project's hash distinguish two projects whose folders have the same name.
HASH_DIGITS = 8


@contextmanager
def folder_of_folds(values: Values) -> Iterator[tuple[str, str]]:
    """A folder with a document for each fold, and the time of the last one. Raises NoDocuments if there is none."""
    project = project_of(values) if "project" in values else None
    with open_store(values) as store:
        summaries = store.sessions.store.summaries(owner_of(values), project.hash if project else None)
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
