"""Compiles documents into a cache, atomically, and watches them for changes. Knows no format.

A build that replaces a cache copies unchanged parts from it: segments of the index and converted texts.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from contextfold.errors import ContextError, NoDocuments, SourceInvalid, SourcesMissing, StorageFailed
from contextfold.resolve import kinds
from contextfold.resolve.cache import Progress
from contextfold.resolve.cache_format import MANIFEST_FILE, Document, version_of
from contextfold.resolve.cache_writer import CacheWriter
from contextfold.resolve.conversion import NotText, is_converted, text_of
from contextfold.resolve.files import format_path, ignore_progress
from contextfold.resolve.kinds import ALL_TEXT
from contextfold.resolve.previous import PreviousCache, is_own_cache, previous_cache
from contextfold.resolve.replace import Staging
from contextfold.resolve.rules import DocumentRules, check_pattern, make_rules
from contextfold.resolve.sources import DEFAULT_CACHE_NAME, Source, check_unchanged, read_source, survey

PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 30.0
# A pause is this many times as long as the poll before it.
PAUSE_PER_LOOK = 10
# If the folder keeps changing, a change is reported after this many polls.
RESTLESS_LOOKS_MAX = 20

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Pause = Callable[[float], None]


class BuildReport(NamedTuple):
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


class BuildRequest(NamedTuple):
    """What to build, where, and by which options, as `build` takes them."""

    sources: Path
    cache: Path | None = None
    kinds: str = ALL_TEXT
    include: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    gitignore: bool | None = None
    defaults: bool = False
    force: bool = False
    created_at: str | None = None

    @property
    def folder(self) -> bytes:
        """The path of the sources."""
        return os.fsencode(self.sources)

    @property
    def target(self) -> bytes:
        """The path of the cache."""
        return self._default_target if self.cache is None else os.fsencode(self.cache)

    @property
    def _default_target(self) -> bytes:
        return os.path.join(self.folder, DEFAULT_CACHE_NAME)

    @property
    def is_inside(self) -> bool:
        """Whether the cache has the default path, inside its own source folder."""
        return self.kinds == ALL_TEXT and os.path.abspath(self.target) == os.path.abspath(self._default_target)

    @property
    def remembers(self) -> bool:
        """Whether the options of the previous cache are used, because none is given."""
        return (self.include, self.exclude, self.gitignore) == (None, None, None) and not self.defaults

    def check(self) -> None:
        """Raise SourceInvalid if an option is invalid."""
        if isinstance(self.include, str) or isinstance(self.exclude, str):
            raise SourceInvalid("include and exclude are lists of patterns; give ['*.md'] instead of '*.md'")
        for pattern in (*(self.include or ()), *(self.exclude or ())):
            check_pattern(pattern)
        self._given_rules()

    def _given_rules(self) -> DocumentRules:
        return make_rules(self.kinds, include=self.include or (), exclude=self.exclude or (), gitignore=self.gitignore)

    def choose_rules(self, previous: PreviousCache | None) -> DocumentRules:
        """The rules of the previous cache if it is remembered, otherwise those of the options."""
        remembered = previous.rules if previous and self.remembers else None
        return remembered if remembered and remembered.kinds == self.kinds else self._given_rules()

    def may_replace(self, previous: PreviousCache | None) -> bool:
        """Whether the build may replace what is at the path: with --force, or if it is a cache of all text."""
        if self.force or self.kinds != ALL_TEXT:
            return self.force
        is_its_own = previous is not None and previous.rules is not None and previous.rules.kinds == ALL_TEXT
        return is_its_own or self.is_inside


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
    progress: Progress = ignore_progress,
) -> BuildReport:
    """Compile the documents below `sources` into the folder `cache`, by default `sources`/.context-cache.

    `kinds` is "text" for every known kind of text, or "markdown" for `.md` files alone, read strictly. `include` and
    `exclude` are patterns as in a .gitignore file; `gitignore` says whether .gitignore files are followed. If none of
    these three is given, a rebuild uses the options of the existing cache, unless `defaults` is true. If the build
    fails, whatever was at `cache` is unchanged and no other file is left behind.
    """
    request = BuildRequest(sources, cache, kinds, include, exclude, gitignore, defaults, force, created_at)
    return run_build(request, progress)


def run_build(request: BuildRequest, progress: Progress) -> BuildReport:
    request.check()
    sources, cache = request.folder, request.target
    if not os.path.isdir(sources):
        raise SourcesMissing(f"{format_path(sources)} is not a folder; give the folder that holds your documents")
    if not cache:
        raise StorageFailed("the path of the cache is empty; give a folder")
    if _is_inside(sources, cache):
        raise StorageFailed(
            f"{format_path(cache)} holds the sources {format_path(sources)}, which replacing it would delete; "
            "choose another path"
        )
    force = request.may_replace(previous_cache(cache))
    with Staging(cache, force=force, may_replace=is_own_cache) as staging:
        # Only now, with the lock of the staging folder, no other build can replace the previous cache.
        previous = previous_cache(staging.target)
        rules = request.choose_rules(previous)
        before = survey(sources, rules, cache=cache)
        work = CacheWriter(
            staging.path,
            previous,
            rules.to_options(),
            always_new=request.force,
            hidden=request.is_inside,
        )
        reading = _SourceReading(rules, previous, before.left_out)
        with closing(work):
            work.write_documents(reading.documents(before.sources), len(before.sources), progress)
            if not work.entries and rules.is_lenient:
                raise _no_documents(sources, reading.left_out)
            manifest = work.write_manifest(request.created_at)
            check_unchanged(before, survey(sources, rules, cache=cache))
            if not work.is_up_to_date:
                work.put_in_place(manifest, staging, reading.raw_versions)
        return BuildReport(
            cache=format_path(cache),
            cache_version=manifest.cache_version,
            document_count=manifest.document_count,
            content_bytes=work.content_bytes,
            left_out=dict(reading.left_out),
            is_changed=not work.is_up_to_date,
            reused=work.reused,
            remembered=tuple(rules.as_words()) if request.remembers else (),
        )


def _is_inside(path: bytes, folder: bytes) -> bool:
    real_path, real_folder = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath([real_path, real_folder]) == real_folder


def _no_documents(sources: bytes, left_out: Counter[str]) -> NoDocuments:
    others = f" ({describe_left_out(left_out)} left out)" if left_out else ""
    return NoDocuments(
        f"{format_path(sources)} has no file that is read as text{others}; name another folder, "
        "or choose files with --include GLOB"
    )


def describe_left_out(left_out: Mapping[str, int]) -> str:
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
                    raise SourceInvalid(f"{format_path(source.path)}: {problem}") from None
                self.left_out[problem.why] += 1
                yield None

    def _text(self, source: Source, raw: bytes) -> bytes:
        name = os.path.basename(source.path)
        if self._rules.is_lenient:
            why = kinds.fault_of(name, raw)
            if why is None and os.path.islink(source.path):
                target = os.path.basename(os.path.realpath(source.path))
                why = kinds.LINK_TO_LEFT_OUT if kinds.fault_of(target, raw) else None
            if why and not (why in (kinds.GENERATED, kinds.LINK_TO_LEFT_OUT) and source.is_included):
                raise NotText(why, why)
        if not is_converted(name):
            return text_of(name, raw)
        raw_version = version_of(raw)
        known = self._previous.converted_text(source.id, raw_version) if self._previous else None
        text = text_of(name, raw) if known is None else known
        self.raw_versions[source.id] = raw_version
        return text


class Watch:
    """Finds changes of the documents, and the removal of the cache, by polling. Builds nothing.

    A change is reported when two successive polls have the same result, so a program that writes many files causes one
    build. The pause between two polls grows with the time that a poll takes, so watching a large folder uses a bounded
    share of one processor.
    """

    def __init__(self, request: BuildRequest) -> None:
        self._request = request
        self._seen = self._look()

    def changes(self, wait: Pause) -> Iterator[None]:
        """Yield once for each change since the cache was built, without end. `wait` pauses for a number of seconds."""
        restless = 0
        before = self._seen
        # It may have been removed since.
        was_there, is_removed = True, False
        while True:
            wait(self._pause_s)
            now = self._look()
            is_settled = now == before
            before = now
            # A cache that could not be built is no change: the next attempt would fail, too.
            is_there = os.path.lexists(os.path.join(self._request.target, MANIFEST_FILE.encode()))
            is_removed = not is_there and (is_removed or was_there)
            was_there = is_there
            if now == self._seen and not is_removed:
                restless = 0
                continue
            restless += 1
            if is_settled or restless >= RESTLESS_LOOKS_MAX:
                restless, is_removed = 0, False
                self._seen = now
                yield

    def _look(self) -> list[Source] | str:
        """The documents, or the reason why they cannot be listed. Both are compared with the next poll."""
        request = self._request
        began = time.monotonic()
        try:
            rules = request.choose_rules(previous_cache(request.target) if request.remembers else None)
            return survey(request.folder, rules, cache=request.target).sources
        except ContextError as problem:
            return problem.reason
        finally:
            spent_s = time.monotonic() - began
            self._pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, PAUSE_PER_LOOK * spent_s))
