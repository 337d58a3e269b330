"""VS Code's agent hooks (`.github/hooks/*.json`), written after its public reference of mid-2026; not tested with it.

The hooks are a preview feature. They are commands: the payload is on the command's input, the answer on its output.
The events are those of Claude Code, except the one for failures. Common members are in camelCase (`sessionId`,
`hookEventName`), those of a tool are not. VS Code also runs the command hooks of `.claude/settings.json`, so both
spellings are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.hosts import claude_code
from contextfold.hosts.hook_event import HookEvent

ANSWERED = frozenset({"PostToolUse", "SessionStart"})
SPELLINGS = {"sessionId": "session_id", "hookEventName": "hook_event_name"}


def read(payload: Mapping[str, object]) -> HookEvent:
    renamed = {SPELLINGS[name]: payload[name] for name in SPELLINGS if payload.get(name) is not None}
    return claude_code.read({**payload, **renamed})


def answer(event: str, line: str) -> dict[str, object]:
    return claude_code.answer(event, line) if event in ANSWERED else {}
