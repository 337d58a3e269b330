"""Agents' runs for the replay, read from files if there are any, otherwise generated; a policy adds branches to them.

A run is a list of messages in the chat format. A branch and its return are called in it as an agent would, through the
real tools on a store in memory, so that their results are the daemon's. `rendered` writes a run in the format of each
API.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from contextfold.fold.messages import Format
from contextfold.fold.service.callers import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.scrub.standard import standard_scrubber
from contextfold.serve.mcp.fold_tools import FOLD_TOOLS, call
from contextfold.serve.mcp.tools import listing
from contextfold.serve.request_error import RequestError
from contextfold.stores.memory import MemoryStore

HERE = Path(__file__).resolve().parent.parent.parent / "shared" / "trajectories"
PROJECT = "/home/me/project"
TOOLS = {tool.name: tool for tool in FOLD_TOOLS}
PREFIX = "mcp__contextfold__"
# An agent's summary is this many characters from each end of the branch's last text.
SUMMARY_LENGTH = 300
# A branch's prompt is this many characters of the user's last text.
PROMPT_LENGTH = 200

Message = dict[str, Any]
# The function takes a tool and its arguments without the project, and returns the tool's result.
Ask = Callable[[str, Mapping[str, object]], Awaitable[str]]


class TrajectoryRun(NamedTuple):
    name: str
    messages: list[Message]


class Policy(NamedTuple):
    """When an agent branches: for at least `least` tool turns in a row, with at most `most` of them in a branch."""

    name: str
    least: int
    most: int
    # One branch covers the whole row, and the others are nested in it.
    within: bool = False


MOST = 1_000
EACH = Policy("each row of 2 and more tool turns", 2, MOST)
SIX = Policy("each row, 6 tool turns a branch", 2, 6)
NESTED = Policy("each row, and 6 tool turns in it", 2, 6, within=True)
LONG = Policy("rows of 6 and more tool turns", 6, MOST)
POLICIES = (EACH, SIX, NESTED, LONG)


# ---- the runs


def sets(folder: Path = HERE, *, most: int = MOST) -> dict[str, list[TrajectoryRun]]:
    """The runs of each file, and generated ones. A file of shapes has no text, so it cannot be replayed here."""
    found = {path.stem: list(_read(path))[:most] for path in sorted(folder.glob("*.jsonl")) if path.name != SHAPES_FILE}
    return {**found, "generated": [generated(seed) for seed in range(min(most, GENERATED))]}


def _read(path: Path) -> Iterator[TrajectoryRun]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            yield TrajectoryRun(f"{path.stem} {number + 1}", json.loads(line)["messages"])


SHAPES_FILE = "shapes.jsonl"
GENERATED = 3
SUBTASKS = 8
# These are the least and the greatest number of tool turns in a subtask.
TURNS = (2, 12)
OUTPUT_LINES = (5, 120)
LINE = "src/{}/{}.py:{}:     return {}({}, limit={})  # as {} wants it"
WORDS = ("session", "branch", "token", "request", "reader", "cache", "limit", "writer", "ledger", "store", "cursor")


def generated(seed: int, *, subtasks: int = SUBTASKS, lines: tuple[int, int] = OUTPUT_LINES) -> TrajectoryRun:
    """A coding agent's run: subtasks of a few to a dozen tool turns, each of which ends with a text."""
    draw = random.Random(seed)

    def words(number: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(number))

    def line() -> str:
        number = draw.randrange(10_000)
        return LINE.format(*draw.sample(WORDS, 2), number, *draw.sample(WORDS, 2), number % 97, draw.choice(WORDS))

    messages: list[Message] = [
        {"role": "system", "content": f"You are a coding agent. {words(600)}"},
        {"role": "user", "content": f"Do this: {words(120)}"},
    ]
    for subtask in range(subtasks):
        for turn in range(draw.randint(*TURNS)):
            call_id = f"call_{seed}_{subtask}_{turn}"
            arguments = json.dumps({"command": f"grep -rn {words(2)} src | head -{draw.randrange(9, 99)}"})
            asked = {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}
            output = "\n".join(line() for _ in range(draw.randint(*lines)))
            messages.append({"role": "assistant", "content": f"I look at {words(12)}.", "tool_calls": [asked]})
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        messages.append({"role": "assistant", "content": f"Done: {words(60)}."})
        messages.append({"role": "user", "content": f"Good. Now {words(20)}"})
    return TrajectoryRun(f"generated {seed + 1}", messages)


# ---- with branches


class Turn(NamedTuple):
    # The assistant's message comes first, then the messages that answer it.
    messages: list[Message]
    is_tool_turn: bool


