"""All expected failures, as a tree of exceptions.

    ContextError
    ├── CacheMissing     cache_missing    no folder at that path
    │   └── NoCacheNamed                  no cache is named where one must be, or there is none
    ├── CacheInvalid     cache_invalid    the folder breaks the cache's rules; retrying will not help
    │   ├── IndexMissing                  the cache has no relevance index of this version
    │   └── SourceInvalid                 a source document cannot become part of a cache
    │       └── NoDocuments               a folder in which no file is a document
    ├── QueryInvalid     invalid_query    the query is not text
    │   ├── OptionInvalid                 an argument beside the query breaks its rule
    │   ├── DocumentMissing               the cache has no such document
    │   ├── SectionMissing                the document has no such section
    │   └── LinesMissing                  the document has no such lines
    ├── BudgetInvalid    invalid_budget   the budget is not a whole number in range
    │   └── CounterMissing                no such counter of tokens, or its vocabulary is not installed
    ├── StorageFailed    io_error         the system could not read or write; retrying may help
    │   ├── CacheExists                   a build would replace something that is already there
    │   ├── CacheRootMissing              the folder of a server's caches is not there
    │   └── SourcesMissing                a build of a folder that is not there
    ├── InternalError    internal_error   a bug
    └── FoldError                         folding; each carries its own message, and data for programs
        ├── ArgumentInvalid       invalid_argument      a field of the call breaks its rule
        ├── SessionNotFound       session_not_found     no such session, or it has ended
        ├── BranchNotFound        branch_not_found      no such branch in this session
        ├── BranchStateInvalid    invalid_branch_state  not while the branch is folded or discarded
        ├── ContextLimitExceeded  context_limit         the hard limit, where one is set
        ├── LimitReached          limit_reached         depth, branches per session, calls per second
        ├── StoreUnavailable      store_unavailable     the state store does not answer; retrying may help
        ├── StoreInvalid          store_invalid         the state store cannot be used as it is
        │   ├── ExportInvalid                           a file that is no complete and unaltered export
        │   ├── TargetNotEmpty                          an import into a store that is not empty
        │   └── ImportDiffers                           an import that is not equal to its file
        └── ScrubFailed           scrub_failed          secrets could not be searched for, so nothing was stored

The `code` and `message` of the errors above FoldError are frozen by the error schema v0 and never contain a path. The
`reason` is for a person at a terminal and may contain one, except those of NoCacheNamed, QueryInvalid and
BudgetInvalid: the tools that are not frozen send these to their callers. The table
below maps each `code` to the exit code of a command, the code of JSON-RPC and the status of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

from contextfold.common.canonical import Encodable

EXIT_OK = 0
EXIT_USAGE = 1

INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

# The exit code, the JSON-RPC code and the HTTP status of each code. Endpoints choose the statuses of errors of caches.
_NUMBERS: dict[str, tuple[int, int, int | None]] = {
    "invalid_query": (2, INVALID_PARAMS, None),
    "invalid_budget": (3, INVALID_PARAMS, None),
    "cache_missing": (4, INVALID_PARAMS, None),
    "cache_invalid": (5, INVALID_PARAMS, None),
    "io_error": (6, INTERNAL_ERROR, None),
    "internal_error": (7, INTERNAL_ERROR, 500),
    "invalid_argument": (EXIT_USAGE, INVALID_PARAMS, 400),
    "session_not_found": (8, INVALID_PARAMS, 404),
    "branch_not_found": (8, INVALID_PARAMS, 404),
    "invalid_branch_state": (8, -32003, 409),
    "context_limit": (8, -32001, 409),
    "limit_reached": (8, -32004, 429),
    "store_unavailable": (6, INTERNAL_ERROR, 503),
    "store_invalid": (5, INTERNAL_ERROR, 503),
    "scrub_failed": (7, INTERNAL_ERROR, 500),
}
EXIT_CODES = {code: exit_code for code, (exit_code, _, _) in _NUMBERS.items()}
JSON_RPC_CODES = {code: json_rpc for code, (_, json_rpc, _) in _NUMBERS.items()}
HTTP_STATUSES = {code: status for code, (_, _, status) in _NUMBERS.items() if status is not None}


class SettingsError(Exception):
    """A setting is invalid; the message is one line that says how to correct it."""


class ContextError(Exception):
    """An expected failure: a fixed code, a fixed message, and a reason that says how to solve the problem."""

    code: str
    message: str
    # The name of the cache, if one of several was asked and failed.
    cache = ""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class QueryInvalid(ContextError):
    code = "invalid_query"
    message = "Query is invalid"


class OptionInvalid(QueryInvalid):
    message = "An argument is invalid"


class BudgetInvalid(ContextError):
    code = "invalid_budget"
    message = "Budget is invalid"


class CounterMissing(BudgetInvalid):
    message = "The budget cannot be counted that way"


class StorageFailed(ContextError):
    code = "io_error"
    message = "I/O error occurred"


class InternalError(ContextError):
    code = "internal_error"
    message = "Internal error"


class FoldError(ContextError):
    """A failure of folding: a message for people and data for programs, without paths, tracebacks and secrets."""

    def __init__(self, message: str, data: Mapping[str, Encodable] | None = None, *, reason: str = "") -> None:
        super().__init__(reason or message)
        self.message = message
        self.data: Mapping[str, Encodable] = data or {}


class ArgumentInvalid(FoldError):
    code = "invalid_argument"

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field} {rule}", {"field": field})


class SessionNotFound(FoldError):
    code = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Session not found: {session_id}", {"session_id": session_id})


class BranchNotFound(FoldError):
    code = "branch_not_found"

    def __init__(self, branch_id: str, session_id: str | None) -> None:
        super().__init__(f"Branch not found: {branch_id}", {"branch_id": branch_id, "session_id": session_id})


class BranchStateInvalid(FoldError):
    code = "invalid_branch_state"


class ContextLimitExceeded(FoldError):
    code = "context_limit"
    SUGGESTION = "Fold current branch before continuing"

    def __init__(self, tokens: int, limit: int, suggestion: str = SUGGESTION) -> None:
        super().__init__(
            f"Context limit exceeded: {tokens}/{limit} tokens",
            {
                "current_tokens": tokens,
                "context_limit": limit,
                "suggestion": suggestion,
                "kind": "context_limit",
            },
        )


class LimitReached(FoldError):
    code = "limit_reached"

    def __init__(self, limit: str, value: int, what_to_do: str) -> None:
        words = limit.replace("_", " ")
        super().__init__(f"Limit reached: {words} is {value}; {what_to_do}", {"limit": limit, "value": value})


class StoreUnavailable(FoldError):
    code = "store_unavailable"
    MESSAGE = "State store is unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__(self.MESSAGE, {"retry": True}, reason=reason)


class StoreInvalid(FoldError):
    code = "store_invalid"
    MESSAGE = StoreUnavailable.MESSAGE

    def __init__(self, reason: str) -> None:
        super().__init__(self.MESSAGE, {"retry": False}, reason=reason)


class ScrubFailed(FoldError):
    code = "scrub_failed"

    def __init__(self, reason: str) -> None:
        super().__init__("Secrets could not be redacted, so nothing was stored", {"retry": False}, reason=reason)


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


class DocumentMissing(QueryInvalid):
    """`similar` are ids that the caller may have meant."""

    message = "The cache has no such document"

    def __init__(self, reason: str, similar: Sequence[str] = ()) -> None:
        meant = f"; did you mean {' or '.join(similar)}?" if similar else ""
        super().__init__(reason + meant)
        self.similar = tuple(similar)


class SectionMissing(QueryInvalid):
    message = "The document has no such section"


class LinesMissing(QueryInvalid):
    message = "The document has no such lines"


class CacheExists(StorageFailed):
    message = "There is already something at the path of the cache"


class CacheRootMissing(StorageFailed):
    """The folder of a server's caches is not there. The frozen tools answer it as any failure of storage."""


class SourcesMissing(StorageFailed):
    message = "There is no such folder"


class ExportInvalid(StoreInvalid):
    MESSAGE = "The export file cannot be used"


class TargetNotEmpty(StoreInvalid):
    MESSAGE = "The store is not empty"


class ImportDiffers(StoreInvalid):
    MESSAGE = "The import is not complete"


def place_of(problem: BaseException) -> str:
    """The file and line of an exception. Its message is not used, because it may quote a caller's input."""
    return place_in(problem.__traceback__)


def place_in(trace: TracebackType | None) -> str:
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{shorten_path(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else "unknown"


def shorten_path(path: str) -> str:
    """A file's path reduced to package/module, without the folders of the machine."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])
