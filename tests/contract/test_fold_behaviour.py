"""The behaviour of the folding tools, over every transport."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from contextfold.common.tokens import estimate
from tests.contract.transports import COUNTER, STATE, Refused, Transport, operation_meta, session_meta

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
BRANCH = re.compile(r"br_[0-9a-f]{16}")


def branch(transport: Transport, project: str, prompt: str = "Look it up.", description: str = "Look") -> Any:
    return transport.call("context_branch", description=description, prompt=prompt, project_path=project)


def fold(transport: Transport, project: str, message: str = "Found it.", **arguments: Any) -> Any:
    return transport.call("context_return", message=message, project_path=project, **arguments)


def record(transport: Transport, project: str, **arguments: Any) -> Any:
    return transport.call("context_record", project_path=project, type="tool_call", **arguments)


def error_from(transport: Transport, tool: str, **arguments: Any) -> Refused:
    with pytest.raises(Refused) as raised:
        transport.call(tool, **arguments)
    return raised.value


class TestWorkedExampleOfTheSpecification:
    def test_branch_and_return_give_the_specified_results(self, transport: Transport, project: str) -> None:
        record(transport, project, tokens=5000)
        opened = branch(transport, project, prompt="x" * 800)
        assert list(opened) == [
            "branch_id", "session_id", "parent_branch_id", "created_at", "branch_depth", "context_state",
        ]  # fmt: skip
        assert BRANCH.fullmatch(opened["branch_id"])
        assert opened["session_id"].startswith("sess_")
        assert TIME.fullmatch(opened["created_at"])
        assert (opened["parent_branch_id"], opened["branch_depth"]) == (None, 1)
        assert list(opened["context_state"].items()) == [
            ("active_branch_id", opened["branch_id"]),
            ("branch_depth", 1),
            ("total_tokens", 5200),
            ("main_thread_tokens", 5000),
            ("current_branch_tokens", 200),
        ]
        for _ in range(11):
            record(transport, project, content="y" * 2800)
        record(transport, project, content="z" * 2400)
        returned = fold(transport, project, message="s" * 800)
        assert list(returned) == [
            "folded_at", "branch_id", "parent_branch_id", "summary", "context_state", "context_health",
        ]  # fmt: skip
        assert TIME.fullmatch(returned["folded_at"])
        assert list(returned["summary"].items()) == [
            ("tokens_folded", 8500),
            ("tokens_saved", 8300),
            ("operations_count", 12),
            ("secrets_scrubbed", 0),
            ("summary_redacted", False),
        ]
        assert list(returned["context_state"].items()) == [
            ("active_branch_id", None),
            ("branch_depth", 0),
            ("total_tokens", 5200),
            ("main_thread_tokens", 5200),
            ("current_branch_tokens", 0),
        ]
        assert returned["context_health"] == {"warning": "none", "main_thread_usage": 0.16}
        assert transport.result["_meta"][STATE] == {
            "session_id": opened["session_id"],
            "active_branch_id": None,
            "branch_depth": 0,
            "total_tokens": 5200,
            "folded_tokens": 8500,
            "context_usage": 0.16,
        }
        assert list(transport.result["_meta"][STATE]) == [
            "session_id", "active_branch_id", "branch_depth", "total_tokens", "folded_tokens", "context_usage",
        ]  # fmt: skip
        assert transport.result["_meta"][COUNTER] == "v0"


class TestReadingState:
    def test_a_project_without_work_has_an_empty_session(self, transport: Transport, project: str) -> None:
        assert transport.call("context_branch_status", project_path=project) == {
            "session_id": None,
            "active_branch_id": None,
            "branch_depth": 0,
            "branch_path": ["main"],
            "token_breakdown": {"main_thread": 0, "total": 0, "folded_total": 0},
            "context_limit": 32_768,
            "usage_percent": 0,
        }
        assert transport.call("context_list_branches", project_path=project) == {
            "branches": [],
            "total_branches": 0,
            "active_branches": 0,
            "folded_branches": 0,
        }

    def test_status_shows_the_path_and_the_tokens_of_each_thread(self, transport: Transport, project: str) -> None:
        """The figures of the specification's example, to the digit."""
        record(transport, project, tokens=4000)
        branch(transport, project, prompt="p" * 800)
        record(transport, project, tokens=18_300)
        fold(transport, project, message="s" * 4000)
        outer = branch(transport, project, prompt="a" * 8_000)["branch_id"]
        record(transport, project, tokens=1000)
        inner = branch(transport, project, prompt="b" * 4800)["branch_id"]
        status = transport.call("context_branch_status", project_path=project)
        assert list(status) == [
            "session_id", "active_branch_id", "branch_depth", "branch_path", "token_breakdown", "context_limit",
            "usage_percent",
        ]  # fmt: skip
        assert status["branch_path"] == ["main", outer, inner]
        assert list(status["token_breakdown"].items()) == [
            ("main_thread", 5000), (outer, 3000), (inner, 1200), ("total", 9200), ("folded_total", 18_500),
        ]  # fmt: skip
        assert (status["context_limit"], status["usage_percent"]) == (32_768, 28)
        assert transport.result["_meta"][STATE] == {
            "session_id": status["session_id"],
            "active_branch_id": inner,
            "branch_depth": 2,
            "total_tokens": 9200,
            "folded_tokens": 18_500,
            "context_usage": 0.28,
        }
        assert (status["branch_depth"], status["active_branch_id"]) == (2, inner)

    def test_the_list_shows_when_and_how_each_branch_was_closed(self, transport: Transport, project: str) -> None:
        first = branch(transport, project, description="Search logs")["branch_id"]
        fold(transport, project)
        second = branch(transport, project)["branch_id"]
        third = branch(transport, project)["branch_id"]
        transport.call("context_rollback", project_path=project, branch_id=second)
        result = transport.call("context_list_branches", project_path=project)
        assert [list(listed) for listed in result["branches"]] == [
            ["id", "description", "status", "tokens", "created_at", "folded_at"],
            ["id", "description", "status", "tokens", "created_at"],
            ["id", "description", "status", "tokens", "created_at", "discarded_at"],
        ]
        assert [(listed["id"], listed["status"]) for listed in result["branches"]] == [
            (first, "folded"), (second, "active"), (third, "discarded"),
        ]  # fmt: skip
        assert result["branches"][0]["description"] == "Search logs"
        assert list(result.items())[1:] == [("total_branches", 3), ("active_branches", 1), ("folded_branches", 1)]


