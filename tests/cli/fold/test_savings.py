"""`context fold savings`: what folding saved at the provider. `context fold expand`: the text that was folded."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from contextfold.fold.events import FoldSeen
from contextfold.fold.sent_request import RequestReport, Share, Usage
from contextfold.fold.store import ArchivedResult, LeftOutDecision
from contextfold.stores.sqlite.store import SqliteStore
from tests.cli.fold.folds import PROJECT, StoreAgent, on_terminal, without_colours
from tests.support.machine import Call
from tests.support.receipts import receipt_of

KNOWN_SECRET = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
SHAPE = [
    "session_id", "prices", "requests", "estimated_requests", "extra_requests", "warm_requests", "tokens_sent",
    "tokens_without",
    "tokens_saved", "output_tokens", "output_tokens_without", "cost_sent", "cost_without", "cost_saved", "money",
    "outcome",
    "results_dropped", "left_out", "failed_open", "folds", "costly_folds", "days", "points", "verdict",
]  # fmt: skip


def sent(
    number: int, tokens: int, usage: Usage | None, *folds: FoldSeen, dropped: int = 0, reason: str = "", **shares: Any
) -> RequestReport:
    thread = Share(shares.get("branch_id"), tokens, len(shares.get("texts", ())), shares.get("texts", ()))
    main = () if thread.branch_id is None else (Share(None, 0, 0),)
    receipt = receipt_of(tokens + dropped, tokens, *folds, reason=reason)
    return RequestReport(f"r{number}", "anthropic", "a-model", receipt, usage, (*main, thread))


class LedgerStore(NamedTuple):
    path: Path
    branch_id: str


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> LedgerStore:
    """Three projects: a fold that paid, a fold that cost more because the cache was lost, and no requests at all."""
    path = tmp_path_factory.mktemp("savings") / "state.db"
    agent = StoreAgent(path)
    agent.sent(sent(1, 5_000, Usage(0, 0, 5_000, 10)))
    branch_id = agent.branch("Find the fault", "Look at it.")
    texts = ('{"role":"user","content":"a\\tb"}', f'{{"role":"assistant","content":"key {KNOWN_SECRET}"}}')
    agent.sent(sent(2, 9_000, Usage(0, 5_000, 4_000, 10), branch_id=branch_id, texts=texts))
    agent.fold("It was the clock.")
    fold = FoldSeen(branch_id, 4_000, 5_000)
    agent.sent(sent(3, 5_100, Usage(0, 5_000, 100, 10), fold, dropped=4_000))
    agent.sent(sent(4, 5_300, None, fold, dropped=4_000, reason="shared_turn"))
    other = StoreAgent(path, "/work/other")
    unprofitable = other.branch("A short look")
    other.fold("Nothing.")
    other.sent(sent(1, 5_000, Usage(0, 0, 5_000, 0)))
    other.sent(sent(2, 5_100, Usage(0, 0, 5_100, 0), FoldSeen(unprofitable, 100, 5_000), dropped=100))
    StoreAgent(path, "/work/third").record("Read", tokens=5)
    return LedgerStore(path, branch_id)


def savings(call: Call, filled: LedgerStore, *argv: object, project: str = PROJECT) -> Any:
    ran = call("fold", "savings", "--project", project, "--store", filled.path, *argv)
    assert (ran.code, ran.err) == (0, "")
    return ran.out.decode()


def test_json_is_the_whole_ledger(call: Call, filled: LedgerStore) -> None:
    ledger = json.loads(savings(call, filled, "--json"))
    assert list(ledger) == SHAPE
    (prices,) = ledger["prices"]
    assert (prices["currency"], prices["cache_read"], prices["cache_write_5m"]) == (None, "0.1", "1.25")
    assert (ledger["requests"], ledger["estimated_requests"], ledger["failed_open"]) == (4, 1, {"shared_turn": 1})
    assert (ledger["tokens_sent"], ledger["tokens_without"], ledger["tokens_saved"]) == (24_400, 32_400, 8_000)
    output = 5 * 30
    assert ledger["cost_sent"] == 1.25 * (5_000 + 4_000 + 100 + 200) + 0.1 * (5_000 + 5_000 + 5_100) + output
    assert ledger["cost_saved"] == 800
    assert ledger["folds"] == [
        {
            "branch_id": filled.branch_id,
            "description": "Find the fault",
            "tokens_dropped": 4_000,
            "requests": 2,
            "cost_saved": 400.0 * 2,
        }
    ]
    assert [(point["sent"], point["without"]) for point in ledger["points"]] == [
        (5_000, 5_000), (9_000, 9_000), (5_100, 9_100), (5_300, 9_300),
    ]  # fmt: skip
    assert ledger["verdict"]


def test_a_pipe_gets_one_line_per_figure(call: Call, filled: LedgerStore) -> None:
    figures = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in savings(call, filled).splitlines()}
    assert (figures["project"], figures["requests"], figures["estimated"]) == (PROJECT, "4", "1")
    assert (figures["tokens-sent"], figures["tokens-without"]) == ("24400", "32400")
    assert figures["cost-saved"] == "800.00"
    assert "cache read 0.1" in figures["price"]
    assert figures["fold"].startswith(
        f"{filled.branch_id} 4000 dropped, 2 requests, 800.00 input tokens' worth saved, "
    )
    assert figures["not-folded"] == "shared_turn 1"
    assert "costly-folds" not in figures


def test_saved_is_a_cost_with_its_unit_everywhere_and_fewer_are_tokens(call: Call, filled: LedgerStore) -> None:
    def shown(name: str, project: str = PROJECT) -> str:
        return str(call("fold", name, "--project", project, "--store", filled.path).out.decode())

    assert "saved         800 input tokens' worth\n" in shown("status")
    assert shown("list").splitlines()[0].split() == ["id", "status", "tokens", "fewer", "description"]
    report = shown("report")
    assert "4 requests sent 24,400 tokens; without folding 32,400. Cost " in report
    assert " input tokens' worth: 6 % less." in report
    assert re.search(r" input tokens' worth: \d+ % more\.", shown("report", "/work/other"))
    assert "; 1 of 1 fold cost more than it saved." in shown("savings", "/work/other")


def test_a_loss_is_reported_with_the_folds_that_caused_it(call: Call, filled: LedgerStore) -> None:
    ledger = json.loads(savings(call, filled, "--json", project="/work/other"))
    assert ledger["cost_saved"] < 0
    assert [ledger["folds"][0]["branch_id"]] == ledger["costly_folds"]
    plain = savings(call, filled, project="/work/other")
    assert ["costly-folds", ledger["costly_folds"][0]] in [line.split() for line in plain.splitlines()]


def test_prices_are_settings(call: Call, filled: LedgerStore, tmp_path: Path) -> None:
    config = tmp_path / "context.toml"
    config.write_text("price_cache_read_percent = 50\nprice_cache_write_percent = 100\n")
    ledger = json.loads(savings(call, filled, "--json", "--config", config))
    assert (ledger["prices"][0]["cache_read"], ledger["prices"][0]["cache_write_5m"]) == ("0.5", "1")
    assert ledger["cost_saved"] == 0.5 * 8_000
    config.write_text("price_cache_read_percent = 1001\n")
    ran = call("fold", "savings", "--project", PROJECT, "--store", filled.path, "--config", config)
    assert (ran.code, ran.out) == (1, b"")


def test_a_session_without_requests_has_nothing_to_compare(call: Call, filled: LedgerStore) -> None:
    assert "nothing to compare" in savings(call, filled, project="/work/third")
    ran = call("fold", "savings", "--project", "/work/fourth", "--store", filled.path, "--json")
    ledger = json.loads(ran.out)
    assert (list(ledger), ledger["session_id"], ledger["requests"]) == (SHAPE, None, 0)


def test_all_prints_one_row_per_session(call: Call, filled: LedgerStore) -> None:
    sessions = json.loads(call("fold", "savings", "--all", "--store", filled.path, "--json").out)["sessions"]
    by_project = {session["project_path"]: session for session in sessions}
    assert set(by_project) == {PROJECT, "/work/other", "/work/third"}
    assert by_project[PROJECT]["cost_saved"] == 800
    rows = call("fold", "savings", "--all", "--store", filled.path).out.decode().splitlines()
    assert [row.split()[0] for row in rows if row.split()[2] == "4"] == [PROJECT]


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_the_terminal_output_fits_its_width(filled: LedgerStore, columns: int) -> None:
    output = on_terminal("fold", "savings", "--project", PROJECT, "--store", filled.path, columns=columns)
    lines = without_colours(output).splitlines()
    assert max(map(len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    assert "24,400" in text
    assert "Find the fa" in text
    assert "6 % cheaper" in text
    assert "\x1b[" in output
    other = without_colours(on_terminal("fold", "savings", "--all", "--store", filled.path, columns=columns))
    assert "/work" in other


class TestExpand:
    def test_a_folded_branch_is_printed_with_its_secrets_redacted(self, call: Call, filled: LedgerStore) -> None:
        ran = call("fold", "expand", filled.branch_id, "--project", PROJECT, "--store", filled.path)
        prompt, first, second, summary = ran.out.decode().splitlines()
        assert (ran.code, prompt, summary) == (0, "Look at it.", "It was the clock.")
        assert json.loads(first) == {"role": "user", "content": "a\tb"}
        assert json.loads(second)["content"].startswith("key [REDACTED:")
        assert KNOWN_SECRET not in ran.out.decode()

    def test_json_has_the_entries(self, call: Call, filled: LedgerStore) -> None:
        ran = call("fold", "expand", filled.branch_id[:9], "--project", PROJECT, "--store", filled.path, "--json")
        expanded = json.loads(ran.out)
        assert list(expanded) == ["branch_id", "entries"]
        assert [entry["kind"] for entry in expanded["entries"]] == ["prompt", "operation", "summary"]

    def test_undone_work_is_left_out(self, call: Call, tmp_path: Path) -> None:
        agent = StoreAgent(tmp_path / "state.db")
        branch_id = agent.branch("Try", "The prompt.")
        agent.record("Bash", "undone")
        agent.rollback(branch_id)
        agent.record("Bash", "kept")
        ran = call("fold", "expand", branch_id, "--project", PROJECT, "--store", tmp_path / "state.db")
        assert ran.out.decode().splitlines() == ["The prompt.", "kept"]

    def test_control_characters_do_not_reach_the_terminal(self, tmp_path: Path) -> None:
        agent = StoreAgent(tmp_path / "state.db")
        branch_id = agent.branch("Draw")
        agent.record("Bash", "one\x1b[31m\ttwo\nthree")
        output = on_terminal("fold", "expand", branch_id, "--project", PROJECT, "--store", tmp_path / "state.db")
        assert "\x1b" not in output
        assert "two\nthree" in output

    def test_a_missing_branch_is_exit_8(self, call: Call, filled: LedgerStore) -> None:
        ran = call("fold", "expand", "br_none", "--project", PROJECT, "--store", filled.path)
        assert (ran.code, ran.out) == (8, b"")


class TestExpandLeftOutResult:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        async def fill() -> None:
            store = SqliteStore(tmp_path / "state.db")
            for owner, text in (("local", "one\x1b[31m\ttwo\nthree"), ("ann", "hers")):
                decision = LeftOutDecision("call_1", "hash", f"res_{owner}", "[stub]", "2026-01-01T12:00:00Z")
                await store.keep_left_out(owner, "conversation", [ArchivedResult(decision, text)])
            await store.close()

        asyncio.run(fill())
        return tmp_path / "state.db"

    def test_the_text_of_a_result_is_printed(self, call: Call, path: Path) -> None:
        assert call("fold", "expand", "res_local", "--store", path, "--raw").out == b"one\x1b[31m\ttwo\nthree"
        assert b"\x1b" not in call("fold", "expand", "res_local", "--store", path).out
        printed = json.loads(call("fold", "expand", "res_local", "--store", path, "--json").out)
        assert printed == {"result_id": "res_local", "text": "one\x1b[31m\ttwo\nthree"}

    @pytest.mark.parametrize("result_id", ["res_ann", "res_none", "res_", "res_' OR 1=1", "res_*", "res_>"])
    def test_an_unknown_id_or_the_id_of_another_owner_is_refused(self, call: Call, path: Path, result_id: str) -> None:
        ran = call("fold", "expand", result_id, "--store", path)
        assert (ran.code, ran.out) == (1, b"")


@pytest.mark.parametrize("group", ["day", "project", "model", "session"])
def test_the_rows_of_every_grouping_add_up_to_the_total(call: Call, filled: LedgerStore, group: str) -> None:
    totals = json.loads(call("fold", "savings", "--by", group, "--store", filled.path, "--json").out)
    for figure in ("requests", "tokens_sent", "cost_saved"):
        assert sum(row[figure] for row in totals["groups"]) == pytest.approx(totals["total"][figure])
    group_names = {row[group] for row in totals["groups"] if row["requests"]}
    assert len(group_names) == {"day": 1, "model": 1, "project": 2, "session": 2}[group]
    lines = call("fold", "savings", "--by", group, "--store", filled.path).out.decode().splitlines()
    assert lines[0].split()[0] == group
    assert {line.split()[0] for line in lines[1 : 1 + len(group_names)]} == group_names
