"""Every failure this product expects, as a tree of exceptions.

    ContextError
    ├── CacheMissing     cache_missing    no folder at that path
    ├── CacheInvalid     cache_invalid    the folder breaks the cache's rules; retrying will not help
    │   └── SourceInvalid                 a source document cannot become part of a cache
    ├── QueryInvalid     invalid_query    the query is not text
    ├── BudgetInvalid    invalid_budget   the budget is not a whole number in range
    ├── StorageFailed    io_error         the system could not read or write; retrying may help
    └── InternalError    internal_error   a bug of ours

`code` and `message` are frozen by the error schema v0 and say nothing of paths; `reason` is for a person at a terminal
and may. This module knows neither exit numbers nor wires: `contextfold.failures` maps codes to each edge.
"""


class ContextError(Exception):
    """An expected failure: a fixed code, a fixed message, and a reason a person can act on."""

    code: str
    message: str

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CacheMissing(ContextError):
    code = "cache_missing"
    message = "Cache does not exist"


class CacheInvalid(ContextError):
    code = "cache_invalid"
    message = "Cache exists but is invalid"


class SourceInvalid(CacheInvalid):
    message = "A source cannot be built into a cache"


class QueryInvalid(ContextError):
    code = "invalid_query"
    message = "Query is invalid"


class BudgetInvalid(ContextError):
    code = "invalid_budget"
    message = "Budget is invalid"


class StorageFailed(ContextError):
    code = "io_error"
    message = "I/O error occurred"


class InternalError(ContextError):
    code = "internal_error"
    message = "Internal error"
