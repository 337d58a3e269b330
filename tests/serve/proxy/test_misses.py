"""The flight recorder: why a provider's cache did not hold a prompt, whose doing that was, and what it cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from contextfold.fold.service.conversation_records import ConversationRecord, ConversationRecords
from contextfold.fold.service.overview import Overview
from tests.fold.messages.short_histories import Message
from tests.serve.proxy.proxy_daemon import ProxyDaemon, proxy, shared_proxy
from tests.serve.proxy.raw_upstream import RawRequest, Wire
from tests.serve.proxy.test_conversations import Clock, ProxyWithClock, run_with_proxy
from tests.support.temporary_store import TemporaryStore

__all__ = ["proxy", "shared_proxy"]

LIFE_S = 300
OWNER = "local"
# Dollars for a token of Claude Sonnet 4.5: what writing costs more than reading.
EXTRA = (3.75 - 0.3) / 1e6
SUMMARY = "This session is being continued from a previous conversation that ran out of context. It fixed the clock."
REMINDER = "<system-reminder>\nThe todo list is empty.\n</system-reminder>"

Scenario = Callable[["Host"], Awaitable[None]]


def words(name: str, size: int) -> str:
    return f"{name} " + "one two three " * (size // 14)


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": words(name, 1_500), "input_schema": {"type": "object"}}


class Provider:
    """Answers with the usage of a cache that knows exact prefixes for some minutes. A token is four bytes.

    It is independent of the code that is tested: it also counts what a request had in common with the one before.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.known: dict[str, float] = {}
        self.last: Counter[str] = Counter()
        # The tokens that the last request has paid for again.
        self.lost = 0

    def __call__(self, request: RawRequest, wire: Wire) -> None:
        body = request.json
        head = [json.dumps([body["model"]]), *map(json.dumps, body.get("tools", ())), *map(json.dumps, body["system"])]
        parts = [*head, *(json.dumps(self._plain(message)) for message in body["messages"])]
        read = total = 0
        for number, part in enumerate(parts, 1):
            total += len(part) // 4
            prefix = json.dumps(parts[:number])
            if number >= len(head):
                if self.clock() - self.known.get(prefix, -1e9) <= LIFE_S:
                    read = total
                self.known[prefix] = self.clock()
        shared = sum(len(part) // 4 for part in (Counter(parts) & self.last).elements())
        self.lost, self.last = max(0, shared - read), Counter(parts)
        usage = {"input_tokens": 0, "cache_read_input_tokens": read, "cache_creation_input_tokens": total - read}
        answer = {"content": [{"type": "text", "text": "Yes."}], "usage": {**usage, "output_tokens": 7}}
        wire.answer(json.dumps(answer).encode(), "Content-Type: application/json")

    def _plain(self, message: Message) -> Message:
        """Without marks for the cache, and with a text as a block, as clients write it to mark it."""
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        unmarked = [{name: each for name, each in block.items() if name != "cache_control"} for block in blocks]
        return {**message, "content": unmarked}


class Host:
    """An agent program with one conversation, whose last message it marks for the cache, as Claude Code does."""

    def __init__(self, proxy: ProxyWithClock) -> None:
        self.proxy, self.clock = proxy, proxy.clock
        self.provider = Provider(proxy.clock)
        proxy.guarded.upstream.script = self.provider
        self.id = "s1"
        self.fold_results = b"auto"
        self.model = "claude-sonnet-4-5"
        self.tools = [tool(f"tool{number}") for number in range(8)]
        self.system = [{"type": "text", "text": words("You are a host.", 8_000)}]
        self.messages: list[Message] = []

    async def work(self, turns: int = 6) -> None:
        for _ in range(turns):
            number = len(self.messages)
            call = {"type": "tool_use", "id": f"call{number}", "name": "Read", "input": {"file_path": f"f{number}"}}
            result = {"type": "tool_result", "tool_use_id": f"call{number}", "content": words(f"file {number}", 4_000)}
            if not self.messages:
                self.messages.append({"role": "user", "content": "Fix the clock."})
            else:
                self.messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
            await self.send()

    async def send(self) -> None:
        *earlier, last = self.messages
        content = last["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        marked = [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}]
        await self.proxy.request(
            [*earlier, {**last, "content": marked}],
            (b"x-claude-code-session-id", self.id.encode()),
            (b"x-context-fold-results", self.fold_results),
            model=self.model,
            tools=self.tools,
            system=self.system,
        )
        self.clock.now += 5

    async def misses(self) -> list[dict[str, Any]]:
        overview = Overview(self.proxy.guarded.fold)
        sessions: Any = await overview.sessions(OWNER, limit=10)
        found: list[Any] = [await overview.misses(OWNER, row["session_id"]) for row in sessions["sessions"]]
        return [miss for answer in found for miss in answer["misses"]]


async def add_tool(host: Host) -> None:
    host.tools = [*host.tools, tool("mcp__tracker__search")]
    await host.work(1)


async def change_system(host: Host) -> None:
    host.system = [{"type": "text", "text": words("You are another host.", 8_000)}]
    await host.work(1)


async def edit_early_message(host: Host) -> None:
    host.messages[2] = {**host.messages[2], "content": [{**host.messages[2]["content"][0], "content": "[cleared]"}]}
    await host.work(1)


async def change_model(host: Host) -> None:
    host.model = "claude-sonnet-4-6"
    await host.work(1)


async def pause(host: Host) -> None:
    host.clock.now += LIFE_S + 1
    await host.work(1)


async def compact(host: Host) -> None:
    host.messages = [{"role": "user", "content": SUMMARY + words("It", 8_000)}]
    await host.send()


async def reorder_tools(host: Host) -> None:
    host.tools = [*host.tools[1:], host.tools[0]]
    await host.work(1)


async def move_reminder(host: Host) -> None:
    reminder = {"type": "text", "text": REMINDER}
    early = host.messages[4]
    host.messages[4] = {**early, "content": [*early["content"], reminder]}
    await host.work(1)
    host.messages[4] = early
    last = host.messages[-1]
    host.messages[-1] = {**last, "content": [*last["content"], reminder]}
    await host.send()


async def fork(host: Host) -> None:
    host.id = "s2"
    host.provider.known.clear()
    await host.work(1)


async def go_back(host: Host) -> None:
    host.provider.known.clear()
    del host.messages[5:]
    host.messages[4] = {"role": "user", "content": "No, the other clock."}
    await host.send()


PLANTED: dict[str, tuple[Scenario, str, int | None, str]] = {
    "a tool added": (add_tool, "tools", None, "the tools changed: mcp__tracker__search"),
    "a changed system prompt": (change_system, "system", None, "the system prompt changed"),
    "an edited early message": (edit_early_message, "message", 2, "message 3 was changed or removed"),
    "another model": (change_model, "model", None, "another model, which has a cache of its own"),
    "a compaction": (compact, "compaction", 0, "the history was compacted"),
    "a reordered tool list": (reorder_tools, "tool_order", None, "the tools came in another order"),
    "an earlier prompt": (go_back, "went_back", 4, "the conversation went back to message 5"),
    "a fork": (fork, "fork", None, "the conversation was forked"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_cause_of_a_miss_is_named(name: str) -> None:
    plant, cause, place, why = PLANTED[name]

    async def scenario(proxy: ProxyWithClock) -> None:
        host = Host(proxy)
        await host.work()
        assert await host.misses() == []
        await plant(host)
        (miss,) = await host.misses()
        assert (miss["cause"], miss["message"], miss["why"], miss["whose"]) == (cause, place, why, "host")
        # After a compaction, all that is new stands for what was cached.
        usage = miss["tokens_sent"] - miss["tokens_read"] if cause == "compaction" else host.provider.lost
        assert miss["tokens_lost"] == pytest.approx(usage, rel=0.03)
        assert miss["micros"] / 1e6 == pytest.approx(usage * EXTRA, rel=0.03)
        await host.work(2)
        assert len(await host.misses()) == 1

    run_with_proxy(scenario)


def test_a_pause_is_nobodys_doing() -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        host = Host(proxy)
        await host.work()
        host.clock.now += LIFE_S + 1
        await host.work(1)
        (miss,) = await host.misses()
        assert (miss["cause"], miss["whose"], miss["message"]) == ("pause", "nobody", None)
        assert miss["tokens_lost"] == pytest.approx(host.provider.lost, rel=0.03)
        assert miss["micros"] / 1e6 == pytest.approx(host.provider.lost * EXTRA, rel=0.03)

    run_with_proxy(scenario)


def test_a_reminder_that_moves_is_the_hosts() -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        host = Host(proxy)
        await host.work()
        await move_reminder(host)
        added, moved = await host.misses()
        assert {added["cause"], moved["cause"]} == {"reminder"}
        assert (moved["message"], moved["whose"]) == (4, "host")
        assert moved["tokens_lost"] == pytest.approx(host.provider.lost, rel=0.03)
        assert moved["micros"] / 1e6 == pytest.approx(host.provider.lost * EXTRA, rel=0.03)

    run_with_proxy(scenario)


def test_a_cache_that_the_provider_dropped_is_nobodys_doing() -> None:
    async def scenario(proxy: ProxyWithClock) -> None:
        host = Host(proxy)
        await host.work()
        host.provider.known.clear()
        await host.work(1)
        (miss,) = await host.misses()
        assert (miss["cause"], miss["whose"], miss["tokens_read"]) == ("provider", "nobody", 0)
        assert miss["tokens_lost"] == pytest.approx(host.provider.lost, rel=0.03)

    run_with_proxy(scenario)


def test_a_change_of_ours_in_what_was_already_sent_is_a_bug(capfd: pytest.CaptureFixture[str]) -> None:
    """The store gives another stub than before for a result that was left out."""

    class ChangedRecords(ConversationRecords):
        is_changed = False

        async def load(self, owner: str, conversation: str, *, timeout_s: float | None = None) -> ConversationRecord:
            record = await super().load(owner, conversation, timeout_s=timeout_s)
            if not self.is_changed:
                return record
            changed = tuple(each._replace(stub=each.stub.replace("left out", "gone")) for each in record.results)
            return replace(record, results=changed)

    records = ChangedRecords(TemporaryStore())

    async def scenario(proxy: ProxyWithClock) -> None:
        host = Host(proxy)
        host.fold_results = b"cold"
        await host.work()
        await pause(host)
        await host.work(1)
        (paused,) = await host.misses()
        assert paused["cause"] == "pause"
        records.is_changed = True
        await host.work(1)
        _, miss = await host.misses()
        assert (miss["cause"], miss["whose"], miss["is_bug"], miss["message"]) == ("bug", "contextfold", True, 2)
        assert miss["tokens_lost"] == pytest.approx(host.provider.lost, rel=0.03)

    run_with_proxy(scenario, records)
    assert "proxy.own_difference" in "".join(capfd.readouterr())


def test_requests_beside_the_conversation_are_no_miss() -> None:
    """A request for a title has another model, other tools and no message of the conversation."""

    async def scenario(proxy: ProxyWithClock) -> None:
        host = Host(proxy)
        await host.work(3)
        kept = host.model, host.tools, host.system, host.messages
        host.model, host.tools = "claude-haiku-4-5", []
        host.system, host.messages = host.system[:0], [{"role": "user", "content": words("A title, please.", 8_000)}]
        await host.send()
        host.model, host.tools, host.system, host.messages = kept
        await host.work(3)
        assert await host.misses() == []

    run_with_proxy(scenario)


def test_misses_are_counted_and_answered_by_the_daemon(proxy: ProxyDaemon) -> None:
    def answer(request: RawRequest, wire: Wire) -> None:
        usage = {"input_tokens": 0, "cache_creation_input_tokens": len(request.body) // 4, "output_tokens": 7}
        body = json.dumps({"content": [{"type": "text", "text": "Yes."}], "usage": usage}).encode()
        wire.answer(body, "Content-Type: application/json")

    proxy.upstream.script = answer
    tools = [tool("one"), tool("two")]
    messages: list[Message] = [{"role": "user", "content": words("Fix the clock.", 8_000)}]
    for listed in (tools, tools[::-1]):
        body = {"model": "claude-sonnet-4-5", "tools": listed, "messages": messages}
        assert proxy.post(body, x_claude_code_session_id="misses").status == 200
        proxy.upstream.next()
    rows = proxy.request("GET", "/v1/sessions").json["sessions"]
    (session_id,) = [row["session_id"] for row in rows if row["conversation"] == "misses"]
    answer_json = proxy.request("GET", f"/v1/sessions/{session_id}/misses").json
    assert [(miss["cause"], miss["whose"]) for miss in answer_json["misses"]] == [("tool_order", "host")]
    lost = proxy.metric_series("contextfold_proxy_cache_tokens_lost_total")['{cause="tool_order"}']
    assert lost == answer_json["total"]["tokens_lost"] > 2_000
    assert proxy.metric_series("contextfold_proxy_cache_misses_total")['{cause="tool_order"}'] == 1