class TestReturning:
    def test_returning_from_an_outer_branch_folds_its_descendants(self, transport: Transport, project: str) -> None:
        outer = branch(transport, project)["branch_id"]
        branch(transport, project)
        branch(transport, project)
        returned = fold(transport, project, branch_id=outer)
        assert (returned["branch_id"], returned["context_state"]["active_branch_id"]) == (outer, None)
        result = transport.call("context_list_branches", project_path=project)
        assert [listed["status"] for listed in result["branches"]] == ["folded"] * 3

    def test_an_empty_message_and_a_null_branch_id_are_accepted(self, transport: Transport, project: str) -> None:
        opened = branch(transport, project)["branch_id"]
        assert fold(transport, project, message="", branch_id=None)["branch_id"] == opened

    def test_failures_in_a_branch_are_part_of_its_health(self, transport: Transport, project: str) -> None:
        branch(transport, project)
        record(transport, project, content="no", failed=True)
        for _ in range(4):
            record(transport, project, content="yes")
        assert fold(transport, project)["context_health"]["failure_rate"] == 0.2

    def test_a_full_main_thread_gives_a_warning(self, transport: Transport, project: str) -> None:
        assert record(transport, project, tokens=16_384)["context_health"]["warning"] == "none"
        assert record(transport, project, tokens=1)["context_health"]["warning"] == "medium"
        health = record(transport, project, tokens=7_000)["context_health"]
        assert health == {"warning": "high", "main_thread_usage": 0.71}


