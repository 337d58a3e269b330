"""Reads transcripts of Claude Code: `projects/PROJECT/SESSION.jsonl`, and `subagents/agent-ID.jsonl` beside them.

A line is one content block of the model's response, or a user's message with a prompt or with results of tools; all
blocks of a response have the same message id and the same usage. A compaction is marked by a line `compact_boundary`,
after which the history begins again with a summary. A subagent's lines have `isSidechain`; older versions wrote them
into the file of their parent. When a conversation is resumed or forked, some versions copy its history into a new file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from contextfold.audit.conversation import Conversation, Message, RecordedRequest, RecordedUsage
from contextfold.audit.transcripts import (
    CLAUDE_CODE,
    Skipped,
    count_in,
    object_in,
    text_in,
    time_in,
)

# Claude Code writes its own notices, such as an error of the provider, as responses of this model.
NOT_A_MODEL = "<synthetic>"
COMPACTED = "compact_boundary"


def read_claude_code(
    lines: Iterable[Mapping[str, Any]], name: str, seen: set[int], skipped: Skipped
) -> Iterator[tuple[Conversation, RecordedRequest]]:
    """The requests of a transcript with their conversations, in order. `seen` has the hashes of requests in others."""
    readers: dict[str, _ConversationReader] = {}
    thread_of_line: dict[str, str] = {}
    for line in lines:
        kind = line.get("type")
        if kind not in ("user", "assistant", "system") or line.get("isApiErrorMessage"):
            continue
        thread = _thread_of(line, thread_of_line)
        if thread not in readers:
            identity = text_in(line, "sessionId") or name
            conversation = Conversation(
                CLAUDE_CODE, "anthropic", f"{identity} {thread}".strip(), text_in(line, "cwd"), bool(thread)
            )
            readers[thread] = _ConversationReader(conversation, seen, skipped)
        reader = readers[thread]
        if request := reader.read(line):
            yield reader.conversation, request
    for reader in readers.values():
        if request := reader.finish():
            yield reader.conversation, request


def _thread_of(line: Mapping[str, Any], thread_of_line: dict[str, str]) -> str:
    """The name of a line's subagent, or of the first line of its thread; empty for the main thread."""
    if not line.get("isSidechain"):
        return ""
    uuid, parent = text_in(line, "uuid"), text_in(line, "parentUuid")
    thread = text_in(line, "agentId") or thread_of_line.get(parent) or uuid
    thread_of_line[uuid] = thread
    return thread


class _ConversationReader:
    def __init__(self, conversation: Conversation, seen: set[int], skipped: Skipped) -> None:
        self.conversation = conversation
        self._seen, self._skipped = seen, skipped
        self._history: list[Message] = []
        # The number of messages behind each line, for a history that is rewound.
        self._ends: dict[str, int] = {}
        self._last_at: float | None = None
        self._unchanged = 0
        self._compacted = False
        # The response that is being read, and its request.
        self._response_id = ""
        self._response: Mapping[str, Any] = {}
        self._response_at = 0
        self._response_ended = 0.0
        self._request: RecordedRequest | None = None

    def read(self, line: Mapping[str, Any]) -> RecordedRequest | None:
        """Read a line; return the request before, if the response to another one begins."""
        message = object_in(line, "message")
        kind = line["type"]
        finished = None
        if kind == "assistant":
            if message.get("model") == NOT_A_MODEL:
                return None
            response_id = text_in(message, "id")
            if response_id != self._response_id or not response_id:
                finished = self.finish()
                self._begin_response(line, message)
                self._append("assistant", message.get("content"))
                self._response_at = len(self._history) - 1
            else:
                self._extend_response(message.get("content"))
            self._response, self._response_ended = message, time_in(line) or self._response_ended
        elif kind == "user" and message:
            content = message.get("content")
            if not _has_results(content):
                self._rewind(text_in(line, "parentUuid"))
            self._append("user", content)
        elif text_in(line, "subtype") == COMPACTED:
            self._history, self._unchanged, self._compacted = [], 0, True
            identity = hash((COMPACTED, text_in(line, "uuid")))
            self._skipped.compactions += identity not in self._seen
            self._seen.add(identity)
        self._ends[text_in(line, "uuid")] = len(self._history)
        self._last_at = time_in(line) or self._last_at
        return finished

    def _begin_response(self, line: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        at = self._last_at if self._last_at is not None else time_in(line)
        self._response_id = text_in(message, "id")
        identity = hash((self._response_id, text_in(line, "requestId")))
        self._request = RecordedRequest(
            at or 0.0,
            at or 0.0,
            text_in(message, "model"),
            RecordedUsage(0, 0, 0, 0, 0),
            tuple(self._history),
            self._unchanged,
            self._compacted,
            text_in(line, "version"),
            bool(self._response_id) and identity in self._seen,
        )
        self._seen.add(identity)
        self._unchanged, self._compacted = len(self._history), False

    def finish(self) -> RecordedRequest | None:
        """The request whose response has been read, with the usage of the response's last line."""
        request, self._request = self._request, None
        self._response_id = ""
        if request is None:
            return None
        usage = _usage_of(object_in(self._response, "usage"))
        if not usage.prompt or not request.at:
            self._skipped.requests_without_usage += 1
            return None
        return request._replace(usage=usage, ended=max(request.at, self._response_ended))

    def _extend_response(self, content: object) -> None:
        """Add a block to the response's message. Results of its first calls may already stand behind it."""
        at = self._response_at
        if 0 <= at < len(self._history) and self._history[at]["role"] == "assistant":
            self._history[at] = {"role": "assistant", "content": [*self._history[at]["content"], *_blocks_of(content)]}

    def _append(self, role: str, content: object) -> None:
        blocks = _blocks_of(content)
        if not blocks:
            return
        if self._history and self._history[-1]["role"] == role:
            # The API has one message where the transcript has a line for each block.
            blocks = [*self._history.pop()["content"], *blocks]
        self._history.append({"role": role, "content": blocks})
        self._unchanged = min(self._unchanged, len(self._history) - 1)

    def _rewind(self, parent: str) -> None:
        """Take back what came after the line that a prompt continues, if the user went back to an earlier one."""
        end = self._ends.get(parent)
        if end is not None and end < len(self._history):
            del self._history[end:]
            self._unchanged = min(self._unchanged, end)


def _blocks_of(content: object) -> list[Message]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []


def _has_results(content: object) -> bool:
    blocks = content if isinstance(content, list) else ()
    return any(isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks)


def _usage_of(usage: Mapping[str, Any]) -> RecordedUsage:
    written, kinds = count_in(usage, "cache_creation_input_tokens"), object_in(usage, "cache_creation")
    written_1h = min(written, count_in(kinds, "ephemeral_1h_input_tokens"))
    return RecordedUsage(
        count_in(usage, "input_tokens"),
        count_in(usage, "cache_read_input_tokens"),
        written - written_1h,
        written_1h,
        count_in(usage, "output_tokens"),
    )
