"""Compiles documents into a cache, atomically. Calls the pure modules and those that write; knows no format.

The documents come from a folder or from a packed cache. A build that replaces a cache copies unchanged parts from it:
segments of the packed index and converted texts.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from contextfold.cache_errors import NoDocuments, SourceInvalid, SourcesMissing
from contextfold.common.canonical import Encodable, version_of
from contextfold.common.record import Record
from contextfold.errors import StorageFailed
from contextfold.resolve.cache_writer import CacheWriter
from contextfold.resolve.document import Document
from contextfold.resolve.documents import kinds
from contextfold.resolve.documents.conversion import NotText, is_converted, text_of
from contextfold.resolve.documents.rules import ALL_TEXT, DocumentRules, check_pattern, make_rules
from contextfold.resolve.files import shown
from contextfold.resolve.manifest import Manifest
from contextfold.resolve.rebuild.previous import PreviousCache, previous_cache
from contextfold.resolve.replace import Staging
from contextfold.resolve.sources import DEFAULT_CACHE_NAME, Source, check_unchanged, read_source, survey

Progress = Callable[[int, int], None]
Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def silent(_done: int, _total: int) -> None:
    """Ignore the progress."""


class BuildReport(Record):
    """The result of a build.

    `left_out` has the number of files left out for each reason. `is_changed` is false if the cache was up to date and
    was not replaced. `reused` is the number of documents whose index entries were copied from the previous cache.
    `remembered` has the options that were taken from the previous cache, as words of a command line.
    """

    cache: str
    cache_version: str
    document_count: int
    content_bytes: int
    left_out: Mapping[str, int] = {}
    is_changed: bool = True
    reused: int = 0
    remembered: tuple[str, ...] = ()


class BuildRequest(Record):
    """What to build, where, and by which rules.

    If `rules` is None, the build uses the rules of the previous cache, or the default rules of `kinds`.
    """

    sources: bytes
    cache: bytes
    rules: DocumentRules | None
    kinds: str
    force: bool
    created_at: str

    def chosen_rules(self, previous: PreviousCache | None) -> DocumentRules:
        if self.rules is not None:
            return self.rules
        remembered = previous.rules if previous else None
        return remembered if remembered and remembered.kinds == self.kinds else make_rules(self.kinds)

    def may_replace(self, previous: PreviousCache | None) -> bool:
        """Whether the build may replace what is at the path: with --force, or if it is a cache of all text."""
        if self.force or self.kinds != ALL_TEXT:
            return self.force
        is_its_own = previous is not None and previous.rules is not None and previous.rules.kinds == ALL_TEXT
        return is_its_own or self.is_inside

    @property
    def is_inside(self) -> bool:
        """Whether the cache has the default path, inside its own source folder."""
        return self.kinds == ALL_TEXT and os.path.abspath(self.cache) == os.path.abspath(default_cache(self.sources))


def default_cache(sources: bytes) -> bytes:
    return os.path.join(sources, DEFAULT_CACHE_NAME)


def build(
    sources: Path,
    cache: Path | None = None,
    *,
    kinds: str = ALL_TEXT,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    gitignore: bool | None = None,
    defaults: bool = False,
    force: bool = False,
    created_at: str | None = None,
    progress: Progress = silent,
) -> BuildReport:
    """Compile the documents below `sources` into the folder `cache`, by default `sources`/.context-cache.

    `kinds` is "text" for every known kind of text, or "markdown" for `.md` files alone, read strictly. `include` and
    `exclude` are patterns as in a .gitignore file; `gitignore` says whether .gitignore files are followed. If none of
    these three is given, a rebuild uses the options of the existing cache, unless `defaults` is true. If the build
    fails, whatever was at `cache` is unchanged and no other file is left behind.
    """
    request = make_request(
        sources,
        cache,
        kinds=kinds,
        include=include,
        exclude=exclude,
        gitignore=gitignore,
        defaults=defaults,
        force=force,
        created_at=created_at,
    )
    return run_build(request, progress)


def make_request(
    sources: Path,
    cache: Path | None,
    *,
    kinds: str,
    include: Sequence[str] | None,
    exclude: Sequence[str] | None,
    gitignore: bool | None,
    defaults: bool,
    force: bool,
    created_at: str | None = None,
) -> BuildRequest:
    options = (include, exclude, gitignore)
    if isinstance(include, str) or isinstance(exclude, str):
        raise SourceInvalid("include and exclude are lists of patterns; give ['*.md'] instead of '*.md'")
    for pattern in (*(include or ()), *(exclude or ())):
        check_pattern(pattern)
    rules = make_rules(kinds, include=include or (), exclude=exclude or (), gitignore=gitignore)
    folder = os.fsencode(sources)
    return BuildRequest(
        folder,
        default_cache(folder) if cache is None else os.fsencode(cache),
        None if options == (None, None, None) and not defaults else rules,
        kinds,
        force,
        created_at or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def run_build(request: BuildRequest, progress: Progress, *, uses_processes: bool = False) -> BuildReport:
    """Build. `uses_processes` is for a process without threads: children count the words of many documents.

    The garbage collector is off, because a build makes no cycles, and looking for them would take a tenth of its time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _built(request, progress, uses_processes=uses_processes)
    finally:
        if was_enabled:
            gc.enable()


