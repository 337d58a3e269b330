"""Finds the session of each conversation, for hooks, the proxy and the tools. Knows no host's format, no protocol.

A session is one conversation with one model. Hooks and proxied requests say which conversation they belong to; a tool
call over MCP does not. Its session is the first of these that is known:

    the call            its id, or the tool and its arguments, in a hook or in a model's response just before
    the run             the latest conversation of the run (`context run`)
    the project         the latest conversation of the project

What is found is remembered here. A conversation that is not remembered may have a live session in the store, for
example after a restart; its key is then found by the hash of the conversation.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from contextfold.errors import ContextError
from contextfold.fold.project import (
    NO_PROJECT,
    Conversation,
    Project,
    Target,
    conversation_target,
    hash_text,
    project_at,
)
from contextfold.fold.service.session_views import FoundSession
from contextfold.fold.session import State
from contextfold.fold.store import SessionKey, Store

# At most this many conversations, calls and runs of an owner are remembered.
CONVERSATIONS_MAX = 10_000
CALLS_MAX = 256
RUNS_MAX = 1_000
# At most this many live sessions are searched for a conversation, the latest first.
SEARCHED_SESSIONS_MAX = 1_000
# At most this many of them are read to find a run.
SEARCHED_FOR_RUN_MAX = 100
# At most this many conversations that begin with the same messages are distinguished.
NUMBERS_MAX = 64
# A tool call waits at most this long for the end of the response that contained it, and for reports on their way.
CALL_WAIT_S = 2.0


@dataclass(slots=True)
class KnownConversation:
    target: Target
    # Whether a request of it was answered.
    is_answered: bool = False
    run: str = ""
    at_s: float = 0.0
    # The number among the conversations that begin with the same messages, and a hash of the model's first message, by
    # which their later requests are told apart; None until it is known.
    number: int = 0
    first_turn: int | None = None


class NotedCall(NamedTuple):
    """A call of one of our tools that a host is about to make. Its session may become known a moment later."""

    id: str
    tool: str
    # A hash; empty if only the name of the tool is known.
    arguments: str
    run: str
    conversation: asyncio.Future[KnownConversation | None]


@dataclass(slots=True)
class Run:
    """A program that `context run` has started."""

    project: Project | None = None
    program: str = ""
    failed_requests: int = 0
    # Whether its sessions in the store have been searched for its project.
    is_searched: bool = False


@dataclass(slots=True)
class _OwnerMemory:
    """What is remembered of one owner; what was used last is the last. An owner evicts only its own."""

    # By the host's ids of conversation and subagent, and by number.
    conversations: OrderedDict[tuple[str, str, int], KnownConversation] = field(default_factory=OrderedDict)
    calls: list[NotedCall] = field(default_factory=list)
    runs: OrderedDict[str, Run] = field(default_factory=OrderedDict)
    # The answered requests whose session is still being looked up.
    arriving: set[asyncio.Future[KnownConversation | None]] = field(default_factory=set)


class Conversations:
    def __init__(
        self, store: Store, look: Callable[[SessionKey], Awaitable[State]], *, clock: Callable[[], float], idle_s: float
    ) -> None:
        self._store, self._look, self._clock, self._idle_s = store, look, clock, idle_s
        self._owners: dict[str, _OwnerMemory] = {}

    # ---- conversations that hooks and requests name

    async def find(
        self,
        owner: str,
        conversation: Conversation,
        *,
        project: Project | None = None,
        name: str | None = None,
        run: str = "",
        is_opening: bool = False,
        first_turn: int | None = None,
    ) -> KnownConversation:
        """The session of a conversation, a new one if there is none; the conversation becomes the latest one.

        `name` is for a new session. With `is_opening` the model has said nothing yet: if the host does not name its
        conversations, one with the same first messages that was answered is another conversation. Their later requests
        are told apart by `first_turn`, a hash of the model's first message.
        """
        known = self._find_known(owner, conversation, first_turn)
        if known is None:
            found = await self._find_stored(owner, conversation)
            # Another report of the conversation may have come meanwhile.
            known = self._find_known(owner, conversation, first_turn) or found
        if is_opening and known and known.is_answered and not conversation.is_named:
            latest = max(each.number for each in [known, *self._list_known(owner, conversation)])
            conversation, known = conversation._replace(number=(latest + 1) % NUMBERS_MAX), None
        if known is None:
            target = conversation_target(owner, conversation, project, name)
            known = KnownConversation(target, number=conversation.number)
        known.first_turn = known.first_turn or first_turn
        self._make_latest(owner, conversation, known, run)
        if project:
            self.set_project(known, project)
        return known

    def adopt(self, known: KnownConversation, target: Target) -> None:
        """Let a conversation go on in a session that a result of our tools names, if it is no other conversation's."""
        if target.conversation is None:
            known.target = target

    def set_project(self, known: KnownConversation, project: Project) -> None:
        """Set the project of a conversation that began without one. Its key stays the same."""
        if not known.target.given_path:
            known.target = known.target._replace(given_path=project.given)

    def _find_known(self, owner: str, conversation: Conversation, first_turn: int | None) -> KnownConversation | None:
        """The conversation with this first message of the model, else the latest one that has none yet, or any."""

        def rank(known: KnownConversation) -> tuple[bool, bool, float, int]:
            is_same = first_turn is not None and known.first_turn == first_turn
            return is_same, known.first_turn is None, known.at_s, known.number

        return max(self._list_known(owner, conversation), key=rank, default=None)

    def _list_known(self, owner: str, conversation: Conversation) -> list[KnownConversation]:
        """The conversations that are remembered with these ids; several only if the host does not name them."""
        known = self._memory_of(owner).conversations
        numbers = range(1 if conversation.is_named else NUMBERS_MAX)
        keys = ((conversation.id, conversation.agent, number) for number in numbers)
        return [known[key] for key in keys if key in known]

    def _make_latest(self, owner: str, conversation: Conversation, known: KnownConversation, run: str) -> None:
        memory, key = self._memory_of(owner), (conversation.id, conversation.agent, known.number)
        known.run, known.at_s = run or known.run, self._clock()
        memory.conversations[key] = known
        memory.conversations.move_to_end(key)
        if len(memory.conversations) > CONVERSATIONS_MAX:
            memory.conversations.popitem(last=False)

    async def _find_stored(self, owner: str, conversation: Conversation) -> KnownConversation | None:
        """The conversation's live session in the store, the last of several with the same first messages."""
        try:
            listed = await self._store.sessions(owner, limit=SEARCHED_SESSIONS_MAX)
            keys = {session.key.name_hash: session.key for session in listed}
            for number in reversed(range(1 if conversation.is_named else NUMBERS_MAX)):
                numbered = conversation._replace(number=number)
                if key := keys.get(numbered.hash):
                    target = FoundSession(key, await self._look(key)).target
                    return KnownConversation(target._replace(conversation=numbered), is_answered=True, number=number)
        except ContextError:
            # The store is unavailable. A report is received even so, and written when it is back.
            pass
        return None

    # ---- calls of our tools

    def note_call(self, owner: str, call: NotedCall) -> None:
        memory = self._memory_of(owner)
        memory.calls = [*memory.calls[1 - CALLS_MAX :], call]

    def note_arriving(self, owner: str, reported: asyncio.Future[KnownConversation | None]) -> None:
        """Let calls wait for the report of a request that was answered, because they may be about it."""
        arriving = self._memory_of(owner).arriving
        arriving.add(reported)
        reported.add_done_callback(arriving.discard)

    async def wait_for_arriving(self, owner: str) -> None:
        if arriving := self._memory_of(owner).arriving:
            await asyncio.wait(arriving, timeout=CALL_WAIT_S)

    async def session_of_call(
        self, owner: str, tool: str, arguments: Mapping[str, object], *, call_id: str = "", run: str = ""
    ) -> KnownConversation | None:
        """The conversation that made a call; None if it is not known."""
        calls, hashed = self._memory_of(owner).calls, hash_arguments(arguments)
        # The latest call with the same id counts, else the first one with the same arguments that was not yet found.
        of_tool = [call for call in calls if call.tool == tool and call.run == run]
        same = [call for call in of_tool if call.arguments == hashed]
        by_id = [call for call in reversed(calls) if call_id and call.id == call_id]
        found = next(iter([*by_id, *same, *(call for call in of_tool if not call.arguments)]), None)
        if found is not None:
            if not by_id and any(call is not found for call in same):
                # The next call with these arguments is another one. Otherwise it stays, because a host may repeat it.
                calls.remove(found)
            if known := await _wait_for(found.conversation):
                return known
        return next((known for known in self._list_latest(owner) if run and known.run == run), None)

    def latest_of(self, owner: str, project: Project) -> KnownConversation | None:
        """The latest conversation of a project."""
        return next((known for known in self._list_latest(owner) if _is_of(known.target, project)), None)

    def _list_latest(self, owner: str) -> Iterator[KnownConversation]:
        """The conversations that are not idle, the latest one first. Subagents are found by their calls alone."""
        idle_since_s = self._clock() - self._idle_s
        for (_, agent, _), known in reversed(self._memory_of(owner).conversations.items()):
            if known.at_s > idle_since_s and not agent:
                yield known

    # ---- runs

    def announce_run(self, owner: str, name: str, project: Project, program: str) -> None:
        run = self.run(owner, name)
        run.project, run.program = project, program

    def run(self, owner: str, name: str) -> Run:
        """What is known of a run, which may not have been announced."""
        runs = self._memory_of(owner).runs
        run = runs.setdefault(name, Run())
        runs.move_to_end(name)
        if len(runs) > RUNS_MAX:
            runs.popitem(last=False)
        return run

    async def find_run(self, owner: str, name: str) -> Run | None:
        """What is known of a run. One that was announced before a restart is known by its sessions."""
        found = self._memory_of(owner).runs.get(name)
        if found and (found.project or found.is_searched):
            return found
        project = await self._search_run(owner, name)
        if found is None and project is None:
            return None
        run = self.run(owner, name)
        run.project, run.is_searched = run.project or project, True
        return run

    async def _search_run(self, owner: str, name: str) -> Project | None:
        """The project of a run's session in the store."""
        try:
            for listed in await self._store.sessions(owner, limit=SEARCHED_FOR_RUN_MAX):
                state = await self._look(listed.key)
                if name in state.runs and state.project_path:
                    return project_at(state.project_path)
        except ContextError:
            # The store is unavailable, as in `_find_stored`.
            pass
        return None

    def _memory_of(self, owner: str) -> _OwnerMemory:
        return self._owners.setdefault(owner, _OwnerMemory())


def _is_of(target: Target, project: Project) -> bool:
    if target.key.project_hash != NO_PROJECT:
        return target.key.project_hash == project.hash
    return bool(target.given_path) and project_at(target.given_path) == project


def hash_arguments(arguments: Mapping[str, object]) -> str:
    """A hash of a call's arguments, whatever their order."""
    return hash_text(json.dumps(arguments, sort_keys=True, default=str))


async def _wait_for(conversation: asyncio.Future[KnownConversation | None]) -> KnownConversation | None:
    done, _ = await asyncio.wait([conversation], timeout=CALL_WAIT_S)
    return conversation.result() if done and not conversation.cancelled() else None
