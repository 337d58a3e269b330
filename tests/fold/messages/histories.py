"""Generated histories: a script written in the format of one of the four APIs, as messages and as bytes of a request.

All of it comes from a seed, so `generate_history(format, seed)` replays a failure. The beginning of a history does not
depend on how far it is read: `body(n)` is the request as it was when there were n messages.
"""

from __future__ import annotations

import json
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from tests.fold.messages.scripts import CLIENT_COUNT, REMINDER, Call, ScriptWriter, Step, result_text, truncated

Format = Literal["anthropic", "openai-chat", "openai-responses", "gemini"]
FORMATS: tuple[Format, ...] = get_args(Format)
LIST: dict[Format, str] = {
    "anthropic": "messages",
    "openai-chat": "messages",
    "openai-responses": "input",
    "gemini": "contents",
}
# Whether a model of Anthropic accepts a thinking block only after the same messages as when it was written.
MODELS = {
    "m-1": True,
    "claude-3-7-sonnet-20250219": False,
    "claude-sonnet-4-5-20250929": False,
    "claude-opus-5": False,
    "claude-opus-5-5": True,
    "claude-fable-5-1": True,
    "anthropic.claude-haiku-5-5-v1:0": True,
}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk" * 8

# What a search for tools gives: the API puts the tool's definition in its place.
FOUND = {"type": "tool_reference", "tool_name": "Found"}
FORGIVING = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    format: Format
    seed: str
    steps: Sequence[Step]
    messages: Sequence[Message]
    # For each message, the index of its step.
    step_indexes: Sequence[int]
    # For each message, its results, each with the step of its call.
    results: Sequence[Sequence[tuple[int, Call]]]
    # For each message, the texts of the user in it.
    user_texts: Sequence[Sequence[str]]
    head: bytes
    texts: Sequence[bytes]
    # A gap is the text between a message and the next.
    gaps: Sequence[bytes]
    tail: bytes
    model: str
    binds_thinking: bool
    # The number of messages after which a person folds the work, or 0.
    folded_at: int = 0

    def body(self, count: int | None = None) -> bytes:
        return self.body_of(range(len(self.texts) if count is None else count))

    def body_of(self, indexes: Sequence[int]) -> bytes:
        """The request with only these messages; the gap after a message stays with it."""
        parts = [self.head]
        for number, index in enumerate(indexes):
            parts.append(self.texts[index])
            if number + 1 < len(indexes):
                parts.append(self.gaps[index])
        return b"".join((*parts, self.tail))

    def __str__(self) -> str:
        return f"{self.format} {self.seed!r} (messages.histories.generate_history({self.format!r}, {self.seed!r}))"


def generate_history(format: Format, seed: str, *, irregular_chance: float | None = None) -> History:
    rng = random.Random(f"{format} {seed}")
    script_writer = ScriptWriter(
        rng, irregular_chance=rng.choice((0, 0, 0.15, 0.4)) if irregular_chance is None else irregular_chance
    )
    steps = script_writer.write()
    if rng.random() < 0.15:
        steps = truncated(rng, steps)
    if format == "openai-responses" and rng.random() < 0.2:
        steps = [part for step in steps for part in _one_by_one(step)]
    message_writer = MESSAGE_WRITERS[format](rng)
    message_writer.write(steps)
    return _build_history(rng, format, seed, steps, message_writer)


def user_texts_of(step: Step) -> list[str]:
    """The texts of the user that came with the results."""
    return [*([step.quoted] if step.quoted else []), *step.user_texts]


def _one_by_one(step: Step) -> list[Step]:
    """The calls one at a time, each followed by its output, as some clients of the Responses API write them."""
    if len(step.calls) < 2:
        return [step]
    first, *rest = (step.calls[index] for index in step.order)
    begin = replace(step, calls=(first,), order=(0,), quoted="")
    others = [Step("turn", calls=(call,), order=(0,)) for call in rest]
    return [begin, *others[:-1], replace(others[-1], quoted=step.quoted, is_answer=step.is_answer)]


