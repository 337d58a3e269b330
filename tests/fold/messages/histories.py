"""Generated histories: a script written in the format of one of the four APIs, as messages and as bytes of a request.

All of it comes from a seed, so a failure is replayed with `history(format, seed)`. The beginning of a history does not
depend on how far it is read: `body(n)` is the request as it was when there were n messages.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from tests.fold.messages.scripts import CLIENTS, REMINDER, Call, Step, Writer, spoken, truncated

Format = Literal["anthropic", "openai-chat", "openai-responses", "gemini"]
FORMATS: tuple[Format, ...] = get_args(Format)
LIST: dict[Format, str] = {
    "anthropic": "messages",
    "openai-chat": "messages",
    "openai-responses": "input",
    "gemini": "contents",
}
# Whether Anthropic's model takes a thinking block only behind the very messages it was made behind.
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

FORGIVING = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    format: Format
    seed: str
    steps: Sequence[Step]
    messages: Sequence[Message]
    # For each message, this is the step that it belongs to.
    owners: Sequence[int]
    # For each message, these are its results, each with the step of its call.
    answers: Sequence[Sequence[tuple[int, Call]]]
    # For each message, these are the words of the user in it.
    words: Sequence[Sequence[str]]
    head: bytes
    texts: Sequence[bytes]
    # A gap is the text between a message and the next.
    gaps: Sequence[bytes]
    tail: bytes
    model: str
    binds_thinking: bool

    def body(self, count: int | None = None) -> bytes:
        return self.body_of(range(len(self.texts) if count is None else count))

    def body_of(self, places: Sequence[int]) -> bytes:
        """The request with only these messages; the gap after a message stays with it."""
        parts = [self.head]
        for number, place in enumerate(places):
            parts.append(self.texts[place])
            if number + 1 < len(places):
                parts.append(self.gaps[place])
        return b"".join((*parts, self.tail))

    def __str__(self) -> str:
        return f"{self.format} {self.seed!r} (messages.histories.history({self.format!r}, {self.seed!r}))"


def history(format: Format, seed: str, *, odd: float | None = None) -> History:
    dice = random.Random(f"{format} {seed}")
    writer = Writer(dice, odd=dice.choice((0, 0, 0.15, 0.4)) if odd is None else odd)
    steps = writer.write()
    if dice.random() < 0.15:
        steps = truncated(dice, steps)
    if format == "openai-responses" and dice.random() < 0.2:
        steps = [part for step in steps for part in _one_by_one(step)]
    teller = TELLERS[format](dice)
    teller.tell(steps)
    return _written(dice, format, seed, steps, teller)


def heard(step: Step) -> list[str]:
    """The words of the user that came with the results."""
    return [*([step.quoted] if step.quoted else []), *step.beside]


def _one_by_one(step: Step) -> list[Step]:
    """The calls one at a time, each followed by its output, as some clients of the Responses API write them."""
    if len(step.calls) < 2:
        return [step]
    first, *rest = (step.calls[place] for place in step.order)
    begin = replace(step, calls=(first,), order=(0,), quoted="")
    others = [Step("turn", calls=(call,), order=(0,)) for call in rest]
    return [begin, *others[:-1], replace(others[-1], quoted=step.quoted)]


class Teller(ABC):
    """Writes steps as messages; the four APIs differ in what one step becomes."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.client = dice.randrange(CLIENTS)
        self.messages: list[Message] = []
        self.owners: list[int] = []
        self.answers: list[list[tuple[int, Call]]] = []
        self.words: list[list[str]] = []
        self.steps: Sequence[Step] = ()
        self.step = 0

    def tell(self, steps: Sequence[Step]) -> None:
        self.steps = steps
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
                    self.strange(step)

    def add(self, message: Message, *answers: Call, words: Sequence[str] = ()) -> None:
        self.messages.append(message)
        self.owners.append(self.step)
        self.words.append(list(words))
        self.answers.append([(self.step, call) for call in answers])

    def result(self, call: Call) -> str:
        text = spoken(self.dice, self.client, call)
        step = self.steps[self.step]
        if step.quoted and call is step.calls[self.last_answered(step)]:
            return f"{text}\n\n{step.quoted}"
        if not isinstance(call.answer, str) and self.dice.random() < 0.15:
            text += self.dice.choice(
                (
                    "\n\nBranch br_00000000000a is open: 1200 tokens.",
                    "\n<system-reminder>x</system-reminder>",
                    "\n[done]",
                )
            )
        return text

    def last_answered(self, step: Step) -> int:
        return step.order[-1]

    @abstractmethod
    def say(self, step: Step) -> None: ...

    @abstractmethod
    def system(self, step: Step) -> None: ...

    @abstractmethod
    def turn(self, step: Step) -> None: ...

    @abstractmethod
    def strange(self, step: Step) -> None: ...

    def hosted(self, step: Step) -> None:  # noqa: B027 - a default
        """Does nothing, because most APIs have no tools of their own."""


