"""contextfold keeps an LLM agent's context small, relevant and explainable.

from contextfold import build, open_cache
build("docs", "docs.cache")
result = open_cache("docs.cache").ask("how do we deploy?")
print(result.to_text())
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextfold.errors import ContextError as ContextError
    from contextfold.resolve.build import BuildReport as BuildReport
    from contextfold.resolve.build import build as build
    from contextfold.resolve.relevance.answer import AskResult as AskResult
    from contextfold.resolve.relevance.answer import GetResult as GetResult
    from contextfold.resolve.selection import SelectionResult as SelectionResult
    from contextfold.resolve.service import Cache as Cache
    from contextfold.resolve.service import ask_caches as ask_caches
    from contextfold.resolve.service import open_cache as open_cache

__version__ = "0.1.0"

_HOMES = {
    "AskResult": "contextfold.resolve.relevance.answer",
    "BuildReport": "contextfold.resolve.build",
    "Cache": "contextfold.resolve.service",
    "ContextError": "contextfold.errors",
    "GetResult": "contextfold.resolve.relevance.answer",
    "SelectionResult": "contextfold.resolve.selection",
    "ask_caches": "contextfold.resolve.service",
    "build": "contextfold.resolve.build",
    "open_cache": "contextfold.resolve.service",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - the keys are strings


def __getattr__(name: str) -> object:
    """Import a name when it is first used: a command imports this package too, and needs few of its modules."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, also those that were not used yet."""
    return sorted({*globals(), *__all__})
