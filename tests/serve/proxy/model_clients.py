"""Conversations in the format of each API, and the providers' Python clients that send them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tests.support.upstream import MODEL
from tests.support.upstream_answers import Call, Say

# Every worker of pytest imports this module, and these packages take seconds.
if TYPE_CHECKING:
    import anthropic
    import openai

APIS = ("anthropic", "openai-chat", "openai-responses")
KEY = "sk-local-0123456789"
MAX_TOKENS = 256
TOOLS = ("context_branch", "context_return", "read_file")


def package_of(api: str) -> ModuleType:
    """The provider's Python package."""
    return importlib.import_module("anthropic" if api == "anthropic" else "openai")


def tools(api: str, names: Sequence[str] = TOOLS) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {}}
    match api:
        case "anthropic":
            return [{"name": name, "description": name, "input_schema": schema} for name in names]
        case "openai-chat":
            return [{"type": "function", "function": {"name": name, "parameters": schema}} for name in names]
    return [{"type": "function", "name": name, "parameters": schema, "strict": False} for name in names]


class Conversation:
    """The messages so far, in the format of the API."""

    def __init__(self, api: str) -> None:
        self.api = api
        self.messages: list[dict[str, Any]] = []
        # These members are added to the request body, or replace the default ones.
        self.extra: dict[str, Any] = {}

    def user(self, text: str) -> Conversation:
        self.messages.append({"role": "user", "content": text})
        return self

    def assistant(self, say: Say) -> Conversation:
        match self.api:
            case "anthropic":
                thoughts = [{"type": "thinking", "thinking": say.thought, "signature": say.signature}]
                texts = [{"type": "text", "text": say.text}] if say.text else []
                calls = [
                    {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
                    for call in say.calls
                ]
                self.messages.append({"role": "assistant", "content": [*thoughts[: bool(say.thought)], *texts, *calls]})
            case "openai-chat":
                message: dict[str, Any] = {"role": "assistant", "content": say.text or None}
                if say.calls:
                    message["tool_calls"] = [_function(call) for call in say.calls]
                self.messages.append(message)
            case _:
                if say.text:
                    self.messages.append({"role": "assistant", "content": say.text})
                for call in say.calls:
                    item = {"type": "function_call", "call_id": call.id, "name": call.name}
                    self.messages.append({**item, "arguments": json.dumps(call.arguments)})
        return self

    def results(self, results: Mapping[str, str]) -> Conversation:
        """Adds the result of each call, by the call's id."""
        match self.api:
            case "anthropic":
                blocks = [{"type": "tool_result", "tool_use_id": id_, "content": text} for id_, text in results.items()]
                self.messages.append({"role": "user", "content": blocks})
            case "openai-chat":
                for id_, text in results.items():
                    self.messages.append({"role": "tool", "tool_call_id": id_, "content": text})
            case _:
                for id_, text in results.items():
                    self.messages.append({"type": "function_call_output", "call_id": id_, "output": text})
        return self

    def body(self) -> dict[str, Any]:
        common: dict[str, Any] = {"model": MODEL, "tools": tools(self.api), **self.extra}
        match self.api:
            case "anthropic":
                return {**common, "max_tokens": MAX_TOKENS, "messages": self.messages}
            case "openai-chat":
                return {**common, "messages": self.messages}
        return {**common, "input": self.messages}


def _function(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}


def folded_conversation(api: str, *, work: int = 3) -> Conversation:
    """A conversation with a branch that has some work in it and is closed, followed by one more question."""
    conversation = Conversation(api).user("Why do logins fail?")
    conversation.assistant(
        Say("I look.", (Call("c_branch", "context_branch", {"description": "look", "prompt": "look"}),))
    )
    conversation.results({"c_branch": json.dumps({"branch_id": "br_0123456789abcdef", "session_id": "s"})})
    for number in range(work):
        conversation.assistant(Say(f"Page {number}.", (Call(f"c_{number}", "read_file", {"page": number}),)))
        conversation.results({f"c_{number}": f"WORK {number} " * 200})
    conversation.assistant(Say("Found.", (Call("c_return", "context_return", {"message": "Tokens expire."}),)))
    conversation.results(
        {"c_return": json.dumps({"branch_id": "br_0123456789abcdef", "summary": {"message": "Tokens expire."}})}
    )
    conversation.assistant(Say("Tokens expire."))
    return conversation.user("And how is that mended?")


class Model:
    """Calls one API with the provider's own client, and converts its answers to `Say`."""

    def __init__(self, api: str, url: str, *, key: str = KEY, headers: Mapping[str, str] | None = None) -> None:
        self.api = api
        self._url = url
        self._client_options: dict[str, Any] = {
            "api_key": key,
            "max_retries": 0,
            "default_headers": dict(headers or {}),
        }
        # This is the fold receipt from the last response's header.
        self.fold: dict[str, Any] = {}

    def ask(self, conversation: Conversation, *, streams: bool = False) -> Say:
        body = conversation.body()
        match self.api:
            case "anthropic":
                return self._ask_anthropic(body, streams=streams)
            case "openai-chat":
                return self._ask_chat(body, streams=streams)
        return self._ask_responses(body, streams=streams)

    def begin(self, conversation: Conversation) -> Any:
        """Sends the same request as a stream, and returns its events as they arrive."""
        body = {**conversation.body(), "stream": True}
        match self.api:
            case "anthropic":
                return self._anthropic.messages.create(**body)
            case "openai-chat":
                return self._openai.chat.completions.create(**body)
        return self._openai.responses.create(**body)

    def retry(self, times: int) -> None:
        self._client_options["max_retries"] = times

    def close(self) -> None:
        (self._anthropic if self.api == "anthropic" else self._openai).close()

    @cached_property
    def _anthropic(self) -> anthropic.Anthropic:
        import anthropic

        return anthropic.Anthropic(base_url=f"{self._url}/proxy/anthropic", **self._client_options)

    @cached_property
    def _openai(self) -> openai.OpenAI:
        import openai

        return openai.OpenAI(base_url=f"{self._url}/proxy/openai/v1", **self._client_options)

    def _read_receipt(self, headers: Any) -> None:
        self.fold = json.loads(headers["x-context-fold"])

    def _ask_anthropic(self, body: dict[str, Any], *, streams: bool) -> Say:
        if streams:
            with self._anthropic.messages.stream(**body) as stream:
                message = stream.get_final_message()
                self._read_receipt(stream.response.headers)
        else:
            raw = self._anthropic.messages.with_raw_response.create(**body)
            self._read_receipt(raw.headers)
            message = raw.parse()
        text = "".join(block.text for block in message.content if block.type == "text")
        thoughts = [(block.thinking, block.signature) for block in message.content if block.type == "thinking"]
        calls = [Call(block.id, block.name, dict(block.input)) for block in message.content if block.type == "tool_use"]
        return Say(text, tuple(calls), *(thoughts[0] if thoughts else ()))

    def _ask_chat(self, body: dict[str, Any], *, streams: bool) -> Say:
        if streams:
            with self._openai.chat.completions.stream(**body, stream_options={"include_usage": True}) as stream:
                completion = stream.get_final_completion()
                self._read_receipt(stream._response.headers)
        else:
            raw = self._openai.chat.completions.with_raw_response.create(**body)
            self._read_receipt(raw.headers)
            completion = raw.parse()
        message = completion.choices[0].message
        calls = [
            Call(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()
        ]
        return Say(message.content or "", tuple(calls))

    def _ask_responses(self, body: dict[str, Any], *, streams: bool) -> Say:
        if streams:
            with self._openai.responses.stream(**body) as stream:
                response = stream.get_final_response()
                self._read_receipt(stream._response.headers)
        else:
            raw = self._openai.responses.with_raw_response.create(**body)
            self._read_receipt(raw.headers)
            response = raw.parse()
        calls = [
            Call(item.call_id, item.name, json.loads(item.arguments))
            for item in response.output
            if item.type == "function_call"
        ]
        return Say(response.output_text, tuple(calls))