class Anthropic(Teller):
    def _last(self) -> str:
        return str(self.messages[-1]["role"]) if self.messages else ""

    def say(self, step: Step) -> None:
        blocks: list[Message] = [{"type": "text", "text": step.text}]
        if step.picture:
            source = {"type": "base64", "media_type": "image/png", "data": PNG}
            blocks.insert(0, {"type": "image", "source": source})
        # The API allows only the model's message after an instruction.
        if self._last() == "system":
            for told in (self.messages, self.owners, self.answers, self.words):
                told.pop()
        if self._last() != "user":
            content = blocks if len(blocks) > 1 or self.dice.random() < 0.5 else step.text
            return self.add({"role": "user", "content": content}, words=[step.text])
        self.words[-1].append(step.text)
        before = self.messages[-1]["content"]
        self.messages[-1]["content"] = (
            [{"type": "text", "text": before}] if isinstance(before, str) else before
        ) + blocks
        return None

    def system(self, step: Step) -> None:
        if self._last() == "user":
            text = [{"type": "text", "text": step.text}] if self.dice.random() < 0.3 else step.text
            self.add({"role": "system", "content": text}, words=[step.quoted] if step.quoted else [])

    def turn(self, step: Step) -> None:
        blocks: list[Message] = []
        for _ in range(step.thinks):
            signed = f"{self.dice.getrandbits(64):x}="
            redacted = self.dice.random() < 0.2
            thought = {"type": "thinking", "thinking": step.text, "signature": signed}
            blocks.append({"type": "redacted_thinking", "data": signed} if redacted else thought)
        if step.text:
            blocks.append({"type": "text", "text": step.text})
        for call in step.calls:
            blocks.append({"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name, "input": call.arguments})
        plain = len(blocks) == 1 and not step.calls and self.dice.random() < 0.5
        self.add({"role": "assistant", "content": step.text if plain else blocks})
        if step.calls:
            answered = [step.calls[place] for place in step.order]
            results = [self._result(call) for call in answered]
            results += [{"type": "text", "text": text} for text in step.beside]
            if step.reminded:
                results.append({"type": "text", "text": REMINDER})
            self.add({"role": "user", "content": results}, *answered, words=heard(step))

    def _result(self, call: Call) -> Message:
        text, dice = self.result(call), self.dice
        content: Any = text
        if call.picture or dice.random() < 0.6:
            content = [{"type": "text", "text": text}]
            if dice.random() < 0.1:
                content.append({"type": "text", "text": "You are in a branch; return when done."})
        if call.picture:
            source = {"type": "base64", "media_type": "image/png", "data": PNG}
            content.append({"type": "image", "source": source})
        told: Message = {"type": "tool_result", "tool_use_id": f"toolu_{call.id}", "content": content}
        if call.failed or dice.random() < 0.3:
            told["is_error"] = call.failed
        return told

    def strange(self, step: Step) -> None:
        if self._last() == "assistant":
            return
        asked = f"srvtoolu_{self.dice.getrandbits(60):015x}"
        blocks = [
            {"type": "server_tool_use", "id": asked, "name": "web_search", "input": {"query": step.text}},
            {"type": "web_search_tool_result", "tool_use_id": asked, "content": []},
            {"type": "text", "text": step.text},
        ]
        self.add({"role": "assistant", "content": blocks})
        self.add({"role": "user", "content": f"Go on: {step.text}"}, words=[f"Go on: {step.text}"])


class Chat(Teller):
    def __init__(self, dice: random.Random) -> None:
        super().__init__(dice)
        # Some servers number the calls of each turn from the beginning again.
        self.counts_calls = dice.random() < 0.2

    def say(self, step: Step) -> None:
        parts: list[Message] = [{"type": "text", "text": step.text}]
        if step.picture:
            parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}})
        content = parts if step.picture or self.dice.random() < 0.3 else step.text
        self.add({"role": "user", "content": content}, words=[step.text])

    def system(self, step: Step) -> None:
        self.add({"role": self.dice.choice(("system", "developer")), "content": step.text})

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
        for place in step.order:
            call = step.calls[place]
            text = self.result(call)
            content = [{"type": "text", "text": text}] if self.dice.random() < 0.2 else text
            words = [step.quoted] if step.quoted and place == step.order[-1] else []
            self.add({"role": "tool", "tool_call_id": ids[call.id], "content": content}, call, words=words)

    def strange(self, step: Step) -> None:
        called = {"name": "legacy", "arguments": json.dumps({"q": step.text})}
        self.add({"role": "assistant", "content": None, "function_call": called})
        self.add({"role": "function", "name": "legacy", "content": step.text})


