"""Finds and reads the documents below a folder. Knows the file system, nothing of caches.

A survey records the size, timestamps and inode of every document's file. Two equal surveys show that the folder did
not change while it was read. So a cache always shows the folder at one point in time.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from contextfold.errors import SourceInvalid, StorageFailed
from contextfold.resolve import kinds
from contextfold.resolve.cache_format import DEFAULT_CACHE, document_id
from contextfold.resolve.files import (
    LEADS_NOWHERE,
    READ_FLAGS,
    SET_ASIDE_SUFFIX,
    STAGING_SUFFIX,
    FileAbsent,
    NotRegular,
    Opened,
    StorageErrors,
    format_path,
    read_all,
    read_regular,
    regular_size,
    storage_failed,
)
from contextfold.resolve.rules import (
    PLAIN_MARKDOWN,
    Chooser,
    DocumentRules,
    PathPatterns,
    parse_ignore_file,
    parse_patterns,
)

DEFAULT_CACHE_NAME = DEFAULT_CACHE.encode()
IGNORE_FILE_NAME = b".gitignore"
IGNORE_FILE_MAX_BYTES = 4 << 20
REPOSITORY_MARK = b".git"

# A document may be a link. A pipe that has replaced one since the survey does not block the build.
_READ_FLAGS = READ_FLAGS & ~getattr(os, "O_NOFOLLOW", 0)

# Size, mtime, ctime, inode and device of a file.
State = tuple[int, int, int, int, int]


class Source(NamedTuple):
    """The file of one document.

    `source` is its path relative to the sources, in its original spelling. `is_included` means that an --include
    pattern matches it, or what it leads to if it is a link, so it becomes a document even if it looks generated.
    """

    id: str
    source: str
    path: bytes
    state: State
    is_included: bool = False


class Survey(NamedTuple):
    """All sources, ordered by id, and the number of files left out for each reason."""

    sources: list[Source]
    left_out: Counter[str]


def survey(sources: bytes, rules: DocumentRules, *, cache: bytes) -> Survey:
    """List every document below the folder. Files of the cache itself are skipped."""
    walk = _SourceWalk(sources, rules, cache)
    distinct: list[Source] = []
    for source in sorted(walk.documents(), key=lambda source: (source.id.encode(), source.source.encode())):
        if not distinct or distinct[-1].id != source.id:
            distinct.append(source)
        elif rules.is_lenient:
            walk.left_out[kinds.SAME_ID] += 1
        else:
            raise SourceInvalid(
                f"{format_path(distinct[-1].path)} and {format_path(source.path)} both become the document "
                f"{source.id}; rename one of them"
            )
    return Survey(distinct, walk.left_out)


class _Folder(NamedTuple):
    """A folder that is still to be listed. `components` is its path relative to the sources.

    `ignored` has the patterns of its .gitignore file and of those in the folders above; `excluded` has the patterns of
    --exclude as well, which decide first. Both are relative to the root of the repository.
    """

    components: tuple[bytes, ...]
    ignored: PathPatterns
    excluded: PathPatterns


class _SourceWalk:
    """One walk over all folders below the sources."""

    def __init__(self, sources: bytes, rules: DocumentRules, cache: bytes) -> None:
        self._sources = sources
        self._real_sources = os.path.realpath(sources)
        self._rules = rules
        self._chooser = Chooser(rules)
        self._cache = os.path.realpath(cache)
        # The path from the root of the repository to the sources.
        self._above: tuple[bytes, ...] = ()
        ignored = parse_patterns(())
        if rules.gitignore:
            self._above, ignored = _read_ignore_files_above(self._real_sources)
        self._exclude = parse_patterns(rules.exclude, self._above)
        self._top = _Folder((), ignored, ignored.followed_by(self._exclude))
        self.left_out: Counter[str] = Counter()

    def documents(self) -> Iterator[Source]:
        folders = [self._top]
        while folders:
            folder = folders.pop()
            path = os.path.join(self._sources, *folder.components)
            with StorageErrors("cannot list", path), os.scandir(path) as listed:
                entries = list(listed)
            names = {entry.name for entry in entries}
            if folder.components and self._rules.is_lenient and _is_a_programs(names):
                self.left_out.update([kinds.PROGRAM_FOLDER] if names & kinds.MARKS_OF_PROGRAMS else [])
                continue
            if IGNORE_FILE_NAME in names:
                folder = self._with_its_ignore_file(folder)
            for entry in entries:
                components = (*folder.components, entry.name)
                try:
                    if entry.is_dir(follow_symlinks=False):
                        if self._is_entered(folder, entry, components):
                            folders.append(folder._replace(components=components))
                    elif source := self._document(folder, entry, components):
                        yield source
                except OSError as problem:
                    if not (problem.errno in LEADS_NOWHERE and entry.is_symlink()):
                        raise storage_failed("cannot look at", entry.path, problem) from problem

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
        if self._rules.is_lenient and (why := self._fault(entry, components, status)):
            self.left_out[why] += 1
            return None
        named = self._target(entry) if entry.is_symlink() else components
        return _source(components, entry.path, status, is_included=self._chooser.is_included(named))

    def _fault(self, entry: os.DirEntry[bytes], components: tuple[bytes, ...], status: os.stat_result) -> str | None:
        """The reason to leave a file out that is known without reading it, or None."""
        if entry.is_symlink():
            target = self._target(entry)
            if target[0] == b"..":
                return kinds.LINK_OUTSIDE
            if self._is_left_out(target):
                return kinds.LINK_TO_LEFT_OUT
        if status.st_size > kinds.TEXT_MAX_BYTES:
            return kinds.TOO_LARGE
        if kinds.is_generated_name(components[-1]) and not self._chooser.is_included(components):
            return kinds.GENERATED
        try:
            b"/".join(components).decode()
        except UnicodeDecodeError:
            return kinds.UNNAMEABLE
        return None

    def _target(self, link: os.DirEntry[bytes]) -> tuple[bytes, ...]:
        """Where a link leads to in the end, relative to the sources."""
        return tuple(os.path.relpath(os.path.realpath(link.path), self._real_sources).split(b"/"))

    def _is_left_out(self, target: tuple[bytes, ...]) -> bool:
        """Whether a file is not a document under its own name. A link of another name must not bring it in."""
        is_generated = kinds.is_generated_name(target[-1]) and not self._chooser.is_included(target)
        if is_generated or not self._chooser.is_wanted(target):
            return True
        folder = self._top
        for depth in range(len(target)):
            folder = self._with_its_ignore_file(folder._replace(components=target[:depth]))
            components, is_folder = target[: depth + 1], depth + 1 < len(target)
            if self._is_excluded(folder, components, is_folder=is_folder):
                return True
            path = os.path.join(self._real_sources, *components)
            if is_folder and (
                self._is_never_entered(components) or path == self._cache or _is_a_programs(set(os.listdir(path)))
            ):
                return True
        return False

    def _is_never_entered(self, components: tuple[bytes, ...]) -> bool:
        """Whether a folder is left out by its name."""
        name = components[-1]
        if name in kinds.FILLED_BY_PROGRAMS:
            return not self._chooser.is_included((*components, b"*"))
        return name in kinds.VERSION_CONTROL or name == DEFAULT_CACHE_NAME

    def _is_entered(self, folder: _Folder, entry: os.DirEntry[bytes], components: tuple[bytes, ...]) -> bool:
        if self._is_the_cache(entry) or self._is_excluded(folder, components, is_folder=True):
            return False
        if not self._rules.is_lenient or not self._is_never_entered(components):
            return True
        if entry.name in kinds.FILLED_BY_PROGRAMS:
            self.left_out[kinds.PROGRAM_FOLDER] += 1
        return False

    def _is_the_cache(self, entry: os.DirEntry[bytes]) -> bool:
        """Whether a folder is the cache that is being built, or a staging folder of such a build."""
        if self._rules == PLAIN_MARKDOWN:
            # A cache contains no file with the suffix .md, so this walk finds nothing in it anyway.
            return False
        if entry.name.endswith((STAGING_SUFFIX, SET_ASIDE_SUFFIX)):
            return True
        return entry.name == os.path.basename(self._cache) and os.path.realpath(entry.path) == self._cache

    def _with_its_ignore_file(self, folder: _Folder) -> _Folder:
        if not self._rules.gitignore:
            return folder
        path = os.path.join(self._sources, *folder.components, IGNORE_FILE_NAME)
        patterns = _read_ignore_file(path, (*self._above, *folder.components))
        if not patterns:
            return folder
        ignored = folder.ignored.followed_by(patterns)
        return folder._replace(ignored=ignored, excluded=ignored.followed_by(self._exclude))

    def _is_excluded(self, folder: _Folder, components: tuple[bytes, ...], *, is_folder: bool) -> bool:
        path = (*self._above, *components)
        return folder.excluded.match_folder(path) if is_folder else folder.excluded.match_file(path)


def _is_a_programs(names: set[bytes]) -> bool:
    """Whether files of these names show that a program filled a folder, which is then left out."""
    return bool(names & kinds.MARKS_OF_PROGRAMS) or names >= kinds.NAMES_IN_A_CACHE


def _read_ignore_files_above(sources: bytes) -> tuple[tuple[bytes, ...], PathPatterns]:
    """The path from the root of the repository to the sources, and the patterns of the .gitignore files on it.

    Those of the sources themselves are not among them. Sources outside of a repository have neither.
    """
    patterns = parse_patterns(())
    parts = sources.split(b"/")
    for root in range(len(parts), 0, -1):
        if os.path.lexists(b"/".join((*parts[:root], REPOSITORY_MARK))):
            for depth in range(root, len(parts)):
                path = b"/".join((*parts[:depth], IGNORE_FILE_NAME))
                patterns = patterns.followed_by(_read_ignore_file(path, parts[root:depth]))
            return tuple(parts[root:]), patterns
    return (), patterns


def _read_ignore_file(path: bytes, folder: Sequence[bytes]) -> PathPatterns:
    """The patterns of a .gitignore file. Like git, it takes anything but a regular file for an empty one."""
    if regular_size(path) > IGNORE_FILE_MAX_BYTES:
        raise SourceInvalid(f"{format_path(path)} is larger than {IGNORE_FILE_MAX_BYTES >> 20} MiB; shorten it")
    try:
        return parse_ignore_file(read_regular(path), folder, file=format_path(path))
    except (FileAbsent, NotRegular):
        return parse_patterns(())


def _source(components: tuple[bytes, ...], path: bytes, status: os.stat_result, *, is_included: bool) -> Source:
    try:
        name = b"/".join(components).decode("utf-8")
    except UnicodeDecodeError:
        raise SourceInvalid(f"{format_path(path)}: the path is not UTF-8; rename it") from None
    return Source(document_id(name), name, path, _state(status), is_included)


def _state(status: os.stat_result) -> State:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


def read_source(source: Source) -> bytes:
    """Read a document's file; raise an error if it has changed since the survey."""
    with StorageErrors("cannot read", source.path), Opened(source.path, _READ_FLAGS) as descriptor:
        before = _state(os.fstat(descriptor))
        raw = read_all(descriptor, source.state[0])
        after = _state(os.fstat(descriptor))
    if not source.state == before == after:
        raise changed_while_read(source.path)
    if len(raw) != source.state[0]:
        raise StorageFailed(
            f"{format_path(source.path)} has another size than the system says, as files of /proc have; "
            "move it out of the sources"
        )
    return raw


def changed_while_read(path: bytes) -> StorageFailed:
    return StorageFailed(f"{format_path(path)} changed while the sources were read; run the build again")


def check_unchanged(before: Survey, after: Survey) -> None:
    """Raise an error if the folder has changed between two surveys."""
    if after.sources != before.sources:
        changed = {source.path for source in set(after.sources) ^ set(before.sources)}
        raise changed_while_read(min(changed))
