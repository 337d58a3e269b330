"""Makes the scrubber with the standard rules, which it reads from the package. It reads no other file."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

from contextfold.scrub.rules import allowlist_from, rules_from
from contextfold.scrub.scrubber import Scrubber


@lru_cache(maxsize=4)
def standard_scrubber(allowlist_text: str = "") -> Scrubber:
    """The scrubber with the standard rules and the user's allowlist. Raises RulesInvalid if the allowlist is invalid.

    Compiling the rules takes some 200 ms of processor time, so a process does it once.
    """
    rules = rules_from(files("contextfold.scrub").joinpath("rules.toml").read_text(encoding="utf-8"))
    return Scrubber(rules, allowlist_from(allowlist_text))
