"""The cost of the line about earlier work at the start of a session, and how often it fits, on recorded conversations.

python -m bench.first_prompts [FILE]

The conversations of a file (OpenAI's chat format, one JSON object a line) are used as sessions of one project. Each is
a fold, described by its first prompt and summarised by its last answer. Then each session starts again with all others
folded. A line fits if its first fold ended with the same kind of call as the session that starts.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from contextfold.common.tokens import estimate
from contextfold.fold.project import Caller, project_at, target_of
from contextfold.fold.service.fold_service import FoldService
from contextfold.scrub.scrubber import standard_scrubber
from tests.support.temporary_store import TemporaryStore

RECORDED = Path(__file__).parent.parent.parent / "shared" / "trajectories" / "tau-bench-airline.jsonl"
# Calls that only read do not show what a conversation was about.
READING = ("get_", "list_", "search_", "calculate", "think")


@dataclass(frozen=True, slots=True)
class RecordedSession:
    prompt: str
    answer: str
    kind: str


def sessions(file: Path) -> list[RecordedSession]:
    recorded_sessions = []
    for line in file.read_text(encoding="utf-8").splitlines():
        messages = json.loads(line)["messages"]
        user_texts = [each["content"] for each in messages if each["role"] == "user" and each.get("content")]
        answers = [each["content"] for each in messages if each["role"] == "assistant" and each.get("content")]
        calls = [
            call["function"]["name"]
            for each in messages
            for call in each.get("tool_calls") or ()
            if not call["function"]["name"].startswith(READING)
        ]
        if user_texts and answers:
            recorded_sessions.append(RecordedSession(user_texts[0], answers[-1], calls[-1] if calls else ""))
    return recorded_sessions


async def _line(recorded: list[RecordedSession], current: int) -> tuple[str, str]:
    """The line at the start of a session, and the kind of the first fold that it names."""
    service = FoldService(TemporaryStore(), standard_scrubber())
    project, caller = project_at("/recorded"), Caller("local")
    kinds: dict[str, str] = {}
    for number, each in enumerate(recorded):
        if number != current:
            branch = {"description": each.prompt[:200].strip() or "-", "prompt": each.prompt[:10_000].strip() or "-"}
            opened = await service.open_branch(caller, {**branch, "project_path": project.path})
            await service.return_branch(caller, {"message": each.answer[:50_000], "project_path": project.path})
            kinds[opened.answer["branch_id"]] = each.kind
    line = await service.recalls.memory_line(target_of(caller, project).key, recorded[current].prompt)
    first = (
        min((offset, kind) for branch_id, kind in kinds.items() if (offset := line.find(branch_id)) >= 0)[1]
        if line
        else ""
    )
    await service.close()
    return line, first


async def _lines(recorded: list[RecordedSession]) -> list[tuple[str, str]]:
    return [await _line(recorded, number) for number in range(len(recorded))]


def main(file: Path = RECORDED) -> bool:
    if not file.exists():
        print("the line at a session's start: the recorded conversations are not here")
        return True
    recorded = sessions(file)
    lines = asyncio.run(_lines(recorded))
    lines_given = [(line, kind, each) for (line, kind), each in zip(lines, recorded, strict=True) if line]
    tokens = [estimate(line) for line, _, _ in lines_given] or [0]
    matching = sum(kind == each.kind for _, kind, each in lines_given)
    counts = Counter(each.kind for each in recorded)
    chance = sum(count * (count - 1) for count in counts.values()) / (len(recorded) * (len(recorded) - 1))
    print(f"the line at a session's start: given in {len(lines_given)} of {len(recorded)} recorded sessions,")
    print(
        f"  {statistics.median(tokens):.0f} tokens each, at most {max(tokens)};"
        f" the first fold ended alike in {matching},"
    )
    print(f"  by chance it would be {chance * len(lines_given):.0f}")
    return True


if __name__ == "__main__":
    sys.exit(0 if main(*map(Path, sys.argv[1:])) else 1)
