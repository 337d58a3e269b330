"""Imports SQLite without what a command does not need. Type checkers see the standard module.

The package `sqlite3` registers conversions of dates, for which it imports `datetime`. Its C module takes one thing from
`functools`, which imports `collections`. Together that takes as long as opening a file, checking and reading it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
else:

    def _imported():
        """The C module if it is as expected, otherwise the package."""
        if sys.implementation.name != "cpython" or "sqlite3" in sys.modules:
            import sqlite3

            return sqlite3
        if "functools" in sys.modules:
            import _sqlite3

            return _sqlite3
        # While the C module is imported, `functools` has only what it takes: the cache of prepared statements.
        sys.modules["functools"] = part = type(sys)("functools")
        part.lru_cache = _lru_cache
        try:
            import _sqlite3
        finally:
            del sys.modules["functools"]
        return _sqlite3

    def _lru_cache(size):
        from _functools import _lru_cache_wrapper

        return lambda function: _lru_cache_wrapper(function, size, False, tuple)

    sqlite3 = _imported()

__all__ = ["sqlite3"]