class Responses(Teller):
    def say(self, step: Step) -> None:
        parts: list[Message] = [{"type": "input_text", "text": step.text}]
        if step.picture:
            parts.append({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"})
        self._message("user", parts if step.picture or self.dice.random() < 0.5 else step.text, words=[step.text])

    def _message(self, role: str, content: Any, words: Sequence[str] = ()) -> None:
        typed = {"type": "message"} if self.dice.random() < 0.5 else {}
        self.add({**typed, "role": role, "content": content}, words=words)

    def system(self, step: Step) -> None:
        self._message(self.dice.choice(("system", "developer")), step.text)

    def _think(self) -> None:
        secret = f"{self.dice.getrandbits(64):x}"
        self.add({"type": "reasoning", "id": f"rs_{secret}", "summary": [], "encrypted_content": secret})

    def turn(self, step: Step) -> None:
        if step.thinks:
            self._think()
        if step.text:
            self._message(
                "assistant", [{"type": "output_text", "text": step.text}] if self.dice.random() < 0.7 else step.text
            )
            if step.thinks > 1 and step.calls:
                self._think()
        for call in step.calls:
            named = {"id": f"fc_{call.id}"} if self.dice.random() < 0.5 else {}
            asked = {"call_id": f"call_{call.id}", "name": call.name, "arguments": json.dumps(call.arguments)}
            self.add({"type": "function_call", **named, **asked})
        if step.thinks and not step.text and not step.calls:
            self._message("assistant", "Done.")
        for place in step.order:
            call = step.calls[place]
            output: Any = self.result(call)
            if call.picture or self.dice.random() < 0.2:
                output = [{"type": "input_text", "text": output}]
            if call.picture:
                output.append({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"})
            words = [step.quoted] if step.quoted and place == step.order[-1] else []
            item = {"type": "function_call_output", "call_id": f"call_{call.id}", "output": output}
            self.add(item, call, words=words)

    def strange(self, step: Step) -> None:
        self.add({"type": "item_reference", "id": f"msg_{self.dice.getrandbits(60):015x}"})

    def hosted(self, step: Step) -> None:
        if self.messages and "call_id" in self.messages[-1] and "output" not in self.messages[-1]:
            return
        named = f"{self.dice.getrandbits(60):015x}"
        if self.dice.random() < 0.4:
            kind = self.dice.choice(("web_search_call", "mcp_call", "code_interpreter_call", "file_search_call"))
            self.add({"type": kind, "id": f"h_{named}", "name": "search", "arguments": "{}", "output": step.text})
            return
        kind = self.dice.choice(("local_shell_call", "shell_call", "apply_patch_call", "computer_call"))
        self.add({"type": kind, "call_id": f"call_{named}", "action": {"command": step.text}})
        self.add({"type": f"{kind}_output", "call_id": f"call_{named}", "output": step.text})


class Gemini(Teller):
    def __init__(self, dice: random.Random) -> None:
        super().__init__(dice)
        self.has_ids = dice.random() < 0.6
        self.signs = dice.random() < 0.5

    def _last(self) -> str:
        return str(self.messages[-1]["role"]) if self.messages else ""

    def say(self, step: Step) -> None:
        parts: list[Message] = [{"text": step.text}]
        if step.picture:
            parts.append({"inlineData": {"mimeType": "image/png", "data": PNG}})
        if self._last() != "user":
            return self.add({"role": "user", "parts": parts}, words=[step.text])
        self.messages[-1]["parts"] += parts
        self.words[-1].append(step.text)
        return None

    def system(self, step: Step) -> None:
        """Does nothing, because instructions are a member of their own."""

    def turn(self, step: Step) -> None:
        parts: list[Message] = []
        signed = {"thoughtSignature": f"{self.dice.getrandbits(64):x}"} if self.signs else {}
        if step.thinks > 1:
            parts.append({"text": "Hm.", "thought": True})
        if step.text:
            parts.append({"text": step.text})
        for call in step.calls:
            asked = {"name": call.name, "args": call.arguments} | ({"id": call.id} if self.has_ids else {})
            parts.append({"functionCall": asked, **signed})
            signed = {}
        if self._last() == "model":
            self.say(Step("say", "And?"))
        self.add({"role": "model", "parts": parts})
        if step.calls:
            # Without ids, calls of one tool are answered in the order in which they were made.
            answered = [step.calls[place] for place in (step.order if self.has_ids else sorted(step.order))]
            results: list[Message] = [self._response(call) for call in answered]
            results += [{"text": text} for text in step.beside]
            if step.reminded:
                results.append({"text": REMINDER})
            self.add({"role": "user", "parts": results}, *answered, words=heard(step))

    def last_answered(self, step: Step) -> int:
        return step.order[-1] if self.has_ids else max(step.order)

    def _response(self, call: Call) -> Message:
        text = self.result(call)
        response: Message = {self.dice.choice(("output", "result")): text}
        is_quoting = text.endswith("</system-reminder>")
        if not isinstance(call.answer, str) and not call.failed and not is_quoting and self.dice.random() < 0.3:
            response = dict(call.answer)
        if call.failed:
            response = {"error": text}
        named = {"id": call.id} if self.has_ids else {}
        return {"functionResponse": {"name": call.name, "response": response, **named}}

    def strange(self, step: Step) -> None:
        if self._last() == "user":
            self.add({"role": "model", "parts": [{"toolCall": {"query": step.text}}]})
            self.add({"role": "user", "parts": [{"text": f"Go on: {step.text}"}]}, words=[f"Go on: {step.text}"])


TELLERS: dict[Format, type[Teller]] = {
    "anthropic": Anthropic,
    "openai-chat": Chat,
    "openai-responses": Responses,
    "gemini": Gemini,
}


def _written(dice: random.Random, format: Format, seed: str, steps: Sequence[Step], teller: Teller) -> History:
    messages = teller.messages
    members = _members(dice, format, messages)
    names = list(members)
    dice.shuffle(names)
    cut = dice.randint(0, len(names))
    style = dice.choice(("compact", "compact", "plain", "plain", "indented", "ascii", "wild"))
    write = Pen(dice, style)
    colon = write.text(LIST[format]) + write.gap(":")
    head = "{" + "".join(
        write.text(one) + write.gap(":") + write.text(members[one]) + write.gap(",") for one in names[:cut]
    )
    tail = "".join(write.gap(",") + write.text(one) + write.gap(":") + write.text(members[one]) for one in names[cut:])
    return History(
        format,
        seed,
        steps,
        messages,
        teller.owners,
        teller.answers,
        teller.words,
        (write.gap("") + head + colon + write.gap("[")).encode(),
        [write.text(message).encode() for message in messages],
        [write.gap(",").encode() for _ in messages],
        (write.gap("]") + tail + "}" + write.gap("")).encode(),
        members["model"],
        format == "anthropic" and MODELS[members["model"]] and members.get("thinking") != FORGIVING,
    )


def _members(dice: random.Random, format: Format, messages: Sequence[Message]) -> dict[str, Any]:
    """The other members of the request; some of them look like the list."""
    schema = {"type": "object", "properties": {"messages": {"type": "array"}, "input": {"type": "string"}}}
    members: dict[str, Any] = {"model": "m-1", "stream": dice.random() < 0.5, "metadata": {"user_id": "messages"}}
    if format != "anthropic":
        named: Message = {"name": "context_branch", "parameters": schema}
        chat = {"type": "function", "function": named}
        if format == "gemini":
            members["tools"] = [{"functionDeclarations": [named]}]
        else:
            members["tools"] = [chat if format == "openai-chat" else {"type": "function", **named}]
        members["unknown_member"] = {"messages": [{"role": "user"}], "input": []}
        return members
    members["model"] = dice.choice(("m-1", *MODELS))
    if dice.random() < 0.5:
        members["thinking"] = dice.choice(({"type": "adaptive"}, FORGIVING))
    members |= {"max_tokens": 4096, "system": [{"type": "text", "text": "Be brief."}]}
    members["tools"] = [{"name": "Bash", "input_schema": schema}]
    if dice.random() < 0.5:
        mark = {"cache_control": {"type": "ephemeral"}}
        members["system"][0] |= mark
        members["tools"][0] |= mark
        for message in dice.sample(list(messages), min(2, len(messages))):
            block = message["content"][-1]
            if isinstance(block, dict) and "thinking" not in block["type"]:
                block |= mark
    return members


class Pen:
    """Writes JSON in one of several styles, all of which are valid."""

    def __init__(self, dice: random.Random, style: str) -> None:
        self._dice, self._style = dice, style

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
        return self._wild(value)

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
        return self._dice.choice(("", "", " ", "\n", "\t", "\r\n  "))

    def _wild(self, value: Any) -> str:
        if isinstance(value, dict):
            told = (f"{self._wild(name)}{self.gap(':')}{self._wild(member)}" for name, member in value.items())
            return "{" + self._space() + self.gap(",").join(told) + self._space() + "}"
        if isinstance(value, list):
            return "[" + self._space() + self.gap(",").join(map(self._wild, value)) + self._space() + "]"
        return self._string(value) if isinstance(value, str) else json.dumps(value)

    def _string(self, value: str) -> str:
        """Writes some characters as escapes that are not necessary, also in names of tools and members."""
        dice, parts, begin = self._dice, [], 0
        for place in sorted(dice.choices(range(len(value) + 1), k=dice.randint(0, 3))):
            if begin <= place < len(value) and value[place].isascii():
                parts += [json.dumps(value[begin:place])[1:-1], f"\\u{ord(value[place]):04X}"]
                begin = place + 1
        rest = json.dumps(value[begin:], ensure_ascii=dice.random() < 0.5)[1:-1]
        return '"' + "".join((*parts, rest.replace("/", "\\/"))) + '"'
