"""Reads transcripts of Codex: `sessions/YEAR/MONTH/DAY/rollout-….jsonl`.

A line has a type and a payload: `session_meta` begins the file, `turn_context` names the model, `response_item` is an
item of the history, `compacted` replaces the history, and an `event_msg` of type `token_count` has the usage of the
request that was answered just before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from contextfold.audit.conversation import Conversation, Message, RecordedRequest, RecordedUsage
from contextfold.audit.transcripts import (
    CODEX,
    Skipped,
    count_in,
    object_in,
    text_in,
    time_in,
)

# Items that the model wrote: they come after its request and are in the history of the next one.
_BY_MODEL = ("reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call")


def read_codex(
    lines: Iterable[Mapping[str, Any]], name: str, seen: set[int], skipped: Skipped
) -> Iterator[tuple[Conversation, RecordedRequest]]:
    """The requests of a transcript with their conversation, in order. `seen` has the hashes of requests in others."""
    conversation: Conversation | None = None
    reader = _RolloutReader(seen)
    for line in lines:
        payload, kind = object_in(line, "payload"), line.get("type")
        if kind == "session_meta" and conversation is None:
            conversation = _conversation_of(payload, name)
            reader.begin(payload)
        elif kind == "session_meta":
            # Forks of some versions begin with the lines of their parent.
            reader.may_repeat = True
        elif kind == "turn_context":
            reader.model = text_in(payload, "model") or reader.model
        elif kind == "response_item":
            reader.add(payload)
        elif kind == "compacted":
            reader.compact(payload)
        elif kind == "event_msg" and payload.get("type") == "token_count":
            request = reader.answer(object_in(payload, "info"), time_in(line))
            if request and request.at:
                yield conversation or _conversation_of({}, name), request
            else:
                skipped.requests_without_usage += request is not None
        reader.last_at = time_in(line) or reader.last_at


def _conversation_of(meta: Mapping[str, Any], name: str) -> Conversation:
    is_subagent = "subagent" in str(meta.get("source"))
    return Conversation(CODEX, "openai-responses", text_in(meta, "id") or name, text_in(meta, "cwd"), is_subagent)


class _RolloutReader:
    def __init__(self, seen: set[int]) -> None:
        self._seen = seen
        # Whether the file may begin with usage that another file has: in a fork, or in a copy of a file.
        self.may_repeat = False
        self.model = ""
        self.version = ""
        self.last_at = 0.0
        self._history: list[Message] = []
        # The items that the model wrote since the last request, which are not in that request's history.
        self._response: list[Message] = []
        self._sent_at: float | None = None
        self._unchanged = 0
        self._compacted = False
        self._total: Mapping[str, Any] = {}
        # The counts of the request before.
        self._before: tuple[int, ...] = ()

    def begin(self, meta: Mapping[str, Any]) -> None:
        self.version = text_in(meta, "cli_version")
        session = hash(text_in(meta, "id"))
        self.may_repeat = bool(meta.get("forked_from_id")) or session in self._seen
        self._seen.add(session)

    def add(self, item: Mapping[str, Any]) -> None:
        by_model = item.get("type") in _BY_MODEL or item.get("role") == "assistant"
        if by_model:
            if not self._response:
                self._sent_at = self.last_at
            self._response.append(dict(item))
        else:
            self._history += [*self._response, dict(item)]
            self._response = []

    def compact(self, payload: Mapping[str, Any]) -> None:
        replacement = payload.get("replacement_history")
        summary = [{"type": "message", "role": "user", "content": text_in(payload, "message")}]
        items = replacement if isinstance(replacement, list) else summary
        self._history = [dict(item) for item in items if isinstance(item, dict)]
        self._response, self._unchanged, self._compacted = [], 0, True

    def answer(self, info: Mapping[str, Any], at: float | None) -> RecordedRequest | None:
        """The request that this usage is of; None if it repeats the one before."""
        total = object_in(info, "total_token_usage")
        if not info or (total and total == self._total):
            return None
        self._total = total
        last = object_in(info, "last_token_usage") or total
        prompt = count_in(last, "input_tokens")
        cached = min(prompt, count_in(last, "cached_input_tokens"))
        # Newer models charge for what they write to the cache. Its life is not Anthropic's, but the price is one price.
        written = min(prompt - cached, count_in(last, "cache_write_input_tokens"))
        usage = RecordedUsage(prompt - cached - written, cached, written, 0, count_in(last, "output_tokens"))
        if not usage.prompt:
            return None
        request = RecordedRequest(
            self._sent_at or at or self.last_at,
            at or self.last_at,
            self.model,
            usage,
            tuple(self._history),
            self._unchanged,
            self._compacted,
            self.version,
            is_copy=self._is_copy((count_in(total, "total_tokens"), *usage)),
        )
        self._unchanged, self._compacted, self._sent_at = len(self._history), False, None
        self._history += self._response
        self._response = []
        return request

    def _is_copy(self, counts: tuple[int, ...]) -> bool:
        """Whether another file has this usage behind the same one. Times say nothing: some copies have new ones."""
        here = hash((self._before, counts)) if self._before else hash(counts)
        self.may_repeat = self.may_repeat and here in self._seen
        # A copy may begin later than the original.
        self._seen.update((here, hash(counts)))
        self._before = counts
        return self.may_repeat
