"""The errors of caches and their sources. The tree is in `errors`."""

from __future__ import annotations

from contextfold.errors import ContextError, QueryInvalid, StorageFailed


class CacheMissing(ContextError):
    code = "cache_missing"
    message = "Cache does not exist"


class CacheInvalid(ContextError):
    code = "cache_invalid"
    message = "Cache exists but is invalid"


class SourceInvalid(CacheInvalid):
    message = "A source cannot be built into a cache"


class NoDocuments(SourceInvalid):
    message = "There are no documents to build a cache of"


class BundleInvalid(CacheInvalid):
    message = "The packed cache cannot be read"


class DocumentMissing(QueryInvalid):
    message = "The cache has no such document"


class CacheExists(StorageFailed):
    message = "There is already something at the path of the cache"


class SourcesMissing(StorageFailed):
    message = "There is no such folder"