class MessageWriter(ABC):
    """Writes steps as messages; the four APIs differ in what one step becomes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.client = rng.randrange(CLIENT_COUNT)
        self.messages: list[Message] = []
        self.step_indexes: list[int] = []
        self.results: list[list[tuple[int, Call]]] = []
        self.user_texts: list[list[str]] = []
        self.steps: Sequence[Step] = ()
        self.step = 0

    def write(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.begin()
        for self.step, step in enumerate(steps):
            match step.kind:
                case "say":
                    self.say(step)
                case "system":
                    self.system(step)
                case "turn":
                    self.turn(step)
                case "hosted":
                    self.hosted(step)
                case _:
                    self.unknown(step)

    def add(self, message: Message, *results: Call, user_texts: Sequence[str] = ()) -> None:
        self.messages.append(message)
        self.step_indexes.append(self.step)
        self.user_texts.append(list(user_texts))
        self.results.append([(self.step, call) for call in results])

    def text_of_result(self, call: Call) -> str:
        text = result_text(self.rng, self.client, call)
        step = self.steps[self.step]
        if step.quoted and call is step.calls[self.last_result_index(step)]:
            return step.quoted if step.is_answer else f"{text}\n\n{step.quoted}"
        if not isinstance(call.result, str) and self.rng.random() < 0.15:
            text += self.rng.choice(
                (
                    "\n\nBranch br_00000000000a is open: 1200 tokens.",
                    "\n<system-reminder>x</system-reminder>",
                    "\n[done]",
                )
            )
        return text

    def last_result_index(self, step: Step) -> int:
        return step.order[-1]

    @abstractmethod
    def say(self, step: Step) -> None: ...

    @abstractmethod
    def system(self, step: Step) -> None: ...

    @abstractmethod
    def turn(self, step: Step) -> None: ...

    @abstractmethod
    def unknown(self, step: Step) -> None: ...

    def begin(self) -> None:  # noqa: B027 - a default
        """Does nothing, because most APIs have no summaries of their own."""

    def hosted(self, step: Step) -> None:  # noqa: B027 - a default
        """Does nothing, because most APIs have no tools of their own."""


class Anthropic(MessageWriter):
    def begin(self) -> None:
        if self.rng.random() < 0.1:
            summary = {"type": "compaction", "content": "All went well.", "signature": f"{self.rng.getrandbits(64):x}="}
            self.add({"role": "assistant", "content": [summary]})

    def _last_role(self) -> str:
        return str(self.messages[-1]["role"]) if self.messages else ""

    def say(self, step: Step) -> None:
        blocks: list[Message] = [{"type": "text", "text": step.text}]
        if step.picture:
            source = {"type": "base64", "media_type": "image/png", "data": PNG}
            blocks.insert(0, {"type": "image", "source": source})
        # The API allows only the model's message after an instruction.
        if self._last_role() == "system":
            for values in (self.messages, self.step_indexes, self.results, self.user_texts):
                values.pop()
        if self._last_role() != "user":
            content = blocks if len(blocks) > 1 or self.rng.random() < 0.5 else step.text
            return self.add({"role": "user", "content": content}, user_texts=[step.text])
        self.user_texts[-1].append(step.text)
        before = self.messages[-1]["content"]
        self.messages[-1]["content"] = (
            [{"type": "text", "text": before}] if isinstance(before, str) else before
        ) + blocks
        return None

    def system(self, step: Step) -> None:
        if self._last_role() == "user":
            text = [{"type": "text", "text": step.text}] if self.rng.random() < 0.3 else step.text
            members: Message = {}
            if self.rng.random() < 0.3:
                members["clear_at"] = self.rng.choice(("next_user_message", "never"))
            elif not step.quoted and self.rng.random() < 0.2:
                text = [self._tool_change()]
            self.add({"role": "system", "content": text, **members}, user_texts=[step.quoted] if step.quoted else [])

    def _tool_change(self) -> Message:
        """Adds a tool in the middle of the conversation, or removes one of those that were added."""
        blocks = [block for message in self.messages if message["role"] == "system" for block in message["content"]]
        added = [block["tool"] for block in blocks if isinstance(block, dict) and block["type"] == "tool_addition"]
        if added and self.rng.random() < 0.5:
            name = self.rng.choice(added)["definition"]["name"]
            return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}
        definition = {"name": f"Inline{self.rng.getrandbits(32):x}", "input_schema": {"type": "object"}}
        return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}

    def turn(self, step: Step) -> None:
        blocks: list[Message] = []
        if self.rng.random() < 0.02:
            blocks.append({"type": "compaction", "content": f"So far: {step.text}"})
        for _ in range(step.thinks):
            signed = f"{self.rng.getrandbits(64):x}="
            redacted = self.rng.random() < 0.2
            thought = {"type": "thinking", "thinking": step.text, "signature": signed}
            blocks.append({"type": "redacted_thinking", "data": signed} if redacted else thought)
        if step.text:
            blocks.append({"type": "text", "text": step.text})
        on_server = step.finds_tools and self.rng.random() < 0.5
        if on_server:
            blocks += self._tool_search(step)
        for call in step.calls:
            blocks.append({"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name, "input": call.arguments})
        plain = len(blocks) == 1 and step.text and not step.calls and self.rng.random() < 0.5
        self.add({"role": "assistant", "content": step.text if plain else blocks})
        if step.calls:
            calls_in_order = [step.calls[index] for index in step.order]
            results = [self._result(call) for call in calls_in_order]
            if step.finds_tools and not on_server:
                results[0] |= {"content": [FOUND], "is_error": False}
            results += [{"type": "text", "text": text} for text in step.user_texts]
            if step.has_reminder:
                results.append({"type": "text", "text": REMINDER})
            self.add({"role": "user", "content": results}, *calls_in_order, user_texts=user_texts_of(step))

    def _tool_search(self, step: Step) -> list[Message]:
        """A search for tools that the provider runs itself."""
        call_id = f"srvtoolu_{self.rng.getrandbits(60):015x}"
        asked = {"name": "tool_search_tool_regex", "input": {"query": step.calls[0].arguments["q"]}}
        found = {"type": "tool_search_tool_search_result", "tool_references": [FOUND]}
        return [
            {"type": "server_tool_use", "id": call_id, **asked},
            {"type": "tool_search_tool_result", "tool_use_id": call_id, "content": found},
        ]

    def _result(self, call: Call) -> Message:
        text, rng = self.text_of_result(call), self.rng
        content: Any = text
        if call.picture or rng.random() < 0.6:
            content = [{"type": "text", "text": text}]
            if rng.random() < 0.1:
                content.append({"type": "text", "text": "You are in a branch; return when done."})
        if call.picture:
            source = {"type": "base64", "media_type": "image/png", "data": PNG}
            content.append({"type": "image", "source": source})
        block: Message = {"type": "tool_result", "tool_use_id": f"toolu_{call.id}", "content": content}
        if call.failed or rng.random() < 0.3:
            block["is_error"] = call.failed
        return block

    def unknown(self, step: Step) -> None:
        if self._last_role() == "assistant":
            return
        call_id = f"srvtoolu_{self.rng.getrandbits(60):015x}"
        blocks = [
            {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {"query": step.text}},
            {"type": "web_search_tool_result", "tool_use_id": call_id, "content": []},
            {"type": "text", "text": step.text},
        ]
        self.add({"role": "assistant", "content": blocks})
        self.add({"role": "user", "content": f"Go on: {step.text}"}, user_texts=[f"Go on: {step.text}"])


class Chat(MessageWriter):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        # Some servers number the calls of each turn from the beginning again.
        self.counts_calls = rng.random() < 0.2

    def say(self, step: Step) -> None:
        parts: list[Message] = [{"type": "text", "text": step.text}]
        if step.picture:
            parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}})
        content = parts if step.picture or self.rng.random() < 0.3 else step.text
        self.add({"role": "user", "content": content}, user_texts=[step.text])

    def system(self, step: Step) -> None:
        self.add({"role": self.rng.choice(("system", "developer")), "content": step.text})

    def turn(self, step: Step) -> None:
        message: Message = {"role": "assistant", "content": step.text or None}
        ids = {
            call.id: f"call_{number}" if self.counts_calls else f"call_{call.id}"
            for number, call in enumerate(step.calls)
        }
        if step.calls:
            message["tool_calls"] = [
                {
                    "id": ids[call.id],
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for call in step.calls
            ]
        self.add(message)
        for index in step.order:
            call = step.calls[index]
            text = self.text_of_result(call)
            content = [{"type": "text", "text": text}] if self.rng.random() < 0.2 else text
            user_texts = [step.quoted] if step.quoted and index == step.order[-1] else []
            self.add({"role": "tool", "tool_call_id": ids[call.id], "content": content}, call, user_texts=user_texts)

    def unknown(self, step: Step) -> None:
        called = {"name": "legacy", "arguments": json.dumps({"q": step.text})}
        self.add({"role": "assistant", "content": None, "function_call": called})
        self.add({"role": "function", "name": "legacy", "content": step.text})


class Responses(MessageWriter):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.namespaces: list[str] = []

    def begin(self) -> None:
        if self.rng.random() < 0.1:
            self.add({"type": "compaction", "encrypted_content": f"{self.rng.getrandbits(64):x}"})

    def say(self, step: Step) -> None:
        parts: list[Message] = [{"type": "input_text", "text": step.text}]
        if step.picture:
            parts.append({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"})
        self._message("user", parts if step.picture or self.rng.random() < 0.5 else step.text, user_texts=[step.text])

    def _message(self, role: str, content: Any, user_texts: Sequence[str] = ()) -> None:
        typed = {"type": "message"} if self.rng.random() < 0.5 else {}
        self.add({**typed, "role": role, "content": content}, user_texts=user_texts)

    def system(self, step: Step) -> None:
        self._message(self.rng.choice(("system", "developer")), step.text)

    def _think(self) -> None:
        secret = f"{self.rng.getrandbits(64):x}"
        self.add({"type": "reasoning", "id": f"rs_{secret}", "summary": [], "encrypted_content": secret})

    def turn(self, step: Step) -> None:
        if step.thinks:
            self._think()
        if step.text:
            self._message(
                "assistant", [{"type": "output_text", "text": step.text}] if self.rng.random() < 0.7 else step.text
            )
            if step.thinks > 1 and step.calls:
                self._think()
        # Codex's default model calls tools from scripts.
        in_scripts = {call.id for call in step.calls if re.match(r"\w+__\w+$", call.name) and self.rng.random() < 0.2}
        for call in step.calls:
            self.add(self._script(call) if call.id in in_scripts else self._function_call(call))
        if step.thinks and not step.text and not step.calls:
            self._message("assistant", "Done.")
        for index in step.order:
            call = step.calls[index]
            output: Any = self.text_of_result(call)
            if call.picture or self.rng.random() < 0.2:
                output = [{"type": "input_text", "text": output}]
            if call.picture:
                output.append({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"})
            user_texts = [step.quoted] if step.quoted and index == step.order[-1] else []
            kind = "custom_tool_call_output" if call.id in in_scripts else "function_call_output"
            item = {"type": kind, "call_id": f"call_{call.id}", "output": output}
            self.add(item, call, user_texts=user_texts)

    def _function_call(self, call: Call) -> Message:
        members: Message = {"id": f"fc_{call.id}"} if self.rng.random() < 0.5 else {}
        if self.namespaces and self.rng.random() < 0.3:
            members["namespace"] = self.rng.choice(self.namespaces)
        called = {"call_id": f"call_{call.id}", "name": call.name, "arguments": json.dumps(call.arguments)}
        return {"type": "function_call", **members, **called}

    def _script(self, call: Call) -> Message:
        script = f"text(await tools.{call.name}({json.dumps(call.arguments)}))"
        return {"type": "custom_tool_call", "call_id": f"call_{call.id}", "name": "exec", "input": script}

    def unknown(self, step: Step) -> None:
        self.add({"type": "item_reference", "id": f"msg_{self.rng.getrandbits(60):015x}"})

    def hosted(self, step: Step) -> None:
        if self.messages and "call_id" in self.messages[-1] and "output" not in self.messages[-1]:
            return
        item_id = f"{self.rng.getrandbits(60):015x}"
        if self.rng.random() < 0.25:
            self.namespaces.append(f"space{len(self.namespaces)}")
            loaded = [{"type": "namespace", "name": self.namespaces[-1], "description": "x", "tools": []}]
            if self.rng.random() < 0.3:
                self.add({"type": "additional_tools", "role": "developer", "tools": loaded})
                return
            search = {"call_id": f"call_{item_id}", "execution": "client", "status": "completed"}
            self.add({"type": "tool_search_call", **search, "arguments": {"query": step.text}})
            self.add({"type": "tool_search_output", **search, "tools": loaded})
            return
        if self.rng.random() < 0.4:
            kind = self.rng.choice(("web_search_call", "mcp_call", "code_interpreter_call", "file_search_call"))
            self.add({"type": kind, "id": f"h_{item_id}", "name": "search", "arguments": "{}", "output": step.text})
            return
        kind = self.rng.choice(("local_shell_call", "shell_call", "apply_patch_call", "computer_call"))
        self.add({"type": kind, "call_id": f"call_{item_id}", "action": {"command": step.text}})
        self.add({"type": f"{kind}_output", "call_id": f"call_{item_id}", "output": step.text})


class Gemini(MessageWriter):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.has_ids = rng.random() < 0.6
        self.signs = rng.random() < 0.5
        self.changes_model = rng.random() < 0.5

    def _last_role(self) -> str:
        return str(self.messages[-1]["role"]) if self.messages else ""

    def say(self, step: Step) -> None:
        parts: list[Message] = [{"text": step.text}]
        if step.picture:
            parts.append({"inlineData": {"mimeType": "image/png", "data": PNG}})
        if self._last_role() != "user":
            # Some models sign their calls and some do not, and a user may choose another for the next turn.
            self.signs = self.rng.random() < 0.5 if self.changes_model else self.signs
            return self.add({"role": "user", "parts": parts}, user_texts=[step.text])
        self.messages[-1]["parts"] += parts
        self.user_texts[-1].append(step.text)
        return None

    def system(self, step: Step) -> None:
        """Does nothing, because instructions are a member of their own."""

    def turn(self, step: Step) -> None:
        parts: list[Message] = []
        signed = {"thoughtSignature": f"{self.rng.getrandbits(64):x}"} if self.signs else {}
        if step.thinks > 1:
            parts.append({"text": "Hm.", "thought": True})
        if step.text:
            parts.append({"text": step.text})
        for call in step.calls:
            function_call = {"name": call.name, "args": call.arguments} | ({"id": call.id} if self.has_ids else {})
            parts.append({"functionCall": function_call, **signed})
            signed = {}
        if self._last_role() == "model":
            self.say(Step("say", "And?"))
        self.add({"role": "model", "parts": parts})
        if step.calls:
            # Without ids, calls of one tool are answered in the order in which they were made.
            calls_in_order = [step.calls[index] for index in (step.order if self.has_ids else sorted(step.order))]
            results: list[Message] = [self._response(call) for call in calls_in_order]
            results += [{"text": text} for text in step.user_texts]
            if step.has_reminder:
                results.append({"text": REMINDER})
            self.add({"role": "user", "parts": results}, *calls_in_order, user_texts=user_texts_of(step))

    def last_result_index(self, step: Step) -> int:
        return step.order[-1] if self.has_ids else max(step.order)

    def _response(self, call: Call) -> Message:
        text = self.text_of_result(call)
        response: Message = {self.rng.choice(("output", "result")): text}
        is_quoting = text.endswith("</system-reminder>")
        if not isinstance(call.result, str) and not call.failed and not is_quoting and self.rng.random() < 0.3:
            response = dict(call.result)
        if call.failed:
            response = {"error": text}
        id_member = {"id": call.id} if self.has_ids else {}
        return {"functionResponse": {"name": call.name, "response": response, **id_member}}

    def unknown(self, step: Step) -> None:
        if self._last_role() == "user":
            self.add({"role": "model", "parts": [{"toolCall": {"query": step.text}}]})
            self.add({"role": "user", "parts": [{"text": f"Go on: {step.text}"}]}, user_texts=[f"Go on: {step.text}"])


MESSAGE_WRITERS: dict[Format, type[MessageWriter]] = {
    "anthropic": Anthropic,
    "openai-chat": Chat,
    "openai-responses": Responses,
    "gemini": Gemini,
}


def _build_history(
    rng: random.Random, format: Format, seed: str, steps: Sequence[Step], message_writer: MessageWriter
) -> History:
    messages = message_writer.messages
    members = _members(rng, format, messages)
    names = list(members)
    rng.shuffle(names)
    split = rng.randint(0, len(names))
    style = rng.choice(("compact", "compact", "plain", "plain", "indented", "ascii", "wild"))
    writer = JsonWriter(rng, style)
    colon = writer.text(LIST[format]) + writer.gap(":")
    head = "{" + "".join(
        writer.text(name) + writer.gap(":") + writer.text(members[name]) + writer.gap(",") for name in names[:split]
    )
    tail = "".join(
        writer.gap(",") + writer.text(name) + writer.gap(":") + writer.text(members[name]) for name in names[split:]
    )
    return History(
        format,
        seed,
        steps,
        messages,
        message_writer.step_indexes,
        message_writer.results,
        message_writer.user_texts,
        (writer.gap("") + head + colon + writer.gap("[")).encode(),
        [writer.text(message).encode() for message in messages],
        [writer.gap(",").encode() for _ in messages],
        (writer.gap("]") + tail + "}" + writer.gap("")).encode(),
        members["model"],
        format == "anthropic" and MODELS[members["model"]] and members.get("thinking") != FORGIVING,
    )


def _members(rng: random.Random, format: Format, messages: Sequence[Message]) -> dict[str, Any]:
    """The other members of the request; some of them look like the list."""
    schema = {"type": "object", "properties": {"messages": {"type": "array"}, "input": {"type": "string"}}}
    members: dict[str, Any] = {"model": "m-1", "stream": rng.random() < 0.5, "metadata": {"user_id": "messages"}}
    if format != "anthropic":
        named: Message = {"name": "context_branch", "parameters": schema}
        chat = {"type": "function", "function": named}
        if format == "gemini":
            members["tools"] = [{"functionDeclarations": [named]}]
        else:
            members["tools"] = [chat if format == "openai-chat" else {"type": "function", **named}]
        members["unknown_member"] = {"messages": [{"role": "user"}], "input": []}
        return members
    members["model"] = rng.choice(("m-1", *MODELS))
    if rng.random() < 0.5:
        members["thinking"] = rng.choice(({"type": "adaptive"}, FORGIVING))
    if rng.random() < 0.2:
        members["thread"] = {"type": "create"}
    if rng.random() < 0.2:
        edits = [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919", "clear_tool_inputs": True}]
        members["context_management"] = {"edits": edits[rng.randrange(2) :]}
    members |= {"max_tokens": rng.choice((0, 4096, 4096)), "system": [{"type": "text", "text": "Be brief."}]}
    deferred = {"name": FOUND["tool_name"], "input_schema": schema, "defer_loading": True}
    members["tools"] = [{"name": "Bash", "input_schema": schema}, deferred]
    if rng.random() < 0.5:
        mark = {"cache_control": {"type": "ephemeral"}}
        members["system"][0] |= mark
        members["tools"][0] |= mark
        for message in rng.sample(list(messages), min(2, len(messages))):
            block = message["content"][-1]
            if isinstance(block, dict) and "thinking" not in block["type"]:
                block |= mark
    return members


class JsonWriter:
    """Writes JSON in one of several styles, all of which are valid."""

    def __init__(self, rng: random.Random, style: str) -> None:
        self._rng, self._style = rng, style

    def text(self, value: Any) -> str:
        match self._style:
            case "compact":
                return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            case "plain":
                return json.dumps(value, ensure_ascii=False)
            case "indented":
                return json.dumps(value, ensure_ascii=False, indent=2)
            case "ascii":
                return json.dumps(value)
        return self._irregular(value)

    def gap(self, sign: str) -> str:
        match self._style:
            case "compact":
                return sign
            case "indented":
                return f"{sign}\n  "
            case "wild":
                return self._space() + sign + self._space()
        return f"{sign} "

    def _space(self) -> str:
        return self._rng.choice(("", "", " ", "\n", "\t", "\r\n  "))

    def _irregular(self, value: Any) -> str:
        if isinstance(value, dict):
            members = (
                f"{self._irregular(name)}{self.gap(':')}{self._irregular(member)}" for name, member in value.items()
            )
            return "{" + self._space() + self.gap(",").join(members) + self._space() + "}"
        if isinstance(value, list):
            return "[" + self._space() + self.gap(",").join(map(self._irregular, value)) + self._space() + "]"
        return self._string(value) if isinstance(value, str) else json.dumps(value)

    def _string(self, value: str) -> str:
        """Writes some characters as escapes that are not necessary, also in names of tools and members."""
        rng, parts, begin = self._rng, [], 0
        for index in sorted(rng.choices(range(len(value) + 1), k=rng.randint(0, 3))):
            if begin <= index < len(value) and value[index].isascii():
                parts += [json.dumps(value[begin:index])[1:-1], f"\\u{ord(value[index]):04X}"]
                begin = index + 1
        rest = json.dumps(value[begin:], ensure_ascii=rng.random() < 0.5)[1:-1]
        return '"' + "".join((*parts, rest.replace("/", "\\/"))) + '"'
