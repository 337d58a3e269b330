"""What each error code is called at the edges: one table, complete by test.

Inner code raises a ContextError and knows none of these numbers.
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
}
