"""What the proxy remembers of conversations: results that hosts clear, results that it leaves out, token counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from contextfold.errors import StoreUnavailable
from contextfold.fold.messages import (
    CallOutcome,
    ColdSettings,
    Format,
    Remembered,
    by_call,
    parse_request,
    project_body,
)
from contextfold.fold.project import Conversation
from contextfold.fold.service.conversation_records import (
    ORIGIN_UNKNOWN,
    ConversationRecord,
    ConversationRecords,
    ResultOrigin,
)
from contextfold.fold.store import ArchivedResult, LeftOutDecision
from contextfold.fold.store_export import encode_record
from contextfold.serve.proxy import folding, proxied_request
from contextfold.serve.proxy.proxied_request import conversation_of
from tests.fold.messages.short_histories import Message, branch, model_turn, return_turn, say, tool_results, work
from tests.serve.proxy.test_bounds import MESSAGES, Client, GuardedProxy
from tests.support.known_secrets import known_secrets
from tests.support.temporary_store import TemporaryStore

SECRET = known_secrets(1)[0]
LONG = "line\n" * 900
MODEL = "claude-sonnet-4-5"
COUNT = "/proxy/anthropic/v1/messages/count_tokens"
GEMINI = "/proxy/gemini/v1beta/models/gemini-2.5-pro:generateContent"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class ProxyWithClock:
    """A proxy with a clock that only the test advances."""

    def __init__(self, store: ConversationRecords | None, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.guarded = GuardedProxy(proxy_options={"records": store, "clock": self.clock})

    async def request(
        self, messages: list[Message], *headers: tuple[bytes, bytes], path: str = "", **members: Any
    ) -> Client:
        name = "contents" if "gemini" in path else "messages"
        client = Client(json.dumps({"model": MODEL, name: messages, **members}).encode(), path=path or MESSAGES)
        client.scope["headers"] += headers
        await client.call(self.guarded)
        # What is stored after the response is stored before the next request.
        await asyncio.gather(*self.guarded.proxy._folding._recordings)
        return client

    def sent(self, name: str = "messages") -> list[Message]:
        sent: list[Message] = json.loads(self.guarded.upstream.next().body)[name]
        return sent


def run_with_proxy(scenario: Any, store: ConversationRecords | None = None) -> None:
    proxy = ProxyWithClock(store)

    async def main() -> None:
        try:
            await scenario(proxy)
        finally:
            await proxy.guarded.proxy.close()

    with closing(proxy.guarded):
        asyncio.run(main())


def history(*ids: str) -> list[Message]:
    messages = say("go")
    for call_id in ids:
        messages += [
            *model_turn("anthropic", (call_id, "Read")),
            *tool_results("anthropic", (call_id, f"{call_id} {LONG}")),
        ]
    return messages


def stubs(messages: Sequence[Message]) -> list[str]:
    blocks = [block for message in messages if isinstance(message["content"], list) for block in message["content"]]
    return [block["content"] for block in blocks if str(block.get("content")).startswith("[contextfold:")]


def test_old_results_are_left_out_after_a_pause_and_in_later_requests() -> None:
    memory = TemporaryStore()
    store = ConversationRecords(memory)

    async def scenario(proxy: ProxyWithClock) -> None:
        await proxy.request(history("a", "b", "c"))
        assert stubs(proxy.sent()) == []
        proxy.clock.now += 299
        await proxy.request(history("a", "b", "c"))
        assert stubs(proxy.sent()) == []
        proxy.clock.now += 301
        client = await proxy.request(history("a", "b", "c"))
        (stub,) = stubs(proxy.sent())
        assert client.receipt["results_left_out"] == 1
        result_id = stub.split('"')[1]
        text = await memory.left_out_text("local", result_id)
        assert text is not None
        assert text.endswith("line\n" * 900)
        assert await memory.left_out_text("somebody", result_id) is None
        await proxy.request(history("a", "b", "c", "d", "e"))
        assert stubs(proxy.sent()) == [stub]

    async def after_a_restart(proxy: ProxyWithClock) -> None:
        await proxy.request(history("a", "b", "c", "d", "e", "f"))
        assert len(stubs(proxy.sent())) == 1

    run_with_proxy(scenario, store)
    run_with_proxy(after_a_restart, store)


def test_no_call_id_is_stored_as_the_client_wrote_it() -> None:
    memory = TemporaryStore()
    ids = [f"call-{SECRET.value}-{number}" for number in range(3)]
    ours, answer = (
        f"ours-{SECRET.value}",
        json.dumps({"branch_id": "br_1", "session_id": "sess_1", "created_at": "now"}),
    )
    opened = [*model_turn("anthropic", (ours, "context_branch")), *tool_results("anthropic", (ours, answer))]

    async def scenario(proxy: ProxyWithClock) -> None:
        # A result with a secret in its text would not be left out.
        work = [(*model_turn("anthropic", (each, "Read")), *tool_results("anthropic", (each, LONG))) for each in ids]
        messages = [*say("go"), *(message for turn in work for message in turn), *opened]
        await proxy.request(messages)
        proxy.clock.now += 301
        client = await proxy.request(messages)
        assert client.receipt["results_left_out"] > 0
        exported = b"".join([encode_record(record) async for record in memory.export()])
        assert b"left_out" in exported
        assert b"conversation" in exported
        assert SECRET.value.encode() not in exported

    run_with_proxy(scenario, ConversationRecords(memory))


def test_a_result_with_a_secret_is_not_left_out_so_that_the_others_come_back_as_they_went_out() -> None:
    memory = TemporaryStore()

    async def scenario(proxy: ProxyWithClock) -> None:
        messages = history("a", "b", "c", "d")
        messages[2]["content"][0]["content"] = f"{SECRET.text}\n{LONG}"
        await proxy.request(messages)
        proxy.sent()
        proxy.clock.now += 301
        await proxy.request(messages)
        (stub,) = stubs(proxy.sent())
        assert await memory.left_out_text("local", stub.split('"')[1]) == f"b {LONG}"

    run_with_proxy(scenario, ConversationRecords(memory))


async def test_records_of_call_ids_as_earlier_versions_stored_them_are_found() -> None:
    memory, text = TemporaryStore(), f"a {LONG}"
    projection = project_body(json.dumps({"model": MODEL, "messages": history("a", "b", "c")}).encode(), "anthropic")
    (cold,) = projection.cold_results(salt="", settings=ColdSettings())
    assert cold.text == text
    old = ArchivedResult(cold.decision._replace(call_id="a", decided_at="2026-01-01T00:00:00Z"), text)
    await memory.keep_left_out("local", "c", [old])
    remembered = Remembered(results=by_call(tuple(await memory.left_out("local", "c"))))
    body = json.dumps({"model": MODEL, "messages": history("a", "b", "c")}).encode()
    assert project_body(body, "anthropic", remembered=remembered).receipt.results_left_out == 1
    await memory.close()


# The header with the id of Claude Code's session.
NAMED = (b"x-claude-code-session-id", b"s-1")
HEAD: dict[str, Any] = {"system": "Be brief.", "tools": [{"name": "Read", "input_schema": {}}]}


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        ({}, []),
        ({"system": "Be long."}, ["a", "b"]),
        ({"tools": [*HEAD["tools"], {"name": "Edit", "input_schema": {}}]}, ["a", "b"]),
        ({"tools": []}, []),
        ({"max_tokens": 7}, []),
        ({"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]}, []),
        ({"tools": [*HEAD["tools"], {"name": "Later", "input_schema": {}, "defer_loading": True}]}, []),
    ],
)
def test_old_results_are_left_out_when_the_prefix_is_lost_anyway(changes: Message, left_out: list[str]) -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        await proxy.request(history("a", "b", "c"), NAMED, **HEAD)
        proxy.sent()
        await proxy.request(history("a", "b", "c", "d"), NAMED, **{**HEAD, **changes})
        assert len(stubs(proxy.sent())) == len(left_out)
        # The same request to the same model gets the same stubs, and nothing else is left out.
        await proxy.request(history("a", "b", "c", "d", "e", "f"), NAMED, **{**HEAD, **changes})
        assert len(stubs(proxy.sent())) == len(left_out)

    run_with_proxy(scenario)


def test_marks_for_the_cache_on_tools_and_system_prompt_are_no_change() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}

    async def scenario(proxy: ProxyWithClock) -> None:
        texts = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
        tools = [{"name": "Read", "input_schema": {}}, {"name": "Edit", "input_schema": {}}]
        for place in (0, 1):
            marked: dict[str, Any] = {"system": [*texts], "tools": [*tools]}
            for listed in marked.values():
                listed[place] = {**listed[place], **mark}
            await proxy.request(history("a", "b", "c", "d"), NAMED, **marked)
            assert stubs(proxy.sent()) == []

    run_with_proxy(scenario)


def test_a_change_of_model_leaves_results_out_only_if_going_back_at_once_costs_no_more() -> None:
    """The model before still has the whole results in its cache, and would have to write again what is behind them."""

    async def scenario(proxy: ProxyWithClock) -> None:
        for count, left_out in ((3, 0), (5, 3)):
            headers = (b"x-claude-code-session-id", b"s-%d" % count)
            messages = [*say(f"go {count}"), *history(*"abcdefgh"[:count])[1:]]
            await proxy.request(messages, headers, **HEAD)
            await proxy.request(messages, headers, **{**HEAD, "model": "claude-sonnet-4-6"})
            assert [len(stubs(proxy.sent())) for _ in range(2)] == [0, left_out]
        # One at a fifth of the price saves less than going back would cost.
        await proxy.request(history(*"abcde"), NAMED, **HEAD)
        await proxy.request(history(*"abcde"), NAMED, **{**HEAD, "model": "claude-haiku-4-5"})
        assert [len(stubs(proxy.sent())) for _ in range(2)] == [0, 0]

    run_with_proxy(scenario)


def test_a_question_beside_the_conversation_with_its_history_leaves_nothing_out_of_it() -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        await proxy.request(history("a", "b", "c", "d"), NAMED, **HEAD)
        await proxy.request([*history("a", "b", "c", "d"), *say("Summarize it.")], NAMED, system="You summarize.")
        await proxy.request(history("a", "b", "c", "d", "e"), NAMED, **HEAD)
        assert [stubs(proxy.sent()) for _ in range(3)] == [[], [], []]

    run_with_proxy(scenario)


def test_only_results_behind_a_changed_message_are_left_out() -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        messages = history("a", "b", "c", "d", "e")
        await proxy.request(messages, NAMED)
        proxy.sent()
        # The host clears the result of its second call.
        messages[4]["content"][0]["content"] = "[cleared]"
        await proxy.request(messages, NAMED)
        (stub,) = stubs(sent := proxy.sent())
        assert sent[6]["content"][0]["content"] == stub

    run_with_proxy(scenario)


def test_another_question_of_the_same_model_in_between_does_not_count_as_a_lost_prefix() -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        await proxy.request(history("a", "b", "c", "d"), NAMED, **HEAD)
        await proxy.request(say("Find a title."), NAMED, system="You find titles.")
        await proxy.request(history("a", "b", "c", "d", "e"), NAMED, **HEAD)
        assert [stubs(proxy.sent()) for _ in range(3)] == [[], [], []]

    run_with_proxy(scenario)


@pytest.mark.parametrize("model", [MODEL, "claude-haiku-4-5"])
def test_many_questions_in_between_do_not_count_as_a_lost_prefix(model: str) -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        await proxy.request(history("a", "b", "c", "d"), NAMED, **HEAD)
        for number in range(9):
            await proxy.request(say(f"Summarize page {number}."), NAMED, model=model)
        await proxy.request(history("a", "b", "c", "d", "e"), NAMED, **HEAD)
        assert [stubs(proxy.sent()) for _ in range(11)] == [[]] * 11

    run_with_proxy(scenario)


def test_more_models_than_are_compared_do_not_count_as_a_lost_prefix() -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        for model in (MODEL, "m1", "m2", "m3", "m4", MODEL):
            await proxy.request(history("a", "b", "c") if model == MODEL else say("Find a title."), NAMED, model=model)
            assert stubs(proxy.sent()) == []

    run_with_proxy(scenario)


def test_what_was_sent_before_a_restart_does_not_count_as_lost() -> None:
    memory = TemporaryStore()

    async def scenario(proxy: ProxyWithClock) -> None:
        await proxy.request(history("a", "b", "c"), NAMED)

    async def after_a_restart(proxy: ProxyWithClock) -> None:
        proxy.clock.now += 10
        await proxy.request(say("Find a title."), NAMED)
        await proxy.request(history("a", "b", "c", "d"), NAMED)
        assert [stubs(proxy.sent()) for _ in range(2)] == [[], []]

    run_with_proxy(scenario, ConversationRecords(memory))
    run_with_proxy(after_a_restart, ConversationRecords(memory))


def test_requests_whose_history_the_provider_has_keep_the_prefix() -> None:
    path = "/proxy/openai/v1/responses"
    key = "01234567-89ab-cdef-0123-456789abcdef"

    def items(number: int) -> list[Message]:
        items: list[Message] = [{"type": "message", "role": "user", "content": "go"}]
        for place in range(number):
            call = {"type": "function_call", "call_id": f"c{place}", "name": "read", "arguments": "{}"}
            items += [call, {"type": "function_call_output", "call_id": f"c{place}", "output": LONG}]
        return items

    async def scenario(proxy: ProxyWithClock) -> None:
        await proxy.request([], path=path, prompt_cache_key=key, input=items(1))
        for number in range(2, 6):
            proxy.clock.now += 200
            given = {"prompt_cache_key": key, "input": items(number)[-1:], "previous_response_id": "r"}
            client = await proxy.request([], path=path, **given)
            assert client.receipt["reason"] == "kept_elsewhere"
        proxy.clock.now += 5
        await proxy.request([], path=path, prompt_cache_key=key, input=items(6))
        sent = [proxy.sent("input") for _ in range(6)]
        assert sent[-1] == items(6)

    run_with_proxy(scenario)


def test_a_request_that_passes_unread_keeps_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        await proxy.request(history("a", "b"), NAMED)
        proxy.clock.now += 200
        with monkeypatch.context() as limits:
            limits.setattr(proxied_request, "FOLDED_OWNER_MAX_BYTES", 10)
            client = await proxy.request(history(*"abcdef"), NAMED)
            assert client.receipt["reason"] == "busy"
        proxy.clock.now += 200
        await proxy.request(history(*"abcdefg"), NAMED)
        assert [stubs(proxy.sent()) for _ in range(3)] == [[], [], []]
        # After a pause, the cache holds nothing that is not known.
        proxy.clock.now += 301
        await proxy.request(history(*"abcdefgh"), NAMED)
        assert len(stubs(proxy.sent())) == 6

    run_with_proxy(scenario)


def test_a_cache_that_holds_more_than_expected_stops_leaving_out_for_a_lost_prefix() -> None:
    """Some members of the system prompt do not count for the provider; its usage shows it."""
    usage = {"input_tokens": 300, "cache_read_input_tokens": 9_000, "output_tokens": 5}
    answer = json.dumps({"type": "message", "role": "assistant", "content": [], "usage": usage}).encode()

    async def scenario(proxy: ProxyWithClock) -> None:
        proxy.guarded.upstream.script = lambda _, wire: wire.answer(answer)
        ids = "abcdefghijkl"
        counts = []
        for number in range(8, 12):
            await proxy.request(history(*ids[:number]), NAMED, system=f"Request {number}.")
            counts.append(len(stubs(proxy.sent())))
        assert counts == [0, 7, 7, 7]

    run_with_proxy(scenario)


def test_a_batch_is_left_out_of_a_cached_prompt_only_if_that_is_set() -> None:
    long, first = [f"call{number}" for number in range(60)], [*say("go")]
    for call_id in long:
        first += [*model_turn("anthropic", (call_id, "Read")), *tool_results("anthropic", (call_id, LONG))]

    async def scenario(proxy: ProxyWithClock) -> None:
        sent: dict[bytes, list[str]] = {}
        for wanted in (b"auto", b"batches"):
            headers = ((b"x-claude-code-session-id", wanted), (b"x-context-fold-results", wanted))
            for messages in (first[:-4], first):
                await proxy.request(messages, *headers)
                sent[wanted] = stubs(proxy.sent())
        assert sent[b"auto"] == []
        assert len(sent[b"batches"]) > len(long) // 4
        assert "left out. To see it" in sent[b"batches"][0]

    run_with_proxy(scenario)


@pytest.mark.parametrize("model", [MODEL, "claude-haiku-4-5"])
def test_a_request_for_a_title_does_not_make_the_pause_shorter(model: str) -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        await proxy.request(history("a", "b", "c"), NAMED, **HEAD)
        proxy.sent()
        proxy.clock.now += 301
        await proxy.request(say("Write a title."), NAMED, model=model)
        proxy.sent()
        proxy.clock.now += 2
        await proxy.request(history("a", "b", "c"), NAMED, (b"x-context-fold-results", b"cold"), **HEAD)
        assert len(stubs(proxy.sent())) == 1

    run_with_proxy(scenario)


def test_a_fork_sends_what_its_parent_sent() -> None:
    memory = TemporaryStore()

    async def scenario(proxy: ProxyWithClock) -> None:
        parent, fork = ((b"x-claude-code-session-id", name) for name in (b"s1", b"s2"))
        await proxy.request(history("a", "b", "c"), parent)
        proxy.sent()
        proxy.clock.now += 301
        await proxy.request(history("a", "b", "c"), parent)
        sent = proxy.sent()
        assert len(stubs(sent)) == 1
        await proxy.request([*history("a", "b", "c"), *model_turn("anthropic", text="Done."), *say("And now?")], fork)
        assert proxy.sent()[: len(sent)] == sent
        await proxy.request(history("a", "b", "c", "d"), fork)
        assert proxy.sent()[: len(sent)] == sent

    async def after_a_restart(proxy: ProxyWithClock) -> None:
        await proxy.request(history("a", "b", "c", "d"), (b"x-claude-code-session-id", b"s2"))
        assert len(stubs(proxy.sent())) == 1

    run_with_proxy(scenario, ConversationRecords(memory))
    run_with_proxy(after_a_restart, ConversationRecords(memory))


def test_two_daemons_and_a_restarted_one_send_the_same_bytes() -> None:
    """Requests alternate between two daemons, each of which has a cache of its own."""
    store, clock = TemporaryStore(), Clock()
    ids = [f"call_{number}" for number in range(12)]

    async def scenario() -> None:
        daemons = [ProxyWithClock(ConversationRecords(store, clock=clock), clock) for _ in range(2)]
        restarted = ProxyWithClock(ConversationRecords(store, clock=clock), clock)
        before: list[Message] = []
        for number in range(3, len(ids) + 1):
            # Two pauses outlive the prompt cache; the other requests follow within seconds.
            is_cold = number in (5, 9)
            clock.now += 900 if is_cold else 7
            daemon = restarted if number == 8 else daemons[number % 2]
            await daemon.request(history(*ids[:number]))
            sent = daemon.sent()
            assert is_cold or sent[: len(before)] == before
            before = sent
        assert len(stubs(before)) == 7
        for daemon in (*daemons, restarted):
            await daemon.guarded.proxy.close()
            daemon.guarded.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("headers", "members", "has_stubs"),
    [
        ([], {}, True),
        ([(b"x-context-fold-results", b"off")], {}, False),
        ([], {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, False),
    ],
)
def test_a_header_or_a_longer_prompt_cache_prevents_leaving_out_results(
    headers: list[tuple[bytes, bytes]], members: Mapping[str, Any], has_stubs: bool
) -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        await proxy.request(history("a", "b", "c"), *headers, **members)
        proxy.sent()
        proxy.clock.now += 600
        await proxy.request(history("a", "b", "c"), *headers, **members)
        assert bool(stubs(proxy.sent())) == has_stubs

    run_with_proxy(scenario)


@pytest.mark.parametrize(("cached_tokens", "is_warm"), [(2_200, True), (300, False)])
def test_a_prompt_cache_that_lives_longer_than_assumed_corrects_the_assumed_life(
    cached_tokens: int, is_warm: bool
) -> None:
    """A small number of cached tokens may come from another conversation, and proves nothing."""
    store, clock = TemporaryStore(), Clock()

    async def scenario() -> None:
        daemons = [ProxyWithClock(ConversationRecords(store, clock=clock), clock) for _ in range(2)]
        usage = {"input_tokens": 2_300 - cached_tokens, "cache_read_input_tokens": cached_tokens, "output_tokens": 5}
        answer = json.dumps({"type": "message", "role": "assistant", "content": [], "usage": usage}).encode()
        for daemon in daemons:
            daemon.guarded.upstream.script = lambda _, wire: wire.answer(answer)
        # A prompt that is still cached after 400 s is taken to be cached for an hour.
        is_cold = 0 if is_warm else 1
        steps = [(0, "ab", 0), (400, "ab", 0), (399, "abc", is_cold), (3_599, "abc", is_cold), (3_602, "abc", 1)]
        for number, (pause_s, ids, left_out) in enumerate(steps):
            clock.now += pause_s
            daemon = daemons[number % 4 // 2]
            await daemon.request(history(*ids))
            assert len(stubs(daemon.sent())) == left_out
        for daemon in daemons:
            await daemon.guarded.proxy.close()
            daemon.guarded.close()

    asyncio.run(scenario())


class UnavailableForResults(ConversationRecords):
    async def keep(
        self,
        owner: str,
        conversation: str,
        results: Sequence[ArchivedResult],
        origin: ResultOrigin = ORIGIN_UNKNOWN,
    ) -> Sequence[LeftOutDecision]:
        raise StoreUnavailable("away")


class Unavailable(UnavailableForResults):
    async def remembered(self, owner: str, conversation: str) -> ConversationRecord:
        raise StoreUnavailable("away")

    async def note_request(
        self,
        owner: str,
        conversation: str,
        at: float,
        outcomes: Mapping[str, CallOutcome],
        *,
        cache_life_s: float = 0.0,
    ) -> None:
        raise StoreUnavailable("away")


@pytest.mark.parametrize("store", [UnavailableForResults, Unavailable])
def test_a_result_that_cannot_be_stored_is_not_left_out(store: type[ConversationRecords]) -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        for _ in range(2):
            client = await proxy.request(history("a", "b", "c"))
            assert client.is_complete
            assert stubs(proxy.sent()) == []
            proxy.clock.now += 9_999

    run_with_proxy(scenario, store(TemporaryStore()))


class StalledStore(TemporaryStore):
    """Answers no more when it is stalled."""

    is_stalled = False

    async def left_out(self, owner: str, conversation: str) -> list[LeftOutDecision]:
        if self.is_stalled:
            await asyncio.Event().wait()
        return await super().left_out(owner, conversation)


def test_a_store_that_stalls_changes_nothing_that_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, long = StalledStore(), "abcdefghi"
    monkeypatch.setattr(folding, "STORE_S", 0.05)

    async def scenario(proxy: ProxyWithClock) -> None:
        await proxy.request(history(*long[:3]), NAMED)
        proxy.clock.now += 301
        await proxy.request(history(*long[:5]), NAMED)
        await proxy.request(history(*long[:7]), NAMED)
        proxy.clock.now += 40
        memory.is_stalled = True
        client = await proxy.request(history(*long), NAMED)
        assert [len(stubs(proxy.sent())) for _ in range(4)] == [0, 3, 3, 3]
        assert client.receipt["reason"] is None

    async def after_a_restart(proxy: ProxyWithClock) -> None:
        proxy.clock.now += 345
        client = await proxy.request(history(*long), NAMED)
        assert client.receipt["reason"] == "store_unavailable"
        memory.is_stalled = False
        await proxy.request(history(*long), NAMED)
        assert [len(stubs(proxy.sent())) for _ in range(2)] == [0, 3]

    run_with_proxy(scenario, ConversationRecords(memory, fresh_s=0.0))
    run_with_proxy(after_a_restart, ConversationRecords(memory))


def test_a_result_that_the_host_clears_later_stays_folded() -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        inside = work("anthropic", "w")
        whole = [*say("go"), *branch("anthropic", "br_1"), *inside, *return_turn("anthropic", "br_1")]
        await proxy.request(whole)
        assert len(proxy.sent()) == len(whole) - len(inside)
        masked = [
            *say("go"),
            *branch("anthropic", "br_1", "[cleared]"),
            *inside,
            *return_turn("anthropic", "br_1", "[cleared]"),
        ]
        client = await proxy.request(masked)
        assert len(proxy.sent()) == len(whole) - len(inside)
        assert client.receipt["reason"] is None

    run_with_proxy(scenario)


@pytest.mark.parametrize(("api", "path"), [("anthropic", COUNT), ("gemini", GEMINI)])
def test_requests_that_count_tokens_and_those_to_gemini_are_folded(api: Format, path: str) -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        inside = work(api, "w")
        whole = [*say("go", api), *branch(api, "br_1"), *inside, *return_turn(api, "br_1")]
        client = await proxy.request(whole, path=path)
        assert len(proxy.sent("contents" if api == "gemini" else "messages")) == len(whole) - len(inside)
        assert client.receipt["turns_dropped"] == 1

    run_with_proxy(scenario)


def test_a_conversation_is_identified_by_the_hosts_headers_or_its_first_message() -> None:
    def of(body: Any, **headers: str) -> Any:
        by_name = {name.replace("_", "-").encode(): [value.encode()] for name, value in headers.items()}
        return conversation_of(by_name, parse_request(json.dumps(body).encode(), "anthropic"))

    marked = [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]
    first, later = {"messages": say("go")}, {"messages": [{"role": "user", "content": marked}, *work("anthropic", "w")]}
    assert of(first) == of(later)
    assert of(first) != of({"messages": say("stop")})
    assert of({"messages": []}) is None
    main = of(first, x_claude_code_session_id="s")
    assert main == of({"messages": say("else")}, x_claude_code_session_id="s")
    child = of(first, x_claude_code_session_id="s", x_claude_code_agent_id="a")
    assert (child.id != main.id, child.conversation) == (True, Conversation("s", "a"))
    # OpenCode's subagent names the session above it. Its title has another first message than the conversation.
    assert of(first, x_session_id="ses_1").conversation == Conversation("ses_1")
    assert of(first, x_session_id="ses_1") == of({"messages": say("a title")}, x_session_id="ses_1")
    assert of(first, x_session_id="ses_2", x_parent_session_id="ses_1").conversation == Conversation("ses_1", "ses_2")
    assert of(first, x_session_id="of-a-gateway") == of(first)


def test_what_a_host_tells_of_its_surroundings_does_not_make_another_conversation() -> None:
    def of(*texts: str) -> Any:
        contents = [{"role": "user", "parts": [{"text": text} for text in texts]}]
        return conversation_of({}, parse_request(json.dumps({"contents": contents}).encode(), "gemini"))

    context = "<session_context>\nToday is {}.\nThe temporary directory is: {}\n├───{}\n</session_context>"
    begun = of(context.format("Monday", "/home/a/.gemini/tmp/p", "a.txt"), "Go.")
    assert of(context.format("Tuesday", "/home/a/.gemini/tmp/p", "b.txt"), "Go.") == begun
    assert of(context.format("Monday", "/home/a/.gemini/tmp/q", "a.txt"), "Go.") != begun
    assert of(context.format("Monday", "/home/a/.gemini/tmp/p", "a.txt"), "Stop.") != begun
