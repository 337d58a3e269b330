"""What a summary leaves out: found without a model, told with the return, and never in its way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.errors import StoreUnavailable
from contextfold.fold import left_out
from contextfold.fold.archive import Entry
from contextfold.fold.callers import Caller
from contextfold.fold.loss import ITEMS_MOST, Piece, fold_loss, pieces_of
from contextfold.fold.requests import branch_request, record_request, return_request, rollback_request
from contextfold.fold.service import FoldService
from contextfold.fold.store import Trajectory
from contextfold.scrub.standard import standard_scrubber
from contextfold.stores.memory import MemoryStore

PROJECT = {"project_path": "/work/app"}
SCRUBBER = standard_scrubber()
ME = Caller("local")
READ_IT = [Piece("grep -rn leak src", "src/pool.py:41: leak_of(handle)"), Piece("cat src/pool.py", "ok")]


def lost(*pieces: Piece, prompt: str = "Go.", summary: str = "Done.") -> list[str]:
    return fold_loss(prompt, pieces, summary)


class TestWhatIsListed:
    def test_what_was_seen_and_then_used(self) -> None:
        assert lost(*READ_IT) == ["src/pool.py"]
        booked = [Piece("search", '{"flight": "HAT017", "gate": 7}'), Piece("book HAT017", "booked")]
        assert lost(*booked) == ["HAT017"]

    def test_a_file_the_model_made(self) -> None:
        assert lost(Piece("python reproduce.py", "Traceback"), Piece("ls", "")) == ["reproduce.py"]

    def test_what_stands_near_the_words_of_the_prompt(self) -> None:
        got = "the reservation is OI5L9G\n" + "\n" * 300 + "and the luggage tag is KA7I60"
        pieces = [Piece("look", got), Piece("think", "")]
        assert lost(*pieces, prompt="Find the reservations of this person.") == ["OI5L9G"]

    def test_what_the_branch_ended_with(self) -> None:
        assert lost(Piece("a", "1111-2222"), Piece("b", "the checksum: 9f3ac21e")) == ["9f3ac21e"]

    def test_what_a_nested_branch_returned(self) -> None:
        assert lost(Piece("It is set in deploy/limits.toml", "", told=True), READ_IT[0]) == ["deploy/limits.toml"]

    def test_the_likeliest_come_first_and_no_more_than_a_dozen(self) -> None:
        seen = " ".join(f"ITEM{number:03}" for number in range(30))
        listed = lost(Piece("list", seen), Piece("take ITEM017", seen))
        assert listed[0] == "ITEM017"
        assert len(listed) == ITEMS_MOST


class TestWhatIsNot:
    @pytest.mark.parametrize("summary", ["It is src/pool.py", "see pool.py.", "`SRC/POOL.PY`", "./src/pool.py:41"])
    def test_what_the_summary_says(self, summary: str) -> None:
        assert lost(*READ_IT, summary=summary) == []

    def test_what_the_prompt_says(self) -> None:
        assert lost(*READ_IT, prompt="Look into src/pool.py") == []

    def test_a_number_written_another_way(self) -> None:
        assert lost(Piece("sum", "total: 1,250,000"), Piece("pay 1250000", ""), summary="1250000 it is") == []

    def test_plain_words_and_small_numbers(self) -> None:
        assert lost(Piece("read", "The cat sat on 12 mats."), Piece("The cat sat on 12 mats.", "")) == []

    def test_names_of_members_and_numbers_of_lines(self) -> None:
        got = '{"reservation_id": null}\n   120\tpass\n121:pass'
        assert lost(Piece("get", got), Piece("reservation_id 120 121", got)) == []

    def test_what_every_result_repeats(self) -> None:
        pieces = [Piece(f"step {number}", "(in /home/me/project on HOST77)") for number in range(5)]
        assert lost(*pieces) == []

    def test_what_the_model_knew_before(self) -> None:
        assert lost(Piece("get_user sofia_kim_7287", "name: sofia_kim_7287"), Piece("ls", "")) == []

    def test_a_redaction_mark(self) -> None:
        mark = "[REDACTED:github-token]"
        assert lost(Piece("env", f"TOKEN={mark}"), Piece(f"use {mark}", "")) == []


class TestReadingATrajectory:
    def entry(self, text: str, **more: Any) -> Entry:
        return Entry("br", 1, "", **{"kind": "operation", "text": text, "type": "Bash", **more})

    def test_a_hosts_call_is_its_input_and_its_result(self) -> None:
        (piece,) = pieces_of([self.entry('{"command":"cat a.py\\nls \\"b c\\""}\nx = 1\ny = 2')])
        assert piece == Piece('{"command":"cat a.py\nls "b c""}', "x = 1\ny = 2")

    def test_messages_of_a_proxy_are_the_models_or_not(self) -> None:
        mine, theirs = '{"role":"assistant","content":"open a.py"}', '{"role":"tool","content":"x \\"y\\""}'
        (piece,) = pieces_of([self.entry(f"{mine}\n{theirs}", type="model_turns")])
        assert piece == Piece(mine, '{"role":"tool","content":"x "y""}')

    def test_messages_about_our_own_tools_are_nothing_to_miss(self) -> None:
        call = '{"role":"assistant","content":[{"type":"tool_use","name":"mcp__contextfold__context_branch"}]}'
        told = json.dumps({"branch_id": "br_0123456789abcdef", "context_state": {"total_tokens": 16384}})
        result = json.dumps({"role": "user", "content": [{"type": "tool_result", "content": told}]})
        (piece,) = pieces_of([self.entry(f"{call}\n{result}\n", type="model_turns")])
        assert (piece.written, piece.got) == ("", "")

    def test_what_the_model_said_is_its_own_and_what_it_returned_is_meant_to_last(self) -> None:
        said, returned = self.entry("I am done", type="message"), self.entry("It was X", kind="child", type="")
        assert pieces_of([said, returned]) == [Piece("I am done", ""), Piece("It was X", "", told=True)]

    def test_prompts_summaries_and_what_was_undone_are_left_out(self) -> None:
        others = [self.entry("a", kind="prompt"), self.entry("b", kind="summary"), self.entry("c", undone=True)]
        assert pieces_of(others) == []

    def test_of_a_long_text_both_ends_are_read(self) -> None:
        text = "FIRST1 " + "x " * 50_000 + " LAST99"
        (piece,) = pieces_of([self.entry(text)])
        assert len(piece.got) < 10_000
        assert lost(piece, Piece("use FIRST1 LAST99", "")) == ["FIRST1", "LAST99"]


TEXTS = st.text(alphabet=st.sampled_from("aZ9_./:-\"'\\ \n{}[],~@+é→(ß\u0130"), max_size=80)


@given(TEXTS, st.lists(st.builds(Piece, TEXTS, TEXTS, st.booleans()), max_size=6), TEXTS)
def test_whatever_was_said_the_list_is_short_the_same_again_and_not_in_the_summary(
    prompt: str, pieces: list[Piece], summary: str
) -> None:
    listed = fold_loss(prompt, pieces, summary)
    assert listed == fold_loss(prompt, pieces, summary)
    assert len(listed) <= ITEMS_MOST
    assert all(item.isprintable() and '"' not in item and " " not in item for item in listed)
    assert (
        fold_loss(prompt, pieces, f"{summary}\n" + "\n".join(listed)) == [] or len(listed) == ITEMS_MOST or not listed
    )


@given(TEXTS, TEXTS)
def test_a_trajectory_may_say_anything(text: str, kind: str) -> None:
    entries = [Entry("br", 1, "", "operation", text, type=type_) for type_ in ("model_turns", "message", kind)]
    fold_loss(text, pieces_of(entries), kind)


# ---- through the service


class Desk:
    def __init__(self, store: MemoryStore) -> None:
        self.service = FoldService(store, SCRUBBER)

    async def branch(self, prompt: str = "Go.") -> str:
        request = branch_request({"description": "d", "prompt": prompt, **PROJECT})
        return str(json.loads((await self.service.branch(ME, request)).answer)["branch_id"])

    async def does(self, *texts: str) -> None:
        for text in texts:
            await self.service.record(ME, record_request({"type": "Bash", "content": text, **PROJECT}), "reported")

    async def fold(self, message: str = "Done.", *, operation_id: str | None = None, **more: Any) -> Any:
        request = return_request({"message": message, **PROJECT, **more})
        return json.loads((await self.service.fold(Caller("local", None, operation_id), request)).answer)

    async def lost(self, message: str = "Done.", **more: Any) -> Any:
        return (await self.fold(message, **more))["context_health"].get("fold_loss")


WORK = ('{"command":"grep -rn leak src"}\nsrc/pool.py:41: leak_of(handle)', '{"command":"cat src/pool.py"}\nok')


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, a branch is looked through to its end."""
    monkeypatch.setattr(left_out, "LOOK_S", 60)


