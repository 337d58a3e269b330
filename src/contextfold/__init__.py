"""contextfold keeps an LLM agent's context small, relevant and explainable.

from contextfold import open_cache
result = open_cache("docs.cache").resolve("how do we deploy", 4000)
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextfold.errors import ContextError as ContextError
    from contextfold.resolve.selection import SelectionResult as SelectionResult
    from contextfold.resolve.service import Cache as Cache
    from contextfold.resolve.service import open_cache as open_cache

__version__ = "0.1.0"

_HOMES = {
    "Cache": "contextfold.resolve.service",
    "ContextError": "contextfold.errors",
    "SelectionResult": "contextfold.resolve.selection",
    "open_cache": "contextfold.resolve.service",
}

__all__ = ["Cache", "ContextError", "SelectionResult", "__version__", "open_cache"]


def __getattr__(name: str) -> object:
    """Import what is asked for and no more: importing the package itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
