"""The scrubber with our own rules. Owns reading them from the package, the only file this package ever reads."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

from contextfold.scrub.rules import allowlist_from, rules_from
from contextfold.scrub.scrubber import Scrubber


@lru_cache(maxsize=4)
def standard_scrubber(allowlist_text: str = "") -> Scrubber:
    """Our rules, less what the user's allowlist lets through; RulesInvalid says what is wrong with the latter.

    Compiling the rules takes some 200 ms of processor time, so a process does it once.
    """
    rules = rules_from(files("contextfold.scrub").joinpath("rules.toml").read_text(encoding="utf-8"))
    return Scrubber(rules, allowlist_from(allowlist_text))