class TestRollingBack:
    def test_a_rollback_to_a_folded_branch_restores_its_beginning(self, transport: Transport, project: str) -> None:
        record(transport, project, tokens=1000)
        target = branch(transport, project, prompt="a" * 400)["branch_id"]
        record(transport, project, tokens=300)
        fold(transport, project, message="b" * 40)
        later = branch(transport, project, prompt="c" * 800)["branch_id"]
        result = transport.call("context_rollback", project_path=project, branch_id=target)
        assert list(result.items()) == [
            ("rolled_back_to", target),
            ("branches_discarded", [later]),
            # The sum is 1000 + 10 + 200 tokens before and 1000 + 100 after.
            ("tokens_recovered", 110),
            ("context_state", {"active_branch_id": target, "branch_depth": 1, "total_tokens": 1100}),
        ]
        assert list(result["context_state"]) == ["active_branch_id", "branch_depth", "total_tokens"]

    def test_recovered_tokens_are_never_negative(self, transport: Transport, project: str) -> None:
        target = branch(transport, project, prompt="a" * 4000)["branch_id"]
        fold(transport, project, message="x")
        assert transport.call("context_rollback", project_path=project, branch_id=target)["tokens_recovered"] == 0

    def test_without_restoring_only_later_branches_are_discarded(self, transport: Transport, project: str) -> None:
        target = branch(transport, project, prompt="a" * 400)["branch_id"]
        record(transport, project, tokens=300)
        branch(transport, project, prompt="c" * 800)
        result = transport.call("context_rollback", project_path=project, branch_id=target, restore_state=False)
        assert result["tokens_recovered"] == 200
        assert result["context_state"]["total_tokens"] == 400


class TestRecording:
    def test_an_operation_is_recorded_in_the_active_branch_with_its_source(
        self, transport: Transport, project: str
    ) -> None:
        result = record(transport, project, content="12345678")
        assert (result["branch_id"], result["tokens"], result["source"], result["counter"]) == (
            None,
            2,
            "reported",
            "v0",
        )
        opened = branch(transport, project)["branch_id"]
        assert record(transport, project, tokens=7)["branch_id"] == opened

    def test_given_tokens_override_those_of_the_text(self, transport: Transport, project: str) -> None:
        assert record(transport, project, content="12345678", tokens=5)["tokens"] == 5


def test_a_result_is_one_text_block_with_one_json_object(transport: Transport, project: str) -> None:
    opened = branch(transport, project)["branch_id"]
    for tool, arguments in (
        ("context_branch_status", {}),
        ("context_expand", {"branch_id": opened}),
        ("context_list_branches", {}),
    ):
        transport.call(tool, project_path=project, **arguments)
        (block,) = transport.result["content"]
        assert block.keys() == {"type", "text"}
        assert isinstance(json.loads(block["text"]), dict)


def test_an_agent_whose_requests_nobody_sees_gets_no_advice(transport: Transport, project: str) -> None:
    """What it reports itself does not say what its model is sent."""
    branch(transport, project)
    result = record(transport, project, tokens=30_000)
    assert "reminder" not in result
    assert "suggestion" not in fold(transport, project)["context_health"]