def scenario(act: Callable[[Desk], Awaitable[None]], store: MemoryStore | None = None) -> None:
    async def whole() -> None:
        kept = store or MemoryStore()
        try:
            await act(Desk(kept))
        finally:
            await kept.close()

    asyncio.run(whole())


class TestAtTheReturn:
    def test_it_is_told_with_what_to_do_and_left_out_where_nothing_is_lost(self) -> None:
        async def act(desk: Desk) -> None:
            await desk.branch()
            await desk.does(*WORK)
            health = (await desk.fold("It leaks."))["context_health"]
            assert list(health) == ["warning", "main_thread_usage", "suggestion", "fold_loss"]
            assert health["fold_loss"] == ["src/pool.py"]
            assert "fold_loss" in health["suggestion"]
            await desk.branch()
            await desk.does(*WORK)
            assert "fold_loss" not in (await desk.fold("src/pool.py leaks."))["context_health"]

        scenario(act)

    def test_what_is_lost_with_an_open_branch_below_is_told_too(self) -> None:
        async def act(desk: Desk) -> None:
            outer = await desk.branch()
            await desk.branch()
            await desk.does(*WORK)
            assert await desk.lost(branch_id=outer) == ["src/pool.py"]

        scenario(act)

    def test_work_that_was_taken_back_is_not_missed(self) -> None:
        async def act(desk: Desk) -> None:
            begun = await desk.branch()
            await desk.does(*WORK)
            await desk.service.rollback(ME, rollback_request({"branch_id": begun, **PROJECT}))
            assert await desk.lost() is None

        scenario(act)

    def test_a_call_sent_again_is_answered_as_before(self) -> None:
        async def act(desk: Desk) -> None:
            await desk.branch()
            await desk.does(*WORK)
            first = await desk.fold(operation_id="one")
            await desk.branch()
            assert await desk.fold(operation_id="one") == first
            assert first["context_health"]["fold_loss"] == ["src/pool.py"]

        scenario(act)

    def test_a_secret_is_no_item(self) -> None:
        async def act(desk: Desk) -> None:
            secret = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"
            await desk.branch()
            await desk.does(f'{{"command":"env"}}\nTOKEN={secret}', f'{{"command":"curl -H {secret}"}}\nok')
            told = await desk.fold()
            assert secret[4:] not in json.dumps(told)
            assert "fold_loss" not in told["context_health"]

        scenario(act)

    def test_of_a_long_branch_both_ends_are_read(self) -> None:
        async def act(desk: Desk) -> None:
            await desk.branch("Find the reservation")
            await desk.does('{"q":1}\nthe reservation is OI5L9G')
            for number in range(left_out.FIRST_ENTRIES + left_out.LAST_EVENTS):
                await desk.does(f"nothing at step {number % 10}")
            await desk.does('{"q":"OI5L9G"}\nchecksum 9f3ac21e')
            assert await desk.lost() == ["OI5L9G", "9f3ac21e"]

        scenario(act)


class Deaf(MemoryStore):
    """Keeps everything, and gives no trajectory back: not at all, or not in time."""

    def __init__(self, problem: Exception | None) -> None:
        super().__init__()
        self._problem = problem

    async def trajectory(self, *_args: Any, **_named: Any) -> Trajectory | None:
        if self._problem is None:
            await asyncio.Event().wait()
        raise self._problem or AssertionError


@pytest.mark.parametrize("problem", [StoreUnavailable("away"), None])
def test_an_archive_that_cannot_be_read_does_not_fail_the_return(
    problem: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_out, "LOOK_S", 0.01)

    async def act(desk: Desk) -> None:
        begun = await desk.branch()
        await desk.does(*WORK)
        told = await desk.fold("It leaks.")
        assert told["branch_id"] == begun
        assert "fold_loss" not in told["context_health"]

    scenario(act, Deaf(problem))


def test_a_branch_in_which_nothing_was_done_is_not_read() -> None:
    async def act(desk: Desk) -> None:
        begun = await desk.branch("Look at src/pool.py")
        assert (await desk.fold())["branch_id"] == begun

    scenario(act, Deaf(AssertionError("it was read")))
