"""The operations on a cache: resolve, ask, get, inspect, verify. Calls the modules that check, read and select.

A result never mixes two caches: if the folder at the path is replaced during an operation, the operation is repeated
on the new folder. `CacheRoot` opens the caches below one folder by name, and never a path outside of it.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

from contextfold.common.canonical import Encodable, encode
from contextfold.common.question import BUDGET_LIMIT, CACHES_MAX, Question, read_question
from contextfold.errors import (
    CacheMissing,
    CacheRootMissing,
    ContextError,
    DocumentMissing,
    IndexMissing,
    NoCacheNamed,
    QueryInvalid,
    StorageFailed,
)
from contextfold.resolve.cache import CacheFolder, Fault, Progress
from contextfold.resolve.cache_format import MANIFEST_FILE
from contextfold.resolve.files import (
    LEADS_NOWHERE,
    SET_ASIDE_SUFFIX,
    STAGING_SUFFIX,
    StorageErrors,
    format_path,
    ignore_progress,
    storage_failed,
)
from contextfold.resolve.index import IndexedDocument
from contextfold.resolve.relevance.answer import AskResult, GetResult, LeftOutCache
from contextfold.resolve.relevance.answer_parts import NamedIndex
from contextfold.resolve.relevance.asking import ask
from contextfold.resolve.relevance.getting import get, list_documents, table_of_contents
from contextfold.resolve.selection import SelectedDocument, Selection, SelectionResult, Why, parse_query

REPLACED_ATTEMPTS = 5
NAME_MAX_BYTES = 4096
# This many caches stay open, which bounds the memory of the server.
CACHES_OPEN_MAX = 8

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Answer = TypeVar("Answer")


class Inspection(NamedTuple):
    cache_version: str
    document_count: int
    total_bytes: int
    valid: bool

    def to_json(self) -> str:
        """What `context inspect` prints, its newline included."""
        return encode(self._asdict(), pretty=True) + "\n"


class Verification(NamedTuple):
    cache_version: str
    document_count: int
    faults: tuple[Fault, ...]
    # Whether the index is usable, so that `resolve` reads only changed documents.
    packed: bool
    # What is wrong with the derived files. The cache is valid all the same.
    derived: tuple[Fault, ...] = ()


def open_cache(path: Path) -> Cache:
    """Open the cache at a path. Raises CacheMissing if there is no folder."""
    cache = Cache(path)
    cache.identity()
    return cache


def ask_caches(
    caches: dict[str, Cache],
    query: str,
    budget: int = 4_000,
    *,
    unit: str = "section",
    counter: str = "estimate-1",
    format: str = "text",
) -> AskResult:
    """Ask several caches as one. The name of each cache is the prefix of its documents' ids: `docs:guide.md`."""
    if not isinstance(caches, dict) or not all(
        isinstance(name, str) and isinstance(cache, Cache) for name, cache in caches.items()
    ):
        raise QueryInvalid("give names of caches, each with a cache that `open_cache` has returned")
    if not 1 <= len(caches) <= CACHES_MAX:
        raise QueryInvalid(f"from 1 to {CACHES_MAX} caches can be asked at once, not {len(caches)}")
    return ask_many(list(caches.items()), read_question(query, budget), unit=unit, counter=counter, format=format)


def ask_many(
    caches: Sequence[tuple[str, Cache]],
    question: Question,
    *,
    unit: str = "section",
    counter: str = "estimate-1",
    format: str = "text",
    optional: Collection[str] = (),
) -> AskResult:
    """Like `ask_caches`, for a question that was checked. The order of the caches does not matter.

    A cache whose name is in `optional` is left out if it has no relevance index of this version, and the answer says
    so. Without any index there is no answer.
    """
    # Equal scores are ordered by cache and document.
    ordered = sorted(caches, key=lambda named: named[0].encode("utf-8", "surrogatepass"))

    def answer() -> AskResult:
        indexes: list[NamedIndex] = []
        without_index: list[tuple[str, IndexMissing]] = []
        for name, cache in ordered:
            try:
                indexes.append(cache.named_index(name))
            except ContextError as problem:
                problem.cache = name
                if not isinstance(problem, IndexMissing) or name not in optional:
                    raise
                without_index.append((name, problem))
        if without_index and not indexes:
            raise without_index[0][1]
        left_out = tuple(LeftOutCache(name, problem.advice) for name, problem in without_index)
        return ask(indexes, question, unit=unit, counter=counter, format=format, caches_left_out=left_out)

    return retry_if_replaced([cache for _, cache in ordered], answer)


