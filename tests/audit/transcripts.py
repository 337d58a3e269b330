"""Writes transcripts for the tests, line by line, as Claude Code and Codex write them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
MODEL = "claude-sonnet-4-5-20250929"


def moment(at_s: float) -> str:
    return (BEGIN + timedelta(seconds=at_s)).isoformat().replace("+00:00", "Z")


class ClaudeTranscript:
    """A conversation of Claude Code. `asked` adds a prompt or results, `answered` a response with its usage."""

    def __init__(self, session: str = "s1", *, cwd: str = "/home/me/project", **common: object) -> None:
        self._session, self._cwd, self._common = session, cwd, common
        self.lines: list[str] = []
        self.last = ""
        self._parent: str | None = None

    def line(self, kind: str, at_s: float, **members: object) -> None:
        uuid = f"{self._session}-{len(self.lines)}"
        line = {"type": kind, "uuid": uuid, "parentUuid": self._parent, "sessionId": self._session, "cwd": self._cwd}
        self.lines.append(json.dumps(line | {"timestamp": moment(at_s)} | self._common | members))
        self._parent = uuid

    def asked(self, at_s: float, content: object, **members: object) -> None:
        self.line("user", at_s, message={"role": "user", "content": content}, **members)

    def answered(
        self, at_s: float, *blocks: dict[str, Any], read: int = 0, wrote: int = 0, hour: bool = False, **changes: Any
    ) -> None:
        """One line for each block, all with the same id and usage."""
        self.last = changes.pop("id", f"msg_{self._session}_{len(self.lines)}")
        usage = {
            "input_tokens": 10,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": wrote,
            "cache_creation": {"ephemeral_1h_input_tokens": wrote if hour else 0},
            "output_tokens": 100,
        }
        for block in blocks or ({"type": "text", "text": "done"},):
            message = {"id": self.last, "role": "assistant", "model": MODEL, "content": [block], "usage": usage}
            self.line("assistant", at_s, message=message | changes, requestId=f"req_{self.last}")

    def write(self, folder: Path, name: str = "", *, tail: str = "") -> Path:
        path = folder / f"{name or self._session}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self.lines) + "\n" + tail, encoding="utf-8")
        return path


def call_of(call_id: str, tool: str = "Read", **arguments: object) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": tool, "input": arguments}


def result(call_id: str, text: str) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": call_id, "content": text}]


def long_session(session: str, *, pause_s: float, hour: bool = False, **common: Any) -> ClaudeTranscript:
    """Four files are read, 3,000 tokens each; then the user is away, and comes back to a cache that has lapsed."""
    transcript = ClaudeTranscript(session, **common)
    transcript.asked(0, "why does the build fail?")
    prompt = 20_000
    transcript.answered(5, call_of(f"{session}0", file_path="/home/me/project/file0"), wrote=prompt, hour=hour)
    for number in range(1, 5):
        before = number - 1
        transcript.asked(10 * number, result(f"{session}{before}", f"text {before} " * 1_200))
        block = call_of(f"{session}{number}", file_path=f"/home/me/project/file{number}")
        transcript.answered(10 * number + 5, block, read=prompt, wrote=3_000, hour=hour)
        prompt += 3_000
    transcript.asked(50, result(f"{session}4", "short"))
    transcript.answered(55, read=prompt, wrote=100, hour=hour)
    transcript.asked(55 + pause_s, "and now?")
    transcript.answered(60 + pause_s, read=0, wrote=prompt + 200, hour=hour)
    return transcript
