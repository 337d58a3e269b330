"""Agents' runs for the replay, from files if there are any, and generated ones. A policy adds branches to them.

A run is a list of messages in the chat format. Branches and returns are added as calls of the real tools on a store in
memory, so that their results are those of the daemon. `rendered` writes a run in the format of an API.
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
from contextfold.fold.project import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.serve.mcp.fold_tools import FOLD_TOOLS, run_fold_tool
from contextfold.serve.mcp.tools import describe_tool
from contextfold.serve.request_error import RequestError
from tests.support.temporary_store import TemporaryStore

HERE = Path(__file__).resolve().parent.parent.parent / "shared" / "trajectories"
PROJECT = "/home/me/project"
TOOLS = {tool.name: tool for tool in FOLD_TOOLS}
PREFIX = "mcp__contextfold__"
# A summary has this many characters from each end of the branch's last text.
SUMMARY_LENGTH = 300
# The prompt of a branch has this many characters of the user's last text.
PROMPT_LENGTH = 200

Message = dict[str, Any]
# Takes a tool and its arguments without the project, and returns the tool's result.
CallTool = Callable[[str, Mapping[str, object]], Awaitable[str]]


class TrajectoryRun(NamedTuple):
    name: str
    messages: list[Message]


class Policy(NamedTuple):
    """When an agent branches: for at least `least` tool turns in a row, with at most `most` of them in a branch."""

    name: str
    least: int
    most: int
    # If true, one branch covers the whole row, and the others are nested in it.
    nested: bool = False


MOST = 1_000
EACH = Policy("each row of 2 and more tool turns", 2, MOST)
SIX = Policy("each row, 6 tool turns a branch", 2, 6)
NESTED = Policy("each row, and 6 tool turns in it", 2, 6, nested=True)
LONG = Policy("rows of 6 and more tool turns", 6, MOST)
POLICIES = (EACH, SIX, NESTED, LONG)


# ---- the runs


def sets(folder: Path = HERE, *, most: int = MOST) -> dict[str, list[TrajectoryRun]]:
    """The runs of each file, and generated ones. A file of shapes has no text, so it cannot be replayed here."""
    recorded = {
        path.stem: list(_read(path))[:most] for path in sorted(folder.glob("*.jsonl")) if path.name != SHAPES_FILE
    }
    return {**recorded, "generated": [generated(seed) for seed in range(min(most, GENERATED))]}


def _read(path: Path) -> Iterator[TrajectoryRun]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            yield TrajectoryRun(f"{path.stem} {number + 1}", json.loads(line)["messages"])


SHAPES_FILE = "shapes.jsonl"
GENERATED = 3
SUBTASKS = 8
# The smallest and the largest number of tool turns in a subtask.
TURNS = (2, 12)
OUTPUT_LINES = (5, 120)
LINE = "src/{}/{}.py:{}:     return {}({}, limit={})  # as {} wants it"
WORDS = ("session", "branch", "token", "request", "reader", "cache", "limit", "writer", "ledger", "store", "cursor")


def generated(seed: int, *, subtasks: int = SUBTASKS, lines: tuple[int, int] = OUTPUT_LINES) -> TrajectoryRun:
    """A coding agent's run: subtasks of a few to a dozen tool turns, each of which ends with a text."""
    rng = random.Random(seed)

    def words(number: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(number))

    def line() -> str:
        number = rng.randrange(10_000)
        return LINE.format(*rng.sample(WORDS, 2), number, *rng.sample(WORDS, 2), number % 97, rng.choice(WORDS))

    messages: list[Message] = [
        {"role": "system", "content": f"You are a coding agent. {words(600)}"},
        {"role": "user", "content": f"Do this: {words(120)}"},
    ]
    for subtask in range(subtasks):
        for turn in range(rng.randint(*TURNS)):
            call_id = f"call_{seed}_{subtask}_{turn}"
            arguments = json.dumps({"command": f"grep -rn {words(2)} src | head -{rng.randrange(9, 99)}"})
            tool_call = {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}
            output = "\n".join(line() for _ in range(rng.randint(*lines)))
            messages.append({"role": "assistant", "content": f"I look at {words(12)}.", "tool_calls": [tool_call]})
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

    Some agents act in plain text and get the output as a message of the user. In a run without tool calls, these turns
    count as tool turns.
    """
    acts_in_text = not any(message.get("tool_calls") for message in run.messages)
    begins = [position for position, message in enumerate(run.messages) if message["role"] == "assistant"]
    turns: list[Turn] = []
    for begin, end in zip(begins, [*begins[1:], len(run.messages)], strict=True):
        messages = run.messages[begin:end]
        turns.append(Turn(messages, bool(messages[0].get("tool_calls")) or (acts_in_text and len(messages) > 1)))
    return run.messages[: begins[0]], turns


class ReplayedBranch(NamedTuple):
    # The index of the branch's first turn.
    first: int
    # The index of the turn after the branch's last one.
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
            pieces = [ReplayedBranch(start, min(end, start + policy.most)) for start in range(begin, end, policy.most)]
            branches += [row] if policy.nested and len(pieces) > 1 else []
            branches += [piece for piece in pieces if piece.end - piece.first >= min(policy.least, policy.most)]
        begin = end + 1
    return branches


async def branched(run: TrajectoryRun, policy: Policy, call_tool: CallTool | None = None) -> TrajectoryRun:
    """The run with calls of the branching tools. Every turn is reported to the session, as by hooks."""
    agent = _Agent(call_tool or in_memory())
    head, turns = turns_of(run)
    branches = branches_of(turns, policy)
    messages, user_text = list(head), _text(head[-1])
    for position, turn in enumerate([*turns, Turn([], False)]):
        for _ended in [branch for branch in branches if branch.end == position]:
            messages += await agent.call_messages("context_return", message=summary_of(turns[position - 1]))
        for branch in [branch for branch in branches if branch.first == position]:
            description = f"Turns {position + 1} to {branch.end} of {run.name}"
            prompt = user_text[:PROMPT_LENGTH] or "Go on."
            messages += await agent.call_messages("context_branch", description=description, prompt=prompt)
        if turn.messages:
            user_text = _text(turn.messages[-1]) if turn.messages[-1]["role"] == "user" else user_text
            await agent.report(turn)
            messages += turn.messages
    return TrajectoryRun(run.name, messages)


def summary_of(last: Turn) -> str:
    """Both ends of the last text of a branch: of the assistant, or of the tool if the assistant wrote nothing."""
    text = _text(last.messages[0]) or _text(last.messages[-1]) or "Done."
    return text if len(text) <= 2 * SUMMARY_LENGTH else f"{text[:SUMMARY_LENGTH]} … {text[-SUMMARY_LENGTH:]}"


def _text(message: Message) -> str:
    return str(message.get("content") or "")


class _Agent:
    """An agent that calls the tools of one session."""

    def __init__(self, call_tool: CallTool) -> None:
        self._call_tool = call_tool
        self._calls = 0

    async def call_messages(self, tool: str, **arguments: str) -> list[Message]:
        self._calls += 1
        call_id = f"call_fold_{self._calls}"
        function = {"name": PREFIX + tool, "arguments": json.dumps({**arguments, "project_path": PROJECT})}
        return [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call_id, "content": await self._call_tool(tool, arguments)},
        ]

    async def report(self, turn: Turn) -> None:
        arguments = [call["function"]["arguments"] for call in turn.messages[0].get("tool_calls") or ()]
        content = "\n".join([*arguments, *map(_text, turn.messages)])
        await self._call_tool("context_record", {"type": "turn", "content": content})


SCRUBBER = cache(standard_scrubber)


def in_memory() -> CallTool:
    """The tools on a new store in memory, with ids and times that are the same in every run."""
    numbers = count()
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    service = FoldService(
        TemporaryStore(),
        SCRUBBER(),
        clock=lambda: begin + timedelta(seconds=next(numbers)),
        new_id=lambda prefix: f"{prefix}_{next(numbers):016x}",
    )

    async def call_tool(tool: str, arguments: Mapping[str, object]) -> str:
        tool_arguments = {**arguments, "project_path": PROJECT}
        try:
            answer = await run_fold_tool(TOOLS[tool], service, Caller("local", None, None), tool_arguments)
        except RequestError as error:
            raise SystemExit(f"{tool} failed: {error.message}") from error
        return answer.text

    return call_tool


# ---- in the format of an API


class Rendered(NamedTuple):
    """A run as requests: the items of the list, and how many of them each request has."""

    format: Format
    # The beginning of the body as text, up to the list.
    head: str
    items: list[Message]
    # The number of items in the request of each of the assistant's answers.
    ends: list[int]

    def bodies(self) -> list[bytes]:
        """The bodies of all requests that the agent sent, and of the one that it would send next."""
        written = [json.dumps(item, ensure_ascii=False) for item in self.items]
        return [self._body(written[:end]) for end in (*self.ends, len(written))]

    def last_body(self) -> bytes:
        return self._body([json.dumps(item, ensure_ascii=False) for item in self.items])

    def _body(self, written: Sequence[str]) -> bytes:
        return (self.head + ", ".join(written) + "]}").encode()


def rendered(run: TrajectoryRun, format: Format, *, with_tools: bool) -> Rendered:
    """Writes a run in a format; `with_tools` adds the definitions of the folding tools, which cost tokens."""
    system = [message for message in run.messages if message["role"] == "system"]
    render_message = _RENDER[format]
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
        render_message(items, message, ids)
    head: dict[str, object] = {"model": "a-model", "max_tokens": 4096}
    if format != "openai-chat" and system:
        head[{"anthropic": "system"}.get(format, "instructions")] = "\n\n".join(map(_text, system))
    if with_tools:
        head["tools"] = [_definition(tool, format) for tool in map(describe_tool, FOLD_TOOLS)]
    name = {"openai-responses": "input", "gemini": "contents"}.get(format, "messages")
    return Rendered(format, f'{json.dumps(head, ensure_ascii=False)[:-1]}, "{name}": [', items, ends)


def _definition(tool: Mapping[str, Any], format: Format) -> Message:
    description = {"name": PREFIX + tool["name"], "description": tool["description"]}
    if format == "anthropic":
        return {**description, "input_schema": tool["inputSchema"]}
    if format == "gemini":
        return {"functionDeclarations": [{**description, "parameters": tool["inputSchema"]}]}
    function = {**description, "parameters": tool["inputSchema"]}
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
        content = _text(message)
        blocks.append({"type": "tool_result", "tool_use_id": ids[message["tool_call_id"]], "content": content})
    elif _text(message):
        blocks.append({"type": "text", "text": _text(message)})
    for tool_call in message.get("tool_calls") or ():
        function = tool_call["function"]
        tool_arguments = json.loads(function["arguments"] or "{}")
        blocks.append(
            {"type": "tool_use", "id": ids[tool_call["id"]], "name": function["name"], "input": tool_arguments}
        )
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
    for tool_call in message.get("tool_calls") or ():
        function = tool_call["function"]
        tool_arguments = json.loads(function["arguments"] or "{}")
        parts.append({"functionCall": {"id": ids[tool_call["id"]], "name": function["name"], "args": tool_arguments}})
    if items and items[-1]["role"] == role:
        items[-1]["parts"] += parts
    else:
        items.append({"role": role, "parts": parts})


def _to_responses(items: list[Message], message: Message, ids: Mapping[str, str]) -> None:
    text = _text(message)
    if message["role"] == "tool":
        result = {"call_id": ids[message["tool_call_id"]], "output": text}
        items.append({"type": "function_call_output", **result})
    elif message["role"] == "assistant" and text:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        items.append({"type": "message", "role": "assistant", "content": content})
    elif text:
        items.append({"type": "message", "role": message["role"], "content": text})
    for tool_call in message.get("tool_calls") or ():
        items.append({"type": "function_call", "call_id": ids[tool_call["id"]], **tool_call["function"]})


_RENDER = {
    "openai-chat": _to_chat,
    "anthropic": _to_anthropic,
    "openai-responses": _to_responses,
    "gemini": _to_gemini,
}
