"""Prints what CHANGELOG.md says of a version: `python tools/release_notes.py 0.1.0`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parents[1] / "CHANGELOG.md"


def read_notes(version: str) -> str:
    """The section of a version, without its heading. Raises KeyError if there is none."""
    sections = re.split(r"^## (\S+).*\n", CHANGELOG.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(sections[1::2], sections[2::2], strict=True))[version].strip() + "\n"


if __name__ == "__main__":
    try:
        print(read_notes(sys.argv[1]), end="")
    except KeyError:
        sys.exit(f"CHANGELOG.md has no section for {sys.argv[1]}; rename Unreleased to it")
