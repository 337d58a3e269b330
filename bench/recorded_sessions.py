"""Writes transcripts, as Claude Code keeps them, from the shapes of recorded sessions: sizes, times and usage, no text.

The text of a block depends on the hash of its content, so that equal results and files are equal again.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

SESSIONS = Path(__file__).parents[2] / "shared" / "trajectories" / "claude-code-usage.jsonl.xz"
BEGIN = datetime(2026, 2, 1, tzinfo=UTC)
WORDS = "session branch token request reader cache limit writer ledger store cursor commit "


def recorded_sessions(path: Path = SESSIONS) -> Iterator[Mapping[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def write_transcript(session: Mapping[str, Any], folder: Path) -> Path:
    """A transcript of the session below `folder`, where Claude Code would have written it."""
    path = folder / "projects" / "-home-me-project" / f"{session['id']}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(line, separators=(",", ":")) for line in _lines_of(session)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _lines_of(session: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    parent, number = None, 0

    def line(kind: str, at_s: float, **members: object) -> Mapping[str, Any]:
        nonlocal parent, number
        number += 1
        uuid = f"{session['id']}-{number}"
        moment = (BEGIN + timedelta(seconds=at_s)).isoformat().replace("+00:00", "Z")
        common = {"parentUuid": parent, "isSidechain": False, "cwd": "/home/me/project", "sessionId": session["id"]}
        parent = uuid
        return {**common, "type": kind, "uuid": uuid, "timestamp": moment, **members}

    waiting: list[dict[str, Any]] = []
    waiting_at = 0.0
    for turn, request in enumerate(session["requests"]):
        if request.get("after_compaction"):
            waiting = []
            yield line("system", request["at"], subtype="compact_boundary")
        for result in waiting:
            # Results came right after the response; the next request may have waited for the user.
            at_s = request["at"] if not request["user"] else waiting_at
            yield line("user", at_s, message={"role": "user", "content": [result]})
        for block, size in enumerate(request["user"]):
            text = _text(f"user {turn}.{block}", size)
            yield line("user", request["at"], message={"role": "user", "content": text})
        calls, waiting, waiting_at = [], [], request["end"]
        for block, part in enumerate(request["assistant"]):
            content = _block_of(session["id"], turn, block, part)
            calls += [content["id"]] if part["kind"] == "call" else []
            message = {
                "id": f"msg_{session['id']}_{turn}",
                "role": "assistant",
                "model": request["model"],
                "content": [content],
                "usage": _usage_of(request["usage"]),
            }
            request_id = f"req_{session['id']}_{turn}"
            yield line("assistant", request["end"], message=message, requestId=request_id, version=request["version"])
        for call_id, answer in zip(calls, request["results"], strict=False):
            text = _text(f"result {answer['content']}", answer["bytes"])
            failed = {"is_error": True} if answer.get("error") else {}
            waiting.append({"type": "tool_result", "tool_use_id": call_id, "content": text, **failed})


def _block_of(session_id: str, turn: int, block: int, part: Mapping[str, Any]) -> dict[str, Any]:
    name = f"{session_id} {turn}.{block}"
    if part["kind"] == "call":
        arguments = {"file_path": f"/home/me/project/{part['file']}"} if part.get("file") else {}
        rest = max(0, part["bytes"] - len(json.dumps(arguments)))
        arguments |= {"input": _text(name, rest)} if rest else {}
        return {
            "type": "tool_use",
            "id": f"toolu_{session_id}_{turn}_{block}",
            "name": part["tool"],
            "input": arguments,
        }
    if part["kind"] == "thinking":
        return {"type": "thinking", "thinking": "", "signature": _text(name, part["bytes"])}
    return {"type": "text", "text": _text(name, part["bytes"])}


def _usage_of(usage: Mapping[str, int]) -> Mapping[str, object]:
    return {
        "input_tokens": usage["input"],
        "cache_read_input_tokens": usage["read"],
        "cache_creation_input_tokens": usage["write_5m"] + usage["write_1h"],
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage["write_5m"],
            "ephemeral_1h_input_tokens": usage["write_1h"],
        },
        "output_tokens": usage["output"],
    }


def _text(name: str, size: int) -> str:
    """A text of this many bytes."""
    repeated = name + " " + WORDS * (size // len(WORDS) + 1)
    return repeated[:size]
