"""`POST /hooks/HOST`: receives the reports of an agent's host. Knows HTTP and the hosts' readers.

A status 2xx means that the report was received; it is recorded later (`fold.service.reports`). The agent continues even
if a report is invalid, so an answer is small and quick and never contains a decision. The session of a report is:

    the conversation has called one of our tools    the session in the tool's result
    otherwise                                       the current session of the project
    a subagent                                      a session of its own: its work is not in the main context

A folder below the one in which a conversation began belongs to the same project, any other folder to another project.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from starlette.responses import Response
from starlette.routing import Route

from contextfold.common.canonical import is_too_deep
from contextfold.errors import ArgumentInvalid, FoldError
from contextfold.fold.project import NAME_LENGTH_MAX, Caller, Project, Target, project_at, target_of
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.inbox import InboxFull
from contextfold.fold.service.reports import HookReport
from contextfold.hosts import claude_code, cursor
from contextfold.hosts.hook_event import HookEvent, HookOperation
from contextfold.serve.api import JSON, error_response, failure_response
from contextfold.serve.http.exchange import OWNER, Receive, Scope, Send
from contextfold.serve.http.guard import HOOKS_PATH
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.request_error import busy

# At most this many conversations of an owner are remembered.
CONVERSATIONS_MAX = 10_000
# A longer body is parsed in a thread.
READ_INLINE_BYTES = 64 << 10
# The type of the operation that counts the line about earlier work.
MEMORY_TYPE = "memory"
# At most this many sessions in results are looked up at the same time.
SEARCHES_MAX = 100


class HookReader(NamedTuple):
    read: Callable[[Mapping[str, object]], HookEvent]
    # Makes the answer for the host from the event's name and a line for the model.
    answer: Callable[[str, str], Mapping[str, object]]


READERS = {
    "claude-code": HookReader(claude_code.read, claude_code.answer),
    "cursor": HookReader(cursor.read, cursor.answer),
    "vscode": HookReader(claude_code.read_vscode, claude_code.answer_vscode),
}

# Most reports get this answer, so it is made once.
_RECEIVED = Response(b"{}", media_type=JSON)


class _HostConversation:
    """What is known of a host's conversation, or of a subagent in it."""

    def __init__(self) -> None:
        # The session in the result of one of our tools.
        self.tied: Target | None = None
        # The project in which the conversation began.
        self.home: Project | None = None
        # The folder that was reported last, and its session.
        self.latest: tuple[str, Target] | None = None
        # The model that the host named last.
        self.model = ""
        # Whether the conversation has begun and has no prompt yet.
        self.is_beginning = False


