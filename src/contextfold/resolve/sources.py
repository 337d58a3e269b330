"""Finding and reading the documents below a folder. Knows the file system, nothing of caches.

A survey records what the file of every document looked like. Two equal surveys show that the folder did not change
while it was read, so that a cache is always the folder as it was at one moment.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from contextfold.common.record import Record
from contextfold.errors import SourceInvalid, StorageFailed
from contextfold.resolve.document import document_id
from contextfold.resolve.documents import kinds
from contextfold.resolve.documents.ignore import IgnoreFile, ignore_file
from contextfold.resolve.documents.rules import PLAIN_MARKDOWN, Chooser, DocumentRules
from contextfold.resolve.files import (
    LEADS_NOWHERE,
    SET_ASIDE_SUFFIX,
    STAGING_SUFFIX,
    FileAbsent,
    NotRegular,
    read_all,
    read_regular,
    shown,
    storage_failed,
)

DEFAULT_CACHE_NAME = b".context-cache"
IGNORE_FILE_NAME = b".gitignore"
IGNORE_FILE_MAX_BYTES = 4 << 20
REPOSITORY_MARK = b".git"
FOLDER_LEVELS = 1000  # how far up a repository's folder is looked for

# A pipe that has replaced a document since the survey must not block the build.
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

State = tuple[int, int, int, int, int]  # size, mtime, ctime, inode, device


class Source(Record):
    id: str
    source: str  # the path relative to the sources, as it was
    path: bytes
    state: State
    is_included: bool = False  # by a pattern, so that it is taken although it looks generated

    @property
    def byte_count(self) -> int:
        return self.state[0]


class Survey(Record):
    sources: list[Source]  # by id
    left_out: Counter[str]  # how many files, by the reason


def survey(sources: bytes, rules: DocumentRules = PLAIN_MARKDOWN, *, cache: bytes | None = None) -> Survey:
    """Every document below the folder. The cache itself is none, wherever it is."""
    walk = _SourceWalk(sources, rules, cache)
    found = sorted(walk.documents(), key=lambda source: (source.id.encode(), source.source.encode()))
    for earlier, later in pairwise(found):
        if earlier.id == later.id:
            if rules.is_lenient:
                return Survey(_first_of_each_id(found, walk.left_out), walk.left_out)
            raise SourceInvalid(
                f"{shown(earlier.path)} and {shown(later.path)} both become the document {later.id}; rename one of them"
            )
    return Survey(found, walk.left_out)


def _first_of_each_id(found: Iterable[Source], left_out: Counter[str]) -> list[Source]:
    kept: list[Source] = []
    for source in found:
        if kept and kept[-1].id == source.id:
            left_out[kinds.SAME_ID] += 1
        else:
            kept.append(source)
    return kept


class _Ignored(Record):
    """A .gitignore file and where it lies."""

    depth: int  # how many components of a path lead from the sources to its folder
    above: tuple[bytes, ...]  # the components from its folder down to the sources, if it is not below them
    patterns: IgnoreFile

    def verdict(self, components: tuple[bytes, ...], *, is_folder: bool) -> bool | None:
        return self.patterns.verdict((*self.above, *components[self.depth :]), is_folder=is_folder)


class _Folder(Record):
    """A folder that is still to be listed."""

    components: tuple[bytes, ...]  # from the sources on
    ignored: tuple[_Ignored, ...]  # by which .gitignore files, the nearest first


class _SourceWalk:
    """One walk over all folders."""

    def __init__(self, sources: bytes, rules: DocumentRules, cache: bytes | None) -> None:
        self._sources = sources
        self._rules = rules
        self._chooser = Chooser(rules)
        self._cache = os.path.realpath(cache) if cache else None
        self.left_out: Counter[str] = Counter()

    def documents(self) -> Iterator[Source]:
        above = tuple(_ignore_files_above(self._sources)) if self._rules.gitignore else ()
        folders = [_Folder((), above)]
        while folders:
            folder = folders.pop()
            entries = _entries(os.path.join(self._sources, *folder.components))
            if folder.components and self._is_a_programs({entry.name for entry in entries}):
                continue
            if self._rules.gitignore:
                folder = self._with_its_ignore_file(folder, entries)
            for entry in entries:
                components = (*folder.components, entry.name)
                try:
                    if entry.is_dir(follow_symlinks=False):
                        if self._is_entered(folder, entry, components):
                            folders.append(_Folder(components, folder.ignored))
                    elif source := self._document(folder, entry, components):
                        yield source
                except OSError as problem:
                    if not (problem.errno in LEADS_NOWHERE and entry.is_symlink()):
                        raise storage_failed("cannot look at", entry.path, problem) from problem

    def _is_a_programs(self, names: set[bytes]) -> bool:
        """Whether a folder with files of these names is filled by a program, and so left out."""
        if not self._rules.is_lenient:
            return False
        is_marked = bool(names & kinds.MARKS_OF_PROGRAMS)
        self.left_out.update([kinds.PROGRAM_FOLDER] if is_marked else [])
        return is_marked or names >= kinds.NAMES_IN_A_CACHE

    def _document(self, folder: _Folder, entry: os.DirEntry[bytes], components: tuple[bytes, ...]) -> Source | None:
        if not self._chooser.is_wanted(components):
            if self._rules.is_lenient and not self._is_excluded(folder, components, is_folder=False):
                self.left_out[kinds.OF_ANOTHER_KIND] += 1
            return None
        if self._is_excluded(folder, components, is_folder=False):
            return None
        status = os.stat(entry.path)
        if not stat.S_ISREG(status.st_mode):
            return None
        if self._rules.is_lenient and (why := self._fault(components, status)):
            self.left_out[why] += 1
            return None
        return _source(components, entry.path, status, is_included=self._chooser.is_included(components))

    def _fault(self, components: tuple[bytes, ...], status: os.stat_result) -> str | None:
        """Why a file is left out, as far as that can be said before it is read."""
        if status.st_size > kinds.TEXT_MAX_BYTES:
            return kinds.TOO_LARGE
        if kinds.is_generated_name(components[-1]) and not self._chooser.is_included(components):
            return kinds.GENERATED
        try:
            b"/".join(components).decode()
        except UnicodeDecodeError:
            return kinds.UNNAMEABLE
        return None

    def _is_entered(self, folder: _Folder, entry: os.DirEntry[bytes], components: tuple[bytes, ...]) -> bool:
        name = entry.name
        if self._is_the_cache(entry) or self._is_excluded(folder, components, is_folder=True):
            return False
        if not self._rules.is_lenient:
            return True
        if name in kinds.VERSION_CONTROL or name == DEFAULT_CACHE_NAME:
            return False
        if name in kinds.FILLED_BY_PROGRAMS and not self._chooser.is_included((*components, b"*")):
            self.left_out[kinds.PROGRAM_FOLDER] += 1
            return False
        return True

    def _is_the_cache(self, entry: os.DirEntry[bytes]) -> bool:
        """Whether a folder is the cache that is being built, or one that a build of it is working on."""
        if self._rules == PLAIN_MARKDOWN or self._cache is None:
            return False  # no file of a cache ends in .md
        if entry.name.endswith((STAGING_SUFFIX, SET_ASIDE_SUFFIX)):
            return True
        return entry.name == os.path.basename(self._cache) and os.path.realpath(entry.path) == self._cache

    def _with_its_ignore_file(self, folder: _Folder, entries: list[os.DirEntry[bytes]]) -> _Folder:
        if any(entry.name == IGNORE_FILE_NAME for entry in entries):
            patterns = _read_ignore_file(os.path.join(self._sources, *folder.components, IGNORE_FILE_NAME))
            if patterns:
                return folder._replace(ignored=(_Ignored(len(folder.components), (), patterns), *folder.ignored))
        return folder

    def _is_excluded(self, folder: _Folder, components: tuple[bytes, ...], *, is_folder: bool) -> bool:
        verdict = self._chooser.exclude.verdict(components, is_folder=is_folder)
        if verdict is not None:
            return verdict
        for ignored in folder.ignored:
            verdict = ignored.verdict(components, is_folder=is_folder)
            if verdict is not None:
                return verdict
        return False


def _ignore_files_above(sources: bytes) -> Iterator[_Ignored]:
    """The .gitignore files between the sources and the root of the repository that they are in, the nearest first."""
    folder = os.path.realpath(sources)
    found: list[_Ignored] = []
    down: tuple[bytes, ...] = ()
    for _ in range(FOLDER_LEVELS):
        if os.path.lexists(os.path.join(folder, REPOSITORY_MARK)):
            yield from found
            return
        parent, name = os.path.split(folder)
        if not name:
            return  # in no repository
        down = (name, *down)
        folder = parent
        if patterns := _read_ignore_file(os.path.join(folder, IGNORE_FILE_NAME)):
            found.append(_Ignored(0, down, patterns))


def _read_ignore_file(path: bytes) -> IgnoreFile:
    """Its patterns; none where there is no regular file, as git has it."""
    try:
        if os.lstat(path).st_size > IGNORE_FILE_MAX_BYTES:
            raise SourceInvalid(f"{shown(path)} is larger than {IGNORE_FILE_MAX_BYTES >> 20} MiB; shorten it")
        return ignore_file(read_regular(path))
    except (FileAbsent, NotRegular):
        return IgnoreFile(())
    except OSError as problem:
        if problem.errno in LEADS_NOWHERE:
            return IgnoreFile(())
        raise storage_failed("cannot look at", path, problem) from problem


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as problem:
        raise storage_failed("cannot list", folder, problem) from problem


def _source(components: tuple[bytes, ...], path: bytes, status: os.stat_result, *, is_included: bool) -> Source:
    try:
        name = b"/".join(components).decode("utf-8")
    except UnicodeDecodeError:
        raise SourceInvalid(f"{shown(path)}: the path is not UTF-8; rename it") from None
    return Source(document_id(name), name, path, _state(status), is_included)


def _state(status: os.stat_result) -> State:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


def read_source(source: Source) -> bytes:
    """The bytes of a document's file, whole and unchanged since the survey."""
    try:
        descriptor = os.open(source.path, _READ_FLAGS)
        try:
            before = _state(os.fstat(descriptor))
            raw = read_all(descriptor, source.byte_count)
            after = _state(os.fstat(descriptor))
        finally:
            os.close(descriptor)
    except OSError as problem:
        raise storage_failed("cannot read", source.path, problem) from problem
    if not source.state == before == after:
        raise changed_while_read(source.path)
    if len(raw) != source.byte_count:
        raise StorageFailed(
            f"{shown(source.path)} has another size than the system says, as files of /proc have; "
            "move it out of the sources"
        )
    return raw


def changed_while_read(path: bytes) -> StorageFailed:
    return StorageFailed(f"{shown(path)} changed while the sources were read; run the build again")


def check_unchanged(before: Survey, after: Survey) -> None:
    """Fail if the folder is not what it was at the first survey."""
    if after.sources != before.sources:
        moved = {source.path for source in set(after.sources) ^ set(before.sources)}
        raise changed_while_read(min(moved))