def get_first(places: Sequence[tuple[str, str]], get: Callable[[str, str], GetResult]) -> GetResult:
    """Get a document from the first place that has it: a cache's name, and the id there.

    Raises DocumentMissing if no place has it.
    """
    missing: list[DocumentMissing] = []
    for name, document_id in places:
        try:
            return get(name, document_id)
        except DocumentMissing as problem:
            missing.append(problem)
        except ContextError as problem:
            problem.cache = name
            raise
    missing[0].cache = places[0][0]
    raise missing[0]


class Cache:
    """A cache that stays open for several operations. Each operation first checks whether files have changed."""

    def __init__(self, path: Path) -> None:
        self.path = os.fsencode(path)
        self._folder = CacheFolder(self.path)

    def resolve(self, query: str, budget: int) -> SelectionResult:
        """The best documents for a query within a budget of tokens, each with the reason for its score."""
        parsed = parse_query(query, budget)

        def answer() -> SelectionResult:
            measures, chosen = self._folder.select_documents(parsed.distinct_terms, parsed.budget)
            documents = []
            for number, entry in chosen.items():
                # It is checked again, because it may have changed since the first check.
                document = self._folder.document(entry)
                why = Why(parsed.terms, measures.term_matches.get(number, 0), measures.total_words[number])
                content, score = document.content.decode(), measures.score(number)
                documents.append(
                    SelectedDocument(document.id, document.version, content, score, measures.tokens[number], why)
                )
            considered = len(measures.tokens)
            return SelectionResult(
                tuple(documents),
                Selection(
                    query=parsed.text,
                    budget=parsed.budget,
                    tokens_used=sum(document.tokens for document in documents),
                    documents_considered=considered,
                    documents_selected=len(documents),
                    documents_excluded_by_budget=considered - len(documents),
                ),
            )

        return retry_if_replaced([self], answer)

    def ask(
        self,
        query: str,
        budget: int = 4_000,
        *,
        unit: str = "section",
        counter: str = "estimate-1",
        format: str = "text",
    ) -> AskResult:
        """The sections that answer a query best within a budget of tokens, each with the reasons for its score.

        The budget is that of `to_text()`, or with `format` "json" that of `to_json()`. `unit` "document" selects whole
        documents. `counter` "o200k" counts tokens exactly; it needs the extra `o200k`.
        """
        return ask_many([("", self)], read_question(query, budget), unit=unit, counter=counter, format=format)

    def get(
        self,
        document_id: str,
        budget: object = 8_000,
        *,
        section: str | None = None,
        lines: tuple[int, int] | None = None,
        around: int = 0,
        counter: str = "estimate-1",
        format: str = "text",
        name: str = "",
    ) -> GetResult:
        """A document, its sections below a heading, or its sections in a range of lines, with `around` neighbours.

        `document_id` is an id, a path or a breadcrumb; `section` a heading or a breadcrumb; `lines` the first line and
        the last one. `format` is the form that has the budget, "text" or "json". `name` is the cache's name, which the
        id in the result has in front if there are several caches.
        """

        def answer() -> GetResult:
            return get(
                self.named_index(name),
                document_id,
                budget,
                section=section,
                lines=lines,
                around=around,
                counter=counter,
                format=format,
            )

        return retry_if_replaced([self], answer)

    def document_text(self, document_id: str) -> str:
        """The whole text of a document, checked."""
        return "".join(section.content for section in self.get(document_id, BUDGET_LIMIT).document.sections)

    def documents(self) -> list[IndexedDocument]:
        """The ids, versions and titles of all documents, in the order of their ids."""
        found = retry_if_replaced([self], lambda: list_documents(self.named_index()))
        return sorted(found, key=lambda document: document.id.encode())

    def table_of_contents(self, most: int) -> dict[str, Encodable]:
        """The version of the cache, and the ids and titles of the first documents."""
        return retry_if_replaced([self], lambda: table_of_contents(self.named_index().opened, most))

    def named_index(self, name: str = "") -> NamedIndex:
        """The index, checked. Raises IndexMissing if there is none, CacheInvalid if it is damaged."""
        return NamedIndex(name, self._folder.index_file.open_checked(), self._folder)

    def inspect(self) -> Inspection:
        """Version, size and validity of the cache. Raises CacheInvalid only if the manifest cannot be read."""

        def answer() -> Inspection:
            manifest, faults = self._folder.faults(trusting_record=True)
            if manifest is None:
                raise faults[0]
            total_bytes = self._folder.size_of(manifest.entries)
            return Inspection(manifest.cache_version, manifest.document_count, total_bytes, not faults)

        return retry_if_replaced([self], answer)

    def inspect_folder(self) -> Inspection:
        """Like `inspect`, even if the manifest cannot be read. It counts only the files directly in the folder."""

        def answer() -> Inspection:
            manifest, faults = self._folder.faults(trusting_record=True)
            total_bytes = self._folder.direct_bytes()
            if manifest is None:
                return Inspection(self._folder.claimed_version(), 0, total_bytes, valid=False)
            return Inspection(manifest.cache_version, manifest.document_count, total_bytes, not faults)

        return retry_if_replaced([self], answer)

    def verify(self, progress: Progress = ignore_progress) -> Verification:
        """Read every byte and list every fault."""

        def answer() -> Verification:
            manifest, faults = self._folder.faults(trusting_record=False, progress=progress)
            opened = self._folder.open_index()
            packed = opened is not None and self._folder.is_as_built(opened.record)
            if manifest is None:
                return Verification("", 0, tuple(faults), packed)
            problems = self._folder.index_file.faults(manifest.cache_version)
            derived = tuple(self._folder.fault(*found) for found in problems)
            return Verification(manifest.cache_version, manifest.document_count, tuple(faults), packed, derived)

        return retry_if_replaced([self], answer)

    def identity(self) -> tuple[int, int, int]:
        """Device, inode and ctime of the folder. They change when another folder replaces it."""
        try:
            status = os.stat(self.path)
        except ValueError:
            # The path contains a NUL.
            raise self._missing("there is nothing at that path") from None
        except OSError as problem:
            if problem.errno in LEADS_NOWHERE:
                raise self._missing("there is nothing at that path") from None
            raise storage_failed("cannot look at", self.path, problem) from problem
        if not stat.S_ISDIR(status.st_mode):
            raise self._missing("it is not a folder")
        return (status.st_dev, status.st_ino, status.st_ctime_ns)

    def _missing(self, why: str) -> CacheMissing:
        return CacheMissing(
            f"{format_path(self.path)}: {why}; "
            f"make a cache with `context build --sources DIR --cache {format_path(self.path)}`"
        )