class TestFoldingRecentWork:
    def test_recent_work_is_folded_and_can_be_listed_and_expanded(self, transport: Transport, project: str) -> None:
        record(transport, project, content="grep output " * 50)
        record(transport, project, content="second look " * 50, failed=True)
        result = transport.call("context_fold", project_path=project, message="The cause is X.\nSee b.py.")
        assert list(result) == [
            "folded_at", "branch_id", "parent_branch_id", "summary", "context_state", "context_health", "session_id",
        ]  # fmt: skip
        assert result["summary"]["operations_count"] == 2
        assert result["summary"]["tokens_folded"] == 300
        assert result["context_state"]["total_tokens"] == result["context_state"]["main_thread_tokens"] == 7
        listed = transport.call("context_list_branches", project_path=project)["branches"]
        assert [(each["description"], each["status"], each["tokens"]) for each in listed] == [
            ("The cause is X.", "folded", 300)
        ]
        expanded = transport.call("context_expand", project_path=project, branch_id=result["branch_id"])
        assert [(entry["kind"], entry["text"][:11]) for entry in expanded["entries"]] == [
            ("operation", "grep output"),
            ("operation", "second look"),
            ("summary", "The cause i"),
        ]

    def test_pages_of_an_expanded_fold_lose_no_text(self, transport: Transport, project: str) -> None:
        for number in range(5):
            record(transport, project, content=f"{number} " * 300)
        folded = transport.call("context_fold", project_path=project, message="Done.")["branch_id"]
        cursor, texts = None, []
        for _ in range(40):
            page = transport.call("context_expand", project_path=project, branch_id=folded, budget=250, cursor=cursor)
            texts += [entry["text"] for entry in page["entries"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert "".join(texts) == "".join(f"{number} " * 300 for number in range(5)) + "Done."

    def test_a_fold_in_a_branch_takes_its_operations_out_of_that_branch(
        self, transport: Transport, project: str
    ) -> None:
        outer = branch(transport, project, prompt="Go.")["branch_id"]
        record(transport, project, content="inner work")
        folded = transport.call("context_fold", project_path=project, message="Inner.")
        assert folded["parent_branch_id"] == outer
        record(transport, project, content="more")
        fold(transport, project, message="All.")
        entries = transport.call("context_expand", project_path=project, branch_id=outer)["entries"]
        assert [(entry["kind"], entry["text"]) for entry in entries] == [
            ("prompt", "Go."),
            ("child", "Inner."),
            ("operation", "more"),
            ("summary", "All."),
        ]
        assert entries[1]["branch_id"] == folded["branch_id"]

    def test_a_rollback_to_a_fold_undoes_it(self, transport: Transport, project: str) -> None:
        record(transport, project, content="work " * 40)
        before = transport.call("context_branch_status", project_path=project)["token_breakdown"]
        folded = transport.call("context_fold", project_path=project, message="Done.")["branch_id"]
        result = transport.call("context_rollback", project_path=project, branch_id=folded)
        assert (result["rolled_back_to"], result["branches_discarded"]) == (folded, [folded])
        assert result["context_state"]["active_branch_id"] is None
        assert transport.call("context_branch_status", project_path=project)["token_breakdown"] == before
        (listed,) = transport.call("context_list_branches", project_path=project)["branches"]
        assert listed["status"] == "discarded"

    def test_folding_without_work_is_an_invalid_state(self, transport: Transport, project: str) -> None:
        branch(transport, project)
        with pytest.raises(Refused) as raised:
            transport.call("context_fold", project_path=project, message="Done.")
        assert raised.value.code == -32003
        assert str(raised.value.message) == "Cannot fold: nothing was done since the last fold"

    def test_a_fold_needs_a_message(self, transport: Transport, project: str) -> None:
        with pytest.raises(Refused) as raised:
            transport.call("context_fold", project_path=project, message=" ")
        assert (raised.value.code, raised.value.data["field"]) == (-32602, "message")


class TestExpanding:
    def test_a_folded_branch_is_expanded_entry_by_entry(self, transport: Transport, project: str) -> None:
        opened = branch(transport, project, prompt="Find the cause.")["branch_id"]
        record(transport, project, content="grep output", failed=True)
        branch(transport, project, prompt="Deeper.")
        child = fold(transport, project, message="Nothing below.")["branch_id"]
        fold(transport, project, message="The cause is X.")
        result = transport.call("context_expand", project_path=project, branch_id=opened)
        assert list(result) == ["branch_id", "entries", "tokens", "next_cursor"]
        assert [(entry["kind"], entry["text"]) for entry in result["entries"]] == [
            ("prompt", "Find the cause."),
            ("operation", "grep output"),
            ("child", "Nothing below."),
            ("summary", "The cause is X."),
        ]
        operation, folded_child = result["entries"][1:3]
        assert (operation["type"], operation["source"], operation["failed"]) == ("tool_call", "reported", True)
        assert folded_child["branch_id"] == child
        assert result["next_cursor"] is None

    def test_pages_fit_the_budget_and_lose_no_text(self, transport: Transport, project: str) -> None:
        texts = [f"{number} " + 'é\n"' * 700 for number in range(3)]
        opened = branch(transport, project, prompt="Go.")["branch_id"]
        for text in texts:
            record(transport, project, content=text)
        fold(transport, project, message="Done.")
        cursor, pages = None, 0
        text_of_entry: dict[int, str] = {}
        while True:
            result = transport.call("context_expand", project_path=project, branch_id=opened, budget=600, cursor=cursor)
            page_text = transport.result["content"][0]["text"]
            assert -(-len(page_text.encode()) // 4) <= 600
            for entry in result["entries"]:
                text_of_entry[entry["n"]] = text_of_entry.get(entry["n"], "") + entry["text"]
            pages += 1
            cursor = result["next_cursor"]
            if cursor is None:
                break
        assert list(text_of_entry.values()) == ["Go.", *texts, "Done."]
        assert pages > 3

    def test_entries_that_a_rollback_undid_are_marked(self, transport: Transport, project: str) -> None:
        opened = branch(transport, project)["branch_id"]
        record(transport, project, content="undone")
        transport.call("context_rollback", project_path=project, branch_id=opened)
        record(transport, project, content="kept")
        fold(transport, project)
        result = transport.call("context_expand", project_path=project, branch_id=opened)
        assert [(entry["kind"], entry.get("undone")) for entry in result["entries"]] == [
            ("prompt", None), ("operation", True), ("rollback", None), ("operation", None), ("summary", None),
        ]  # fmt: skip

    def test_a_discarded_branch_can_be_expanded(self, transport: Transport, project: str) -> None:
        first = branch(transport, project)["branch_id"]
        second = branch(transport, project, prompt="Given up.")["branch_id"]
        transport.call("context_rollback", project_path=project, branch_id=first)
        result = transport.call("context_expand", project_path=project, branch_id=second)
        assert [(entry["kind"], entry["text"], entry.get("undone")) for entry in result["entries"]] == [
            ("prompt", "Given up.", True),
            ("rollback", "", None),
        ]

    def test_expanding_an_unknown_branch_is_refused(self, transport: Transport, project: str) -> None:
        error = error_from(transport, "context_expand", project_path=project, branch_id="br_x")
        assert (error.code, error.message) == (-32602, "Branch not found: br_x")


class TestSessions:
    def test_each_session_name_has_its_own_session(self, transport: Transport, project: str) -> None:
        branch(transport, project)
        other = transport.call("context_branch_status", session_meta("review"), project_path=project)
        assert other["session_id"] is None
        opened = transport.call(
            "context_branch", session_meta("review"), description="d", prompt="p", project_path=project
        )
        status = transport.call("context_branch_status", project_path=project)
        assert status["session_id"] != opened["session_id"]
        assert status["active_branch_id"] != opened["branch_id"]
        again = transport.call("context_branch_status", session_meta("review"), project_path=project)
        assert again["session_id"] == opened["session_id"]

    @pytest.mark.parametrize("tail", ["/", "//", "/.", "/x/..", "/./x/../"])
    def test_equivalent_paths_are_the_same_project(self, transport: Transport, project: str, tail: str) -> None:
        opened = branch(transport, project)
        assert (
            transport.call("context_branch_status", project_path=project + tail)["session_id"] == opened["session_id"]
        )

    def test_a_branch_of_another_project_is_not_found(self, transport: Transport, project: str) -> None:
        opened = branch(transport, project)["branch_id"]
        branch(transport, f"{project}/other")
        error = error_from(transport, "context_return", message="m", project_path=f"{project}/other", branch_id=opened)
        assert error.message == f"Branch not found: {opened}"


class TestRepeatedCalls:
    def test_a_repeated_call_has_one_effect_and_the_same_answer(self, transport: Transport, project: str) -> None:
        call = {"description": "d", "prompt": "p", "project_path": project}
        first = transport.call("context_branch", operation_meta("op-1"), **call)
        record(transport, project, tokens=10)
        state = transport.result["_meta"][STATE]
        again = transport.call("context_branch", operation_meta("op-1"), **call)
        assert (again, transport.result["_meta"][STATE]) == (first, state)
        assert transport.call("context_list_branches", project_path=project)["total_branches"] == 1

    def test_an_operation_id_with_other_arguments_is_refused(self, transport: Transport, project: str) -> None:
        transport.call("context_record", operation_meta("op-1"), project_path=project, type="t", tokens=1)
        with pytest.raises(Refused) as raised:
            transport.call("context_record", operation_meta("op-1"), project_path=project, type="t", tokens=2)
        assert (raised.value.code, raised.value.data) == (-32602, {"field": "operation_id"})


class TestRefusals:
    def test_an_unknown_branch_is_refused(self, transport: Transport, project: str) -> None:
        session_id = branch(transport, project)["session_id"]
        for tool, arguments in (("context_return", {"message": "m"}), ("context_rollback", {})):
            error = error_from(transport, tool, project_path=project, branch_id="br_xyz", **arguments)
            assert (error.code, error.message) == (-32602, "Branch not found: br_xyz")
            assert error.data == {"branch_id": "br_xyz", "session_id": session_id}

    def test_returning_from_a_folded_branch_is_refused(self, transport: Transport, project: str) -> None:
        opened = branch(transport, project)["branch_id"]
        fold(transport, project)
        error = error_from(transport, "context_return", message="m", project_path=project, branch_id=opened)
        assert (error.code, error.message) == (-32003, "Cannot fold branch: branch is not active")
        assert error.data == {"branch_id": opened, "current_status": "folded"}

    def test_returning_without_an_open_branch_is_refused(self, transport: Transport, project: str) -> None:
        error = error_from(transport, "context_return", message="m", project_path=project)
        assert (error.code, error.message) == (-32003, "Cannot fold branch: branch is not active")
        assert error.data == {"branch_id": None, "current_status": None}

    def test_a_rollback_to_a_discarded_branch_is_refused(self, transport: Transport, project: str) -> None:
        first = branch(transport, project)["branch_id"]
        second = branch(transport, project)["branch_id"]
        transport.call("context_rollback", project_path=project, branch_id=first)
        error = error_from(transport, "context_rollback", project_path=project, branch_id=second)
        assert (error.code, error.message) == (-32003, "Cannot roll back: branch is discarded")
        assert error.data == {"branch_id": second, "current_status": "discarded"}

    def test_a_branch_beyond_the_maximum_depth_is_refused(self, transport: Transport, project: str) -> None:
        for _ in range(8):
            branch(transport, project)
        error = error_from(transport, "context_branch", description="d", prompt="p", project_path=project)
        assert error.code == -32004
        assert error.data == {"limit": "branch_depth", "value": 8}
        assert "8" in error.message

    @pytest.mark.parametrize(
        ("tool", "field", "arguments"),
        [
            ("context_branch", "description", {"description": ""}),
            ("context_branch", "description", {"description": "x" * 201}),
            ("context_branch", "description", {"description": None}),
            ("context_branch", "description", {"description": 7}),
            ("context_branch", "prompt", {"prompt": " \n"}),
            ("context_branch", "prompt", {"prompt": "x" * 10_001}),
            ("context_branch", "project_path", {"project_path": "relative/path"}),
            ("context_branch", "project_path", {"project_path": ""}),
            ("context_branch", "project_path", {"project_path": "/a\x00b"}),
            ("context_branch", "project_path", {"project_path": ["/a"]}),
            ("context_branch", "branchId", {"branchId": "br_x"}),
            ("context_return", "message", {"message": "x" * 50_001}),
            ("context_return", "branch_id", {"branch_id": 5}),
            ("context_rollback", "branch_id", {}),
            ("context_rollback", "restore_state", {"branch_id": "br_x", "restore_state": "yes"}),
            ("context_record", "content", {}),
            ("context_record", "type", {"tokens": 1, "type": ""}),
            ("context_record", "type", {"tokens": 1, "type": "a\nb"}),
            ("context_record", "tokens", {"tokens": -1}),
            ("context_record", "tokens", {"tokens": True}),
            ("context_record", "tokens", {"tokens": 1.5}),
            ("context_record", "tokens", {"tokens": 10**12}),
            ("context_record", "failed", {"tokens": 1, "failed": 1}),
            ("context_expand", "budget", {"branch_id": "br_x", "budget": 10}),
            ("context_expand", "cursor", {"branch_id": "br_x", "cursor": "3"}),
            ("context_branch_status", "project_path", {"project_path": None}),
        ],
    )
    def test_an_invalid_argument_is_refused_with_its_field(
        self, transport: Transport, project: str, tool: str, field: str, arguments: dict[str, Any]
    ) -> None:
        good: dict[str, dict[str, Any]] = {
            "context_branch": {"description": "d", "prompt": "p"},
            "context_return": {"message": "m"},
            "context_record": {"type": "t"},
        }
        error = error_from(transport, tool, **{"project_path": project, **good.get(tool, {}), **arguments})
        assert error.code == -32602
        assert error.message.startswith(f"{field} ")
        assert error.data == {"field": field}
        assert transport.call("context_branch_status", project_path=project)["session_id"] is None

    @pytest.mark.parametrize(
        ("field", "arguments"),
        [
            ("query", {}),
            ("query", {"query": " "}),
            ("query", {"query": "the of"}),
            ("query", {"query": "x" * 1_000_000}),
            ("query", {"query": 7}),
            ("budget", {"query": "q", "budget": 10}),
            ("since", {"query": "q", "since": "yesterday"}),
            ("format", {"query": "q", "format": "xml"}),
            ("project_path", {"query": "q", "project_path": "relative"}),
        ],
    )
    def test_an_invalid_recall_is_refused_with_its_field(
        self, transport: Transport, field: str, arguments: dict[str, Any]
    ) -> None:
        error = error_from(transport, "context_recall", **arguments)
        assert (error.code, error.data) == (-32602, {"field": field})

    def test_a_folded_branch_is_recalled_and_expanded(self, transport: Transport, project: str) -> None:
        branch(transport, project, description="Why the walrus sinks")
        record(transport, project, content="grep ECONNRESET /var/log/walrus.log")
        returned = fold(transport, project, message="It is too heavy.")
        branch(transport, project, description="Something else")
        fold(transport, project, message="Nothing.")
        for query in ("walrus sinking", "where did we see ECONNRESET?"):
            result = transport.call(
                "context_recall", query=query, project_path=project, budget=300, since="1d", format="json"
            )
            (recalled,) = result["folds"]
            assert (recalled["id"], recalled["session_id"], recalled["project_path"]) == (
                *(returned["branch_id"], transport.call("context_branch_status", project_path=project)["session_id"]),
                project,
            )
        assert result["selection"]["tokens_used"] <= 300
        assert recalled["why"] == [{"term": "econnreset", "in": ["operations"], "score": recalled["score"]}]
        entries = transport.call("context_expand", project_path=project, branch_id=recalled["id"])["entries"]
        assert any("ECONNRESET" in entry["text"] for entry in entries)
        elsewhere = f"{project}/elsewhere"
        assert transport.call("context_recall", query="walrus", project_path=elsewhere, format="json")["folds"] == []

    def test_recall_answers_in_text_within_its_budget(self, transport: Transport, project: str) -> None:
        branch(transport, project, description="Why the walrus sinks")
        fold(transport, project, message="It is too heavy.")
        text = transport.call("context_recall", query="walrus gnu", project_path=project, budget=200)
        first, why, _, summary, *_, expand = text.splitlines()
        assert re.fullmatch(r"br_\w+ › Why the walrus sinks \(\d{4}-\d\d-\d\d, .*, \d+ tokens\)", first)
        assert (why, summary) == ("why: walrus", "It is too heavy.")
        assert "[in no fold: gnu]" in text
        assert "context_expand" in expand
        assert estimate(text) <= 200

    def test_half_a_surrogate_pair_is_refused(self, transport: Transport, project: str) -> None:
        """It is refused by us, or earlier by a JSON parser that does not accept it."""
        error = error_from(transport, "context_branch", description="d", prompt="\ud800", project_path=project)
        assert error.code in (-32602, -32700)

    def test_texts_of_the_maximum_length_are_accepted(self, transport: Transport, project: str) -> None:
        assert branch(transport, project, description="é" * 200, prompt="é" * 10_000)
        assert fold(transport, project, message="é" * 50_000)["summary"]["tokens_saved"] == 5_000 - 25_000

    def test_secrets_are_redacted_and_counted_and_never_returned(self, transport: Transport, project: str) -> None:
        secret = "gh" + "p_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
        branch(transport, project, description=f"try {secret}", prompt=f"use {secret}")
        result = record(transport, project, content=f"token {secret} and {secret}")
        assert result["secrets_scrubbed"] == 2
        returned = fold(transport, project, message=f"it was {secret}")
        assert (returned["summary"]["secrets_scrubbed"], returned["summary"]["summary_redacted"]) == (5, True)
        listed = transport.call("context_list_branches", project_path=project)
        assert re.fullmatch(r"try \[REDACTED:[a-z0-9-]+\]", listed["branches"][0]["description"])
        expanded = transport.call("context_expand", project_path=project, branch_id=returned["branch_id"])
        assert secret not in json.dumps([listed, expanded])
        error = error_from(transport, "context_return", message="m", project_path=project, branch_id=secret)
        assert secret not in json.dumps([error.message, error.data])
