"""`context fold misses`: why the provider's cache did not hold a part of a session's requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contextfold.fold.events import PrefixMiss
from contextfold.fold.sent_request import RequestReport, Share, Usage
from tests.cli.fold.folds import PROJECT, StoreAgent
from tests.support.machine import Call
from tests.support.receipts import receipt_of

KNOWN_SECRET = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
MODEL = "claude-sonnet-4-5"


def sent(number: int, usage: Usage, *misses: PrefixMiss, model: str = MODEL) -> RequestReport:
    share = Share(None, 5_000, 0)
    return RequestReport(f"r{number}", "anthropic", model, receipt_of(5_000, 5_000), usage, (share,), misses=misses)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "state.db"
    agent = StoreAgent(path)
    agent.sent(sent(1, Usage(0, 0, 5_000, 10)))
    agent.sent(sent(2, Usage(0, 1_000, 5_000, 10), PrefixMiss("message", 4_000, place=2)))
    agent.sent(sent(3, Usage(0, 0, 7_000, 10, 7_000), PrefixMiss("tools", 6_000, detail=KNOWN_SECRET)))
    other = StoreAgent(path, "/work/other")
    other.sent(sent(1, Usage(5_000, 0, 0, 10), PrefixMiss("bug", 2_000, place=0, is_ours=True), model="a-model"))
    StoreAgent(path, "/work/third").sent(sent(1, Usage(0, 0, 5_000, 10)))
    return path


def test_each_miss_is_listed_with_its_cost(call: Call, store: Path) -> None:
    ran = call("fold", "misses", "--json", "--project", PROJECT, "--store", store)
    assert (ran.code, ran.err) == (0, "")
    answer = json.loads(ran.out)
    message, tools = answer["misses"]
    assert (message["why"], message["whose"], message["tokens_read"]) == (
        "message 3 was changed or removed",
        "host",
        1_000,
    )
    # Written for five minutes instead of read, then for an hour, in millionths of a dollar.
    assert (message["micros"], tools["micros"]) == (4_000 * (3.75 - 0.3), 6_000 * (6 - 0.3))
    assert answer["total"] == {"misses": 2, "tokens_lost": 10_000, "cost": 16_000.0, "micros": 48_000}
    assert [each["cause"] for each in answer["causes"]] == ["tools", "message"]
    assert KNOWN_SECRET not in ran.out.decode()


def test_the_table_says_why_and_what_it_cost(call: Call, store: Path) -> None:
    shown = call("fold", "misses", "--project", PROJECT, "--store", store).out.decode()
    assert "message 3 was changed or removed" in shown
    assert "$0.05" in shown
    bug = call("fold", "misses", "--project", "/work/other", "--store", store).out.decode()
    assert "the proxy changed message 1" in bug
    assert "input tokens' worth" in bug
    whole = call("fold", "misses", "--project", "/work/third", "--store", store).out.decode()
    assert "lost nothing" in whole


def test_all_sessions_are_listed_with_their_sums(call: Call, store: Path) -> None:
    rows = json.loads(call("fold", "misses", "--all", "--json", "--store", store).out)["sessions"]
    assert {(row["project_path"], row["total"]["misses"]) for row in rows} == {
        (PROJECT, 2),
        ("/work/other", 1),
        ("/work/third", 0),
    }
    assert "/work/other" in call("fold", "misses", "--all", "--store", store).out.decode()


def test_a_project_without_a_session_is_an_error(call: Call, store: Path) -> None:
    assert call("fold", "misses", "--project", "/work/none", "--store", store).code != 0
