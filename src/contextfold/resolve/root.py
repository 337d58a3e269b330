"""The folder that contains the caches: opens them by name, and never a path outside of it. Knows no protocol."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from typing import NamedTuple

from contextfold.common.relevance.question import CACHES_MAX
from contextfold.errors import CacheMissing, NoCacheNamed
from contextfold.resolve.cache_format import MANIFEST_FILE
from contextfold.resolve.files import SET_ASIDE_SUFFIX, STAGING_SUFFIX, StorageErrors
from contextfold.resolve.service import Cache

NAME_MAX_BYTES = 4096
# This many caches stay open, which bounds the memory of the server.
CACHES_OPEN_MAX = 8


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

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._open: OrderedDict[bytes, Cache] = OrderedDict()

    def cache(self, name: str) -> Cache:
        """The cache of a checked name. Its real path must be inside the real root."""
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
        with StorageErrors("cannot list", self.path), os.scandir(self.path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        return tuple(ListedCache(name.decode(), self._has_manifest(name)) for name in names if _can_be_asked_for(name))

    def names(self) -> tuple[str, ...]:
        """The names of all caches. Raises NoCacheNamed if there are none."""
        names = tuple(listed.path for listed in self.list() if listed.has_manifest)
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
