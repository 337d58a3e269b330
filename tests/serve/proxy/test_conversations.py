"""What the proxy remembers of conversations: results that hosts clear, results that it leaves out, token counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from contextfold.errors import StoreUnavailable
from contextfold.fold.messages import CallOutcome, Format, LeftOutResult, parse_request
from contextfold.fold.service.stored_results import (
    ORIGIN_UNKNOWN,
    ConversationRecord,
    ConversationRecords,
    ResultOrigin,
    StoredResult,
)
from contextfold.serve.proxy.forwarding import conversation_of
from tests.fold.messages.short_histories import Message, branch, model_turn, return_turn, say, tool_results, work
from tests.serve.proxy.test_bounds import MESSAGES, Client, GuardedProxy
from tests.support.known_secrets import known_secrets
from tests.support.temporary_store import TemporaryStore

SECRET = known_secrets(1)[0]
LONG = f"{SECRET.text}\n" + "line\n" * 900
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
        self.guarded = GuardedProxy(proxy_options={"left_out": store, "clock": self.clock})

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
        assert SECRET.value not in text
        assert await memory.left_out_text("somebody", result_id) is None
        await proxy.request(history("a", "b", "c", "d", "e"))
        assert stubs(proxy.sent()) == [stub]

    async def after_a_restart(proxy: ProxyWithClock) -> None:
        await proxy.request(history("a", "b", "c", "d", "e", "f"))
        assert len(stubs(proxy.sent())) == 1

    run_with_proxy(scenario, store)
    run_with_proxy(after_a_restart, store)


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
        steps = [(0, "ab", 0), (400, "ab", 0), (399, "abc", 0 if is_warm else 1), (402, "abc", 1)]
        for number, (pause_s, ids, left_out) in enumerate(steps):
            clock.now += pause_s
            daemon = daemons[number // 2]
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
        results: Sequence[StoredResult],
        origin: ResultOrigin = ORIGIN_UNKNOWN,
    ) -> Sequence[LeftOutResult]:
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
    assert (child.id != main.id, child.host_session, child.agent) == (True, "s", "a")
