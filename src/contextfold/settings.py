"""What a server may be told from outside, checked and named in one place. Knows variables, not who reads them."""

from __future__ import annotations

import os

from contextfold.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CACHE_ROOT = "CONTEXT_CACHE_ROOT"
TOOL_TIMEOUT = "CONTEXT_TOOL_TIMEOUT_SECS"

TOOL_TIMEOUT_S = 30
TIMEOUT_MAX_S = 1_000_000  # eleven days; a longer wait is no timeout, and systems count no further


class SettingsError(Exception):
    """A setting that cannot be used; the text is one line that says what to do."""


class Settings(Record):
    cache_root: bytes
    tool_timeout_s: int


def settings_from(environment: Mapping[str, str], cache_root: str | None) -> Settings:
    """The settings of a server; an argument goes before a variable."""
    root = cache_root or environment.get(CACHE_ROOT)
    if not root:
        raise SettingsError(
            f"no cache root: give --cache-root DIR, or set {CACHE_ROOT} to the folder that holds the caches"
        )
    return Settings(os.fsencode(root), _timeout_s(environment.get(TOOL_TIMEOUT, str(TOOL_TIMEOUT_S))))


def _timeout_s(text: str) -> int:
    digits = text.removeprefix("+").lstrip("0")
    if not (text.isascii() and digits.isdigit()):
        raise SettingsError(f"{TOOL_TIMEOUT} must be a positive whole number of seconds, not {text!r}")
    return int(digits) if len(digits) < len(str(TIMEOUT_MAX_S)) else TIMEOUT_MAX_S
