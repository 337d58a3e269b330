"""Maps each error code to its exit code, JSON-RPC code and HTTP status. A test checks that the tables are complete.

Other modules raise a ContextError and know none of these numbers.
"""

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