def retry_if_replaced(caches: Sequence[Cache], answer: Callable[[], Answer]) -> Answer:
    """Call `answer`; repeat the call if the folder of a cache was replaced meanwhile."""
    paths = ", ".join(format_path(cache.path) for cache in caches)
    for _ in range(REPLACED_ATTEMPTS):
        before = [cache.identity() for cache in caches]
        try:
            result = answer()
        except MemoryError:
            raise StorageFailed(f"{paths}: out of memory; free some, or split the cache") from None
        except ContextError:
            if [cache.identity() for cache in caches] == before:
                raise
            continue
        if [cache.identity() for cache in caches] == before:
            return result
    raise StorageFailed(f"{paths} keeps being replaced while it is read; try again when builds have ended")


class ListedCache(NamedTuple):
    """A folder below the root. `path` is the name that a tool takes as `cache`."""

    path: str
    has_manifest: bool


def check_name(name: object) -> str:
    """Return the name if it is safe to look up. Raises CacheMissing for a name that could lead out of the root.

    It reads nothing from the disk.
    """
    if not isinstance(name, str) or not name or ".." in name or name[0] in "/\\" or "\0" in name:
        raise CacheMissing("the name is not that of a cache below the root")
    try:
        raw = name.encode("utf-8")
    except UnicodeEncodeError:
        raise CacheMissing("the name is not text") from None
    if len(raw) > NAME_MAX_BYTES:
        raise CacheMissing("the name is longer than any path")
    return name