def turns_of(run: TrajectoryRun) -> tuple[list[Message], list[Turn]]:
    """The messages before the first turn, and the turns.

    Some agents act in plain text and get the output as the user's message. Where a run has no tool call at all,
    these are its tool turns.
    """
    acts_in_text = not any(message.get("tool_calls") for message in run.messages)
    begins = [place for place, message in enumerate(run.messages) if message["role"] == "assistant"]
    turns: list[Turn] = []
    for begin, end in zip(begins, [*begins[1:], len(run.messages)], strict=True):
        messages = run.messages[begin:end]
        turns.append(Turn(messages, bool(messages[0].get("tool_calls")) or (acts_in_text and len(messages) > 1)))
    return run.messages[: begins[0]], turns


class ReplayedBranch(NamedTuple):
    # This is the index of the branch's first turn.
    first: int
    # This is the index of the turn after the branch's last one.
    end: int


def branches_of(turns: Sequence[Turn], policy: Policy) -> list[ReplayedBranch]:
    """The branches in the order in which they begin, outer ones first."""
    branches: list[ReplayedBranch] = []
    begin = 0
    while begin < len(turns):
        end = begin
        while end < len(turns) and turns[end].is_tool_turn:
            end += 1
        if end - begin >= policy.least:
            row = ReplayedBranch(begin, end)
            pieces = [ReplayedBranch(at, min(end, at + policy.most)) for at in range(begin, end, policy.most)]
            branches += [row] if policy.within and len(pieces) > 1 else []
            branches += [piece for piece in pieces if piece.end - piece.first >= min(policy.least, policy.most)]
        begin = end + 1
    return branches


async def branched(run: TrajectoryRun, policy: Policy, ask: Ask | None = None) -> TrajectoryRun:
    """The run with calls of the branching tools. Every turn is reported to the session, as hooks do."""
    agent = _Agent(ask or in_memory())
    head, turns = turns_of(run)
    branches = branches_of(turns, policy)
    messages, said = list(head), _text(head[-1])
    for place, turn in enumerate([*turns, Turn([], False)]):
        for _ended in [branch for branch in branches if branch.end == place]:
            messages += await agent.calls("context_return", message=summary_of(turns[place - 1]))
        for begun in [branch for branch in branches if branch.first == place]:
            about = f"Turns {place + 1} to {begun.end} of {run.name}"
            prompt = said[:PROMPT_LENGTH] or "Go on."
            messages += await agent.calls("context_branch", description=about, prompt=prompt)
        if turn.messages:
            said = _text(turn.messages[-1]) if turn.messages[-1]["role"] == "user" else said
            await agent.reports(turn)
            messages += turn.messages
    return TrajectoryRun(run.name, messages)


def summary_of(last: Turn) -> str:
    """Both ends of the last text of a branch: the assistant's, or the tool's where it said nothing."""
    text = _text(last.messages[0]) or _text(last.messages[-1]) or "Done."
    return text if len(text) <= 2 * SUMMARY_LENGTH else f"{text[:SUMMARY_LENGTH]} … {text[-SUMMARY_LENGTH:]}"


def _text(message: Message) -> str:
    return str(message.get("content") or "")


