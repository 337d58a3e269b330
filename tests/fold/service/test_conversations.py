"""Which conversation made a call of our tools, from the calls that the proxy saw."""

from __future__ import annotations

import asyncio
from pathlib import Path

from contextfold.fold.project import Caller, project_at, target_of
from contextfold.fold.service.conversations import KnownConversation, NotedCall, hash_arguments
from contextfold.fold.service.fold_service import FoldService
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.stores.sqlite.store import SqliteStore

OWNER, TOOL, ARGUMENTS = "local", "context_fold", {"message": "done"}


def conversation_named(name: str) -> KnownConversation:
    return KnownConversation(target_of(Caller(OWNER, name), project_at("/p")))


async def test_a_repeated_call_is_that_of_the_same_conversation_and_equal_calls_are_taken_in_turn(
    tmp_path: Path,
) -> None:
    service = FoldService(SqliteStore(tmp_path / "state.db"), standard_scrubber())
    first, second = conversation_named("first"), conversation_named("second")

    def note(call_id: str, conversation: KnownConversation) -> None:
        found: asyncio.Future[KnownConversation | None] = asyncio.get_running_loop().create_future()
        found.set_result(conversation)
        service.conversations.note_call(OWNER, NotedCall(call_id, TOOL, hash_arguments(ARGUMENTS), "", found))

    async def ask(call_id: str = "") -> KnownConversation | None:
        return await service.conversations.session_of_call(OWNER, TOOL, ARGUMENTS, call_id=call_id)

    try:
        note("call_1", first)
        assert [await ask("call_1") for _ in range(3)] == [first] * 3
        assert [await ask() for _ in range(2)] == [first] * 2
        note("call_2", second)
        assert await ask("call_2") is second
        assert [await ask() for _ in range(3)] == [first, second, second]
    finally:
        await service.close()


async def test_a_call_waits_for_the_reports_of_requests_that_were_answered_before(tmp_path: Path) -> None:
    service = FoldService(SqliteStore(tmp_path / "state.db"), standard_scrubber())
    reported: asyncio.Future[KnownConversation | None] = asyncio.get_running_loop().create_future()
    try:
        service.conversations.note_arriving(OWNER, reported)
        await service.identify(Caller("another"), TOOL, ARGUMENTS)
        assert not reported.done()
        call = asyncio.ensure_future(service.identify(Caller(OWNER), TOOL, ARGUMENTS))
        asyncio.get_running_loop().call_later(0.05, reported.set_result, None)
        await call
        assert reported.done()
    finally:
        await service.close()