class HookEndpoints:
    def __init__(self, fold: FoldService, metrics: Metrics) -> None:
        self._fold, self._metrics = fold, metrics
        # By owner, then by conversation and subagent, the most recently used last. An owner evicts only its own.
        self._conversations: dict[str, OrderedDict[tuple[str, str | None], _HostConversation]] = {}
        self._searches: set[asyncio.Task[None]] = set()

    def routes(self) -> list[Route]:
        return [
            Route(f"{HOOKS_PATH}{host}", endpoint=_HookEndpoint(host, self.receive), methods=["POST"])
            for host in READERS
        ]

    async def receive(self, host: str, owner: str, body: bytes) -> Response:
        try:
            # Parsing a long report takes long, and other requests should be answered meanwhile.
            if len(body) <= READ_INLINE_BYTES:
                observed = _parse_report(host, body)
            else:
                observed = await asyncio.to_thread(_parse_report, host, body)
            conversation = self._conversation(owner, observed.conversation, observed.agent)
            target = self._target(owner, conversation, observed)
            conversation.model = observed.model or conversation.model
        except FoldError as problem:
            self._metrics.hook_report(host, "refused")
            return failure_response(problem, self._fold)
        dones = (observed.done, *observed.batch) if observed.done else observed.batch
        memory = await self._memory(conversation, observed, target)
        if memory:
            dones = (*dones, HookOperation(MEMORY_TYPE, memory))
        if not dones:
            self._metrics.hook_report(host, "tied" if observed.session_id else "ignored")
        try:
            reports = [self._report(host, done, conversation.model) for done in dones]
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
        if not self._fold.policy.recall_at_start or observed.agent is not None:
            return ""
        conversation.is_beginning = conversation.is_beginning or observed.is_beginning
        if observed.done is None or not observed.done.by_user or not conversation.is_beginning:
            return ""
        conversation.is_beginning = False
        return await self._fold.recalls.memory_line(target.key, observed.done.content)

    def _report(self, host: str, done: HookOperation, model: str) -> HookReport:
        tokens = self._fold.count(done.content) if done.tokens is None else done.tokens
        grown, left = (0, tokens) if done.compacts else (tokens, None)
        return HookReport(host, done.type, done.content, grown, done.failed, done.call_id, left, done.by_user, model)

    async def close(self) -> None:
        for search in self._searches:
            search.cancel()
        await asyncio.gather(*self._searches, return_exceptions=True)

    def _conversation(self, owner: str, conversation: str, agent: str | None) -> _HostConversation:
        known = self._conversations.setdefault(owner, OrderedDict())
        found = known.setdefault((conversation, agent), _HostConversation())
        known.move_to_end((conversation, agent))
        if len(known) > CONVERSATIONS_MAX:
            known.popitem(last=False)
        return found

    def _target(self, owner: str, conversation: _HostConversation, observed: HookEvent) -> Target:
        if observed.session_id is not None:
            self._tie(owner, conversation, observed.session_id)
        if conversation.tied is not None:
            return conversation.tied
        if observed.folder is None:
            raise ArgumentInvalid("cwd", "must be the folder that the agent works in")
        if conversation.latest is None or conversation.latest[0] != observed.folder:
            main = self._conversation(owner, observed.conversation, None)
            project = project_at(observed.folder)
            main.home = main.home or project
            within = main.home if _is_within(project, main.home) else project
            conversation.latest = observed.folder, target_of(_caller(owner, observed.agent), within)
        return conversation.latest[1]

    def session_of(self, owner: str, conversation: str, agent: str | None) -> Target | None:
        """The session for the reports of a host's conversation; None if there were no reports yet."""
        known = self._conversations.get(owner) or OrderedDict()
        main, own = known.get((conversation, None)), known.get((conversation, agent))
        tied = next((each.tied for each in (own, main) if each and each.tied), None)
        if tied is not None and agent is None:
            return tied
        project = main.home if main and main.home else project_at(tied.given_path) if tied else None
        return target_of(_caller(owner, agent), project) if project else None

    def _tie(self, owner: str, conversation: _HostConversation, session_id: str) -> None:
        """Send the conversation's reports to this session from now on. An unknown session is looked up in the store."""
        target = self._fold.address(owner, session_id)
        if target is not None:
            conversation.tied = target
        elif len(self._searches) < SEARCHES_MAX:
            search = asyncio.get_running_loop().create_task(self._search(owner, conversation, session_id))
            self._searches.add(search)
            search.add_done_callback(self._searches.discard)

    async def _search(self, owner: str, conversation: _HostConversation, session_id: str) -> None:
        # If the store is unavailable, the next call of our tools names the session again.
        with suppress(FoldError):
            conversation.tied = await self._fold.find_target(owner, session_id) or conversation.tied


def _caller(owner: str, agent: str | None) -> Caller:
    return Caller(owner, agent[:NAME_LENGTH_MAX] if agent else None)


class _HookEndpoint:
    """Receives the reports of one host's hooks; 2xx means received. The answer may add a line for the model."""

    def __init__(self, host: str, receive: Callable[[str, str, bytes], Awaitable[Response]]) -> None:
        self._host, self._receive = host, receive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The guard has read the whole body.
        message = await receive()
        answer = await self._receive(self._host, scope[OWNER], message["body"])
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


def _is_within(project: Project, home: Project) -> bool:
    below = (f"{home.path}/", f"{home.path}\\")
    return project.path == home.path or (len(home.path) > 1 and project.path.startswith(below))
