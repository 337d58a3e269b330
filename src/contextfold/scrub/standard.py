"""Makes the scrubber with the standard rules, which it reads from the package. It reads no other file."""

from __future__ import annotations

import os

from contextfold.scrub.quick_check import Scrubbed, has_keyword, is_of_words
from contextfold.scrub.rules import allowlist_from, rules_from
from contextfold.scrub.scrubber import Scrubber

RULES_FILE = os.path.join(os.path.dirname(__file__), "rules.toml")
SCRUBBERS_MAX = 4
_scrubbers: dict[tuple[str, bool], Scrubber] = {}


def read_rules_file() -> str:
    with open(RULES_FILE, encoding="utf-8") as file:
        return file.read()


def standard_scrubber(allowlist_text: str = "", *, compiles_all: bool = True) -> Scrubber:
    """The scrubber with the standard rules and the user's allowlist. Raises AllowlistInvalid.

    Compiling the rules takes some 200 ms of processor time, so a process does it once. Without `compiles_all` each rule
    is compiled for the first text that has one of its keywords.
    """
    if (allowlist_text, compiles_all) not in _scrubbers:
        rules = rules_from(read_rules_file())
        scrubber = Scrubber(rules, allowlist_from(allowlist_text), compiles_all=compiles_all)
        if len(_scrubbers) >= SCRUBBERS_MAX:
            _scrubbers.clear()
        _scrubbers[allowlist_text, compiles_all] = scrubber
    return _scrubbers[allowlist_text, compiles_all]


class QuickScrubber:
    """The standard scrubber for a few short texts. Most of them have no keyword of any rule, and then need none."""

    def scrub(self, text: str) -> Scrubbed:
        if is_of_words(text) or not has_keyword(text):
            return Scrubbed(text, 0, ())
        return standard_scrubber(compiles_all=False).scrub(text)
