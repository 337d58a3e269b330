"""The folder that holds caches: names from outside become caches inside it, and nowhere else. Knows no wire."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict

from contextfold.canonical import Malformed, encode
from contextfold.errors import CacheMissing, StorageFailed
from contextfold.record import Record
from contextfold.resolve.files import FileAbsent, NotRegular, read_regular, shown, storage_failed
from contextfold.resolve.manifest import MANIFEST_FILE, decode_manifest
from contextfold.resolve.service import Cache

KEPT_CACHES = 8  # bounds what a server that runs for months holds in memory


class ListedCache(Record):
    path: str  # as `cache` takes it
    has_manifest: bool


class CacheSummary(Record):
    cache_version: str
    document_count: int
    total_bytes: int  # of the files in the cache's own folder
    valid: bool

    def to_json(self) -> str:
        return encode(self._asdict())


UNREADABLE = CacheSummary("", 0, 0, False)


def check_name(name: object) -> str:
    """A name that may be looked up; CacheMissing for anything that could lead elsewhere, before any disk is touched."""
    if not isinstance(name, str) or not name or ".." in name or name[0] in "/\\" or "\0" in name:
        raise CacheMissing("the name is not that of a cache below the root")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise CacheMissing("the name is not text") from None
    return name


class CacheRoot:
    """Caches by name. Those asked for last are kept, with what they have verified."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._kept: OrderedDict[bytes, Cache] = OrderedDict()

    def cache(self, name: str) -> Cache:
        """The cache of a checked name, once its real path lies inside the real root."""
        path = os.path.realpath(os.path.join(self.path, name.encode()))
        root = os.path.realpath(self.path)
        if path == root or os.path.commonpath([path, root]) != root:
            raise CacheMissing("the name leads out of the root")
        cache = self._kept.pop(path, None) or Cache(path)
        self._kept[path] = cache
        if len(self._kept) > KEPT_CACHES:
            self._kept.popitem(last=False)
        return cache

    def list(self) -> tuple[ListedCache, ...]:
        """Every folder in the root, by name. A name that is not UTF-8 cannot be told, nor asked for."""
        try:
            with os.scandir(self.path) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as problem:
            raise storage_failed("cannot list", self.path, problem) from problem
        return tuple(ListedCache(name.decode(), self._has_manifest(name)) for name in names if _is_text(name))

    def _has_manifest(self, name: bytes) -> bool:
        try:
            return stat.S_ISREG(os.lstat(os.path.join(self.path, name, MANIFEST_FILE.encode())).st_mode)
        except OSError:
            return False

    def summary(self, name: str) -> CacheSummary:
        """What a cache is, also when its manifest cannot be read."""
        cache = self.cache(name)
        cache.identity()
        try:
            decode_manifest(read_regular(os.path.join(cache.path, MANIFEST_FILE.encode())))
        except (FileAbsent, NotRegular, Malformed):
            return UNREADABLE
        inspection = cache.inspect()
        total_bytes = _bytes_in(cache.path)
        return CacheSummary(inspection.cache_version, inspection.document_count, total_bytes, inspection.valid)


def _is_text(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _bytes_in(folder: bytes) -> int:
    """The files right in a folder; not those below, not what links lead to."""
    try:
        with os.scandir(folder) as entries:
            return sum(
                entry.stat(follow_symlinks=False).st_size for entry in entries if entry.is_file(follow_symlinks=False)
            )
    except OSError as problem:
        raise StorageFailed(f"cannot list {shown(folder)}: {problem.strerror}") from problem
