"""Payloads of hooks. `tests/hosts/recorded/README.md` says which were recorded and which written by hand."""

from __future__ import annotations

import json
from typing import Any

from tests.support.machine import ROOT

RECORDED = "claude-code-2.1.325"


def payloads(name: str) -> list[dict[str, Any]]:
    text = (ROOT / "tests" / "hosts" / "recorded" / f"{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]
