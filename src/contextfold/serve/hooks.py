"""`POST /hooks/HOST`: receives the reports of an agent's host. Knows HTTP and the hosts' readers.

A status 2xx means that the report was received; it is recorded later (`fold.service.reports`). The agent continues even
if a report is invalid, so an answer is small and quick and never contains a decision. A report belongs to the session
of its conversation, in the project of the folder in which the conversation began; a subagent has its own session.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from starlette.responses import Response
from starlette.routing import Route

from contextfold.common.canonical import is_too_deep
from contextfold.errors import ArgumentInvalid, FoldError
from contextfold.fold.project import NAME_LENGTH_MAX, Conversation, Target, project_at
from contextfold.fold.service.conversations import NotedCall, hash_arguments
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.inbox import InboxFull
from contextfold.fold.service.reports import HookReport
from contextfold.hosts import claude_code
from contextfold.hosts.hook_event import HookEvent, HookOperation
from contextfold.serve.api import JSON, error_response, failure_response
from contextfold.serve.http.exchange import OWNER, RUN, Receive, Scope, Send
from contextfold.serve.http.guard import HOOKS_PATH
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.request_error import busy

# At most this many conversations of an owner are remembered.
CONVERSATIONS_MAX = 10_000
# A longer body is parsed in a thread.
READ_INLINE_BYTES = 64 << 10
# The type of the operation that counts the line about earlier work.
MEMORY_TYPE = "memory"


class HookReader(NamedTuple):
    read: Callable[[Mapping[str, object]], HookEvent]
    # Makes the answer for the host from the event's name and a line for the model.
    answer: Callable[[str, str], Mapping[str, object]]


READERS = {
    "claude-code": HookReader(claude_code.read, claude_code.answer),
}

# Most reports get this answer, so it is made once.
_RECEIVED = Response(b"{}", media_type=JSON)


@dataclass(slots=True)
class _HostConversation:
    """What is known of a host's conversation, or of a subagent in it."""

    # The model that the host named last.
    model: str = ""
    # Whether the conversation has begun and has no prompt yet.
    is_beginning: bool = False


class HookEndpoints:
    def __init__(self, fold: FoldService, metrics: Metrics) -> None:
        self._fold, self._metrics = fold, metrics
        # By owner, then by conversation and subagent, the most recently used last. An owner evicts only its own.
        self._conversations: dict[str, OrderedDict[tuple[str, str], _HostConversation]] = {}

    def routes(self) -> list[Route]:
        return [
            Route(f"{HOOKS_PATH}{host}", endpoint=_HookEndpoint(host, self.receive), methods=["POST"])
            for host in READERS
        ]

    async def receive(self, host: str, owner: str, body: bytes, run: str = "") -> Response:
        try:
            # Parsing a long report takes long, and other requests should be answered meanwhile.
            if len(body) <= READ_INLINE_BYTES:
                observed = _parse_report(host, body)
            else:
                observed = await asyncio.to_thread(_parse_report, host, body)
            target = await self._target(owner, observed, run)
            conversation = self._conversation(owner, observed.conversation, observed.agent_id)
            conversation.model = observed.model or conversation.model
        except FoldError as problem:
            self._metrics.hook_report(host, "refused")
            return failure_response(problem, self._fold)
        operations = (observed.done, *observed.batch) if observed.done else observed.batch
        memory = await self._memory(conversation, observed, target)
        if memory:
            operations = (*operations, HookOperation(MEMORY_TYPE, memory))
        if not operations:
            self._metrics.hook_report(host, "ignored")
        try:
            reports = [self._report(host, each, conversation.model) for each in operations]
            self._fold.reports.receive(target, *reports)
        except InboxFull:
            self._metrics.hook_report(host, "full")
            message = "Too many reports are waiting to be recorded; this one was not taken."
            return error_response(busy(message))
        # Each advice is given once, so none is taken for an event whose answer the host ignores.
        is_answered = not observed.is_compacting and READERS[host].answer(observed.event, "?")
        line = memory or (self._fold.advice_line(target.key) if is_answered else "")
        answer = READERS[host].answer(observed.event, line) if line else {}
        return Response(json.dumps(answer), media_type=JSON) if answer else _RECEIVED

    async def _memory(self, conversation: _HostConversation, observed: HookEvent, target: Target) -> str:
        """A line about earlier work, at the first prompt of a conversation that has just begun."""
        if not self._fold.policy.recall_at_start or observed.agent_id:
            return ""
        conversation.is_beginning = conversation.is_beginning or observed.is_beginning
        if observed.done is None or not observed.done.by_user or not conversation.is_beginning:
            return ""
        conversation.is_beginning = False
        return await self._fold.recalls.memory_line(target.key, observed.done.content)

    def _report(self, host: str, operation: HookOperation, model: str) -> HookReport:
        tokens = self._fold.count(operation.content) if operation.tokens is None else operation.tokens
        # A compaction adds nothing: its tokens are those that it has left in the context.
        added, left = (0, tokens) if operation.compacts else (tokens, None)
        return HookReport(
            host,
            operation.type,
            operation.content,
            added,
            operation.failed,
            operation.call_id,
            left,
            operation.by_user,
            model,
        )

    def _conversation(self, owner: str, conversation: str, agent: str) -> _HostConversation:
        known = self._conversations.setdefault(owner, OrderedDict())
        found = known.setdefault((conversation, agent), _HostConversation())
        known.move_to_end((conversation, agent))
        if len(known) > CONVERSATIONS_MAX:
            known.popitem(last=False)
        return found

    async def _target(self, owner: str, observed: HookEvent, run: str) -> Target:
        """The session of a report's conversation."""
        conversations = self._fold.conversations
        known_run = await conversations.find_run(owner, run) if run else None
        project = (known_run.project if known_run else None) or (
            project_at(observed.folder) if observed.folder else None
        )
        agent = observed.agent_id
        known = await conversations.find(
            owner,
            Conversation(observed.conversation, agent),
            project=project,
            name=" ".join(filter(None, (observed.agent_type, agent)))[:NAME_LENGTH_MAX] or None,
            run=run,
        )
        if not known.target.given_path:
            raise ArgumentInvalid("cwd", "must be the folder that the agent works in")
        if observed.session_id is not None:
            with suppress(FoldError):
                named = await self._fold.find_target(owner, observed.session_id)
                if named is not None:
                    conversations.adopt(known, named)
        if observed.own_call is not None:
            noted = asyncio.get_running_loop().create_future()
            noted.set_result(known)
            tool, arguments = observed.own_call
            conversations.note_call(owner, NotedCall(observed.call_id, tool, hash_arguments(arguments), run, noted))
        return known.target


class _HookEndpoint:
    """Receives the reports of one host's hooks; 2xx means received. The answer may add a line for the model."""

    def __init__(self, host: str, receive: Callable[[str, str, bytes, str], Awaitable[Response]]) -> None:
        self._host, self._receive = host, receive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The guard has read the whole body.
        message = await receive()
        answer = await self._receive(self._host, scope[OWNER], message["body"], scope[RUN])
        await answer(scope, receive, send)


def _parse_report(host: str, body: bytes) -> HookEvent:
    """Read a report. Lone surrogates are accepted, because the output of tools may contain them."""
    try:
        payload = None if is_too_deep(body) else json.loads(body.decode("utf-8", "replace"))
    except ValueError:
        payload = None
    if not isinstance(payload, dict):
        raise ArgumentInvalid("body", "must be a JSON object, as the host's hooks send it")
    return READERS[host].read(payload)
