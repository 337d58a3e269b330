"""VS Code's agent hooks (`.github/hooks/*.json`), read from its public reference of mid-2026 and not tried.

They are in preview, and commands only: the payload is on the command's input, the answer on its output. The events are
Claude Code's, without one for failures; common members are in camelCase (`sessionId`, `hookEventName`), those of a
tool are not. VS Code also runs the command hooks of `.claude/settings.json`, so both spellings are read.
"""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.hosts import claude_code
from contextfold.hosts.hook_event import HookEvent

ANSWERED = frozenset({"PostToolUse", "SessionStart"})
SPELLINGS = {"sessionId": "session_id", "hookEventName": "hook_event_name"}


def read(payload: Mapping[str, object]) -> HookEvent:
    ours = {SPELLINGS[name]: payload[name] for name in SPELLINGS if payload.get(name) is not None}
    return claude_code.read({**payload, **ours})


def answer(event: str, line: str) -> dict[str, object]:
    return claude_code.answer(event, line) if event in ANSWERED else {}
