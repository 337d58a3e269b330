"""Maps each error code to its exit code, JSON-RPC code and HTTP status. A test checks that the tables are complete.

Other modules raise a ContextError and know none of these numbers.
"""

EXIT_OK = 0
EXIT_USAGE = 1

EXIT_CODES: dict[str, int] = {
    "invalid_query": 2,
    "invalid_budget": 3,
    "cache_missing": 4,
    "cache_invalid": 5,
    "io_error": 6,
    "internal_error": 7,
    "invalid_argument": EXIT_USAGE,
    "session_not_found": 8,
    "branch_not_found": 8,
    "invalid_branch_state": 8,
    "context_limit": 8,
    "limit_reached": 8,
    "store_unavailable": 6,
    "store_invalid": 5,
    "scrub_failed": 7,
}

INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

JSON_RPC_CODES: dict[str, int] = {
    "invalid_query": INVALID_PARAMS,
    "invalid_budget": INVALID_PARAMS,
    "cache_missing": INVALID_PARAMS,
    "cache_invalid": INVALID_PARAMS,
    "io_error": INTERNAL_ERROR,
    "internal_error": INTERNAL_ERROR,
    "invalid_argument": INVALID_PARAMS,
    "session_not_found": INVALID_PARAMS,
    "branch_not_found": INVALID_PARAMS,
    "invalid_branch_state": -32003,
    "context_limit": -32001,
    "limit_reached": -32004,
    "store_unavailable": INTERNAL_ERROR,
    "store_invalid": INTERNAL_ERROR,
    "scrub_failed": INTERNAL_ERROR,
}

HTTP_STATUSES: dict[str, int] = {
    "invalid_argument": 400,
    "session_not_found": 404,
    "branch_not_found": 404,
    "invalid_branch_state": 409,
    "context_limit": 409,
    "limit_reached": 429,
    "store_unavailable": 503,
    "store_invalid": 503,
    "scrub_failed": 500,
    "internal_error": 500,
}