def _built(request: BuildRequest, progress: Progress, *, uses_processes: bool) -> BuildReport:
    sources, cache = request.sources, request.cache
    if not os.path.isdir(sources):
        raise SourcesMissing(f"{shown(sources)} is not a folder; give the folder that holds your documents")
    if not cache:
        raise StorageFailed("the path of the cache is empty; give a folder")
    if _is_inside(sources, cache):
        raise StorageFailed(
            f"{shown(cache)} holds the sources {shown(sources)}, which replacing it would delete; choose another path"
        )
    with Staging(cache, force=request.force or request.may_replace(previous_cache(cache))) as staging:
        # Only now, with the lock of the staging folder, no other build can replace the previous cache.
        previous = previous_cache(staging.target)
        rules = request.chosen_rules(previous)
        before = survey(sources, rules, cache=cache)
        work = CacheWriter(
            staging.path,
            previous,
            rules.to_options(),
            always_new=request.force,
            hidden=request.is_inside,
            uses_processes=uses_processes,
        )
        reading = _SourceReading(rules, previous, before.left_out)
        work.write_documents(reading.documents(before.sources), len(before.sources), progress)
        if not work.entries and rules.is_lenient:
            raise _no_documents(sources, reading.left_out)
        manifest = work.write_manifest(request.created_at)
        check_unchanged(before, survey(sources, rules, cache=cache))
        if not work.is_up_to_date:
            work.write_source_records(reading.raw_versions)
            work.put_in_place(manifest, staging)
        return BuildReport(
            cache=shown(cache),
            cache_version=manifest.cache_version,
            document_count=manifest.document_count,
            content_bytes=work.content_bytes,
            left_out=dict(reading.left_out),
            is_changed=not work.is_up_to_date,
            reused=work.reused,
            remembered=tuple(rules.as_words()) if request.rules is None else (),
        )


def build_from(
    documents: Iterable[Document],
    total: int,
    cache: Path,
    *,
    build_options: Mapping[str, Encodable] | None,
    check: Callable[[Manifest], None],
    force: bool,
    created_at: str,
    progress: Progress = silent,
    uses_processes: bool = False,
) -> BuildReport:
    """Make a cache of documents in the order of their ids. `check` may raise an error before the cache is in place."""
    with Staging(os.fsencode(cache), force=force) as staging:
        work = CacheWriter(staging.path, None, build_options, uses_processes=uses_processes)
        work.write_documents(documents, total, progress)
        manifest = work.write_manifest(created_at)
        check(manifest)
        work.write_source_records({})
        work.put_in_place(manifest, staging)
        return BuildReport(
            shown(os.fsencode(cache)), manifest.cache_version, manifest.document_count, work.content_bytes
        )


def _is_inside(path: bytes, folder: bytes) -> bool:
    real_path, real_folder = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath([real_path, real_folder]) == real_folder


def _no_documents(sources: bytes, left_out: Counter[str]) -> NoDocuments:
    others = f" ({counted(left_out)} left out)" if left_out else ""
    return NoDocuments(
        f"{shown(sources)} has no file that is read as text{others}; name another folder, "
        "or choose files with --include GLOB"
    )


def counted(left_out: Mapping[str, int]) -> str:
    """The number of files left out for each reason, as text, the largest number first."""
    ordered = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {why}" for why, count in ordered)


class _SourceReading:
    """Turns the files of a survey into documents and counts the files that are left out.

    `raw_versions` has the hashes of the original bytes of converted files, by document id.
    """

    def __init__(self, rules: DocumentRules, previous: PreviousCache | None, left_out: Counter[str]) -> None:
        self._rules = rules
        self._previous = previous
        self.left_out = Counter(left_out)
        self.raw_versions: dict[str, str] = {}

    def documents(self, sources: Iterable[Source]) -> Iterator[Document | None]:
        """Yield a document for each source, or None for one that is left out."""
        for source in sources:
            raw = read_source(source)
            try:
                yield Document.from_source(source.source, self._text(source, raw))
            except NotText as problem:
                if not self._rules.is_lenient:
                    raise SourceInvalid(f"{shown(source.path)}: {problem}") from None
                self.left_out[problem.why] += 1
                yield None

    def _text(self, source: Source, raw: bytes) -> bytes:
        name = os.path.basename(source.path)
        if self._rules.is_lenient:
            why = kinds.fault_of(name, raw)
            if why and not (why == kinds.GENERATED and source.is_included):
                raise NotText(why, why)
        if not is_converted(name):
            return text_of(name, raw)
        raw_version = version_of(raw)
        known = self._previous.converted(source.id, raw_version) if self._previous else None
        text = text_of(name, raw) if known is None else known
        self.raw_versions[source.id] = raw_version
        return text
