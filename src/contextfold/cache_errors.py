"""The errors of caches and their sources. The tree is in `errors`."""

from __future__ import annotations

from contextfold.errors import ContextError, QueryInvalid, StorageFailed

# Without the paths, which the caller of a server must not see.
REBUILD_IT = "rebuild it from its documents with `context build`"


class CacheMissing(ContextError):
    code = "cache_missing"
    message = "Cache does not exist"


class NoCacheNamed(CacheMissing):
    """A call that names no cache where it must, or where there is none. The reason contains no path."""


class CacheInvalid(ContextError):
    code = "cache_invalid"
    message = "Cache exists but is invalid"


class IndexMissing(CacheInvalid):
    """A cache without a relevance index of this version. `advice` says so without a path."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.advice = advice


class SourceInvalid(CacheInvalid):
    message = "A source cannot be built into a cache"


class NoDocuments(SourceInvalid):
    message = "There are no documents to build a cache of"


class BundleInvalid(CacheInvalid):
    message = "The packed cache cannot be read"


class DocumentMissing(QueryInvalid):
    message = "The cache has no such document"


class SectionMissing(QueryInvalid):
    message = "The document has no such section"


class LinesMissing(QueryInvalid):
    message = "The document has no such lines"


class CacheExists(StorageFailed):
    message = "There is already something at the path of the cache"


class SourcesMissing(StorageFailed):
    message = "There is no such folder"