class CacheRoot:
    """The caches by name. The most recently used ones stay open, with their checked indexes."""

    def __init__(self, path: bytes, only: str = "") -> None:
        """The caches below a folder, or `only` the one with that name."""
        self.path = path
        self._only = only
        self._open: OrderedDict[bytes, Cache] = OrderedDict()

    def cache(self, name: str) -> Cache:
        """The cache of a checked name. Its real path must be inside the real root."""
        if self._only and name != self._only:
            raise CacheMissing("there is only one cache here, with another name")
        # The root may be relative, and the working folder gone.
        with StorageErrors("cannot look at", self.path):
            path = os.path.realpath(os.path.join(self.path, name.encode()))
            root = os.path.realpath(self.path)
        if path == root or os.path.commonpath([path, root]) != root:
            raise CacheMissing("the name leads out of the root")
        if path.endswith((STAGING_SUFFIX, SET_ASIDE_SUFFIX)):
            raise CacheMissing("the name is that of a build in progress")
        cache = self._open.pop(path, None) or Cache(path)
        # This raises CacheMissing if there is no such folder, so a missing cache is not added to the open ones.
        cache.identity()
        self._open[path] = cache
        if len(self._open) > CACHES_OPEN_MAX:
            self._open.popitem(last=False)
        return cache

    def list(self) -> tuple[ListedCache, ...]:
        """Every folder in the root with a valid name, ordered by name."""
        if not os.path.lexists(self.path):
            problem = f"the cache root {format_path(self.path)} does not exist; make it, or name another one"
            raise CacheRootMissing(problem)
        with StorageErrors("cannot list", self.path), os.scandir(self.path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        if self._only:
            names = [name for name in names if name == self._only.encode()]
        return tuple(ListedCache(name.decode(), self._has_manifest(name)) for name in names if _can_be_asked_for(name))

    def names(self) -> tuple[str, ...]:
        """The names of all caches. Raises NoCacheNamed if there are none."""
        names = tuple(listed.path for listed in self.list() if listed.has_manifest)
        if not names and self._only:
            raise NoCacheNamed("the folder has no cache; `context build DIR` makes one")
        if not names:
            raise NoCacheNamed("the cache root has none; `context build DIR --cache ROOT/NAME` makes one")
        return names

    def names_to_ask(self) -> tuple[str, ...]:
        """The names of all caches. Raises NoCacheNamed if there are none, or too many to ask together."""
        names = self.names()
        if len(names) > CACHES_MAX:
            raise NoCacheNamed(f"more than {CACHES_MAX} caches cannot be asked together; name one of them")
        return names

    def _has_manifest(self, name: bytes) -> bool:
        try:
            return stat.S_ISREG(os.lstat(os.path.join(self.path, name, MANIFEST_FILE.encode())).st_mode)
        except OSError:
            return False


def _can_be_asked_for(name: bytes) -> bool:
    try:
        check_name(name.decode("utf-8"))
    except (UnicodeDecodeError, CacheMissing):
        return False
    return not name.endswith((STAGING_SUFFIX, SET_ASIDE_SUFFIX))