class _Agent:
    """One session, called as an MCP client calls it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._calls = 0

    async def calls(self, tool: str, **arguments: str) -> list[Message]:
        self._calls += 1
        call_id = f"call_fold_{self._calls}"
        function = {"name": PREFIX + tool, "arguments": json.dumps({**arguments, "project_path": PROJECT})}
        return [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call_id, "content": await self._ask(tool, arguments)},
        ]

    async def reports(self, turn: Turn) -> None:
        asked = [call["function"]["arguments"] for call in turn.messages[0].get("tool_calls") or ()]
        content = "\n".join([*asked, *map(_text, turn.messages)])
        await self._ask("context_record", {"type": "turn", "content": content})


SCRUBBER = cache(standard_scrubber)


def in_memory() -> Ask:
    """The tools on a new store in memory, with ids and times that are the same in every run."""
    numbers = count()
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    service = FoldService(
        MemoryStore(),
        SCRUBBER(),
        clock=lambda: begin + timedelta(seconds=next(numbers)),
        new_id=lambda prefix: f"{prefix}_{next(numbers):016x}",
    )

    async def ask(tool: str, arguments: Mapping[str, object]) -> str:
        given = {**arguments, "project_path": PROJECT}
        try:
            answer = await call(TOOLS[tool], service, Caller("local", None, None), given)
        except RequestError as error:
            raise SystemExit(f"{tool} failed: {error.message}") from error
        return answer.text

    return ask


# ---- in the format of an API


class Rendered(NamedTuple):
    """A run in the form of requests: the items of the list, and how many of them each request holds."""

    format: Format
    # This is the beginning of the body as text, up to the list.
    head: str
    items: list[Message]
    # The list has an entry for each of the assistant's answers.
    ends: list[int]

    def bodies(self) -> list[bytes]:
        """Every request that the agent sent, as bytes, and finally the one that it would send next."""
        written = [json.dumps(item, ensure_ascii=False) for item in self.items]
        return [self._body(written[:end]) for end in (*self.ends, len(written))]

    def last_body(self) -> bytes:
        return self._body([json.dumps(item, ensure_ascii=False) for item in self.items])

    def _body(self, written: Sequence[str]) -> bytes:
        return (self.head + ", ".join(written) + "]}").encode()


def rendered(run: TrajectoryRun, format: Format, *, with_tools: bool) -> Rendered:
    """Writes a run in a format; `with_tools` adds the definitions of the folding tools, which cost tokens."""
    system = [message for message in run.messages if message["role"] == "system"]
    listed = _RENDER[format]
    items: list[Message] = []
    ends: list[int] = []
    number = count(1)
    # Some agents use an id twice, so each call gets a new one.
    ids: dict[str, str] = {}
    for message in run.messages:
        if message["role"] == "system" and format != "openai-chat":
            continue
        if message["role"] == "assistant":
            ends.append(len(items))
            ids |= {call["id"]: f"call_{next(number)}" for call in message.get("tool_calls") or ()}
        listed(items, message, ids)
    head: dict[str, object] = {"model": "a-model", "max_tokens": 4096}
    if format != "openai-chat" and system:
        head[{"anthropic": "system"}.get(format, "instructions")] = "\n\n".join(map(_text, system))
    if with_tools:
        head["tools"] = [_defined(tool, format) for tool in map(listing, FOLD_TOOLS)]
    name = {"openai-responses": "input", "gemini": "contents"}.get(format, "messages")
    return Rendered(format, f'{json.dumps(head, ensure_ascii=False)[:-1]}, "{name}": [', items, ends)


def _defined(tool: Mapping[str, Any], format: Format) -> Message:
    told = {"name": PREFIX + tool["name"], "description": tool["description"]}
    if format == "anthropic":
        return {**told, "input_schema": tool["inputSchema"]}
    if format == "gemini":
        return {"functionDeclarations": [{**told, "parameters": tool["inputSchema"]}]}
    function = {**told, "parameters": tool["inputSchema"]}
    return {"type": "function", "function": function} if format == "openai-chat" else {"type": "function", **function}


def _to_chat(items: list[Message], message: Message, ids: Mapping[str, str]) -> None:
    if message["role"] == "tool":
        message = {**message, "tool_call_id": ids[message["tool_call_id"]]}
    elif message.get("tool_calls"):
        message = {**message, "tool_calls": [{**call, "id": ids[call["id"]]} for call in message["tool_calls"]]}
    items.append(message)


def _to_anthropic(items: list[Message], message: Message, ids: Mapping[str, str]) -> None:
    role = "assistant" if message["role"] == "assistant" else "user"
    blocks: list[Message] = []
    if message["role"] == "tool":
        told = _text(message)
        blocks.append({"type": "tool_result", "tool_use_id": ids[message["tool_call_id"]], "content": told})
    elif _text(message):
        blocks.append({"type": "text", "text": _text(message)})
    for asked in message.get("tool_calls") or ():
        function = asked["function"]
        given = json.loads(function["arguments"] or "{}")
        blocks.append({"type": "tool_use", "id": ids[asked["id"]], "name": function["name"], "input": given})
    if items and items[-1]["role"] == role:
        items[-1]["content"] += blocks
    else:
        items.append({"role": role, "content": blocks})


def _to_gemini(items: list[Message], message: Message, ids: Mapping[str, str]) -> None:
    role = "model" if message["role"] == "assistant" else "user"
    parts: list[Message] = []
    if message["role"] == "tool":
        response = {"id": ids[message["tool_call_id"]], "name": "tool", "response": {"output": _text(message)}}
        parts.append({"functionResponse": response})
    elif _text(message):
        parts.append({"text": _text(message)})
    for asked in message.get("tool_calls") or ():
        function = asked["function"]
        given = json.loads(function["arguments"] or "{}")
        parts.append({"functionCall": {"id": ids[asked["id"]], "name": function["name"], "args": given}})
    if items and items[-1]["role"] == role:
        items[-1]["parts"] += parts
    else:
        items.append({"role": role, "parts": parts})


def _to_responses(items: list[Message], message: Message, ids: Mapping[str, str]) -> None:
    text = _text(message)
    if message["role"] == "tool":
        told = {"call_id": ids[message["tool_call_id"]], "output": text}
        items.append({"type": "function_call_output", **told})
    elif message["role"] == "assistant" and text:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        items.append({"type": "message", "role": "assistant", "content": content})
    elif text:
        items.append({"type": "message", "role": message["role"], "content": text})
    for asked in message.get("tool_calls") or ():
        items.append({"type": "function_call", "call_id": ids[asked["id"]], **asked["function"]})


_RENDER = {
    "openai-chat": _to_chat,
    "anthropic": _to_anthropic,
    "openai-responses": _to_responses,
    "gemini": _to_gemini,
}
