"""Reading Claude Code's hooks: the whole recorded run, and events that could not be recorded."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from contextfold.common.token_counter import COUNTERS
from contextfold.errors import ArgumentInvalid
from contextfold.hosts.claude_code import answer, read
from contextfold.hosts.hook_event import HookEvent, HookOperation
from tests.hosts.payloads import RECORDED, payloads

COMMON = {"session_id": "host-1", "hook_event_name": "PostToolUse", "cwd": "/home/me/app", "prompt_id": "p1"}
# The daemon gave the recorded run this session id.
SESSION = "sess_8a20462e20f13b6d"
RUN = [(payload, read(payload)) for payload in payloads(RECORDED)]


def observed(event: str, **members: object) -> HookEvent:
    return read({**COMMON, "hook_event_name": event, **members})


def done(event: str, **members: object) -> HookOperation:
    told = observed(event, **members).done
    assert told
    return told


def tool(name: str, response: object, **members: object) -> HookOperation:
    return done("PostToolUse", tool_name=name, tool_input={}, tool_response=response, tool_use_id="t1", **members)


def named(name: str) -> list[tuple[dict[str, Any], HookEvent]]:
    return [(payload, seen) for payload, seen in RUN if payload.get("tool_name") == name]


def by_hand(tool_name: str) -> HookEvent:
    return next(read(payload) for payload in payloads("claude-code-by-hand") if payload.get("tool_name") == tool_name)


def model_reads() -> dict[str, str]:
    """The text that the model received for each call."""
    texts = {}
    for payload, _ in RUN:
        for call in payload.get("tool_calls", []):
            given = call["tool_response"]
            blocks = given if isinstance(given, list) else [{"text": given}]
            texts[call["tool_use_id"]] = "\n".join(block["text"] for block in blocks if "text" in block)
    return texts


def test_the_recorded_run_is_read_event_by_event() -> None:
    assert Counter(seen.event for _, seen in RUN) == {
        "PostToolBatch": 69,
        "PostToolUse": 45,
        "PostToolUseFailure": 11,
        "SessionStart": 8,
        "UserPromptSubmit": 7,
        "Stop": 6,
        "SessionEnd": 6,
        "SubagentStop": 4,
        "SubagentStart": 2,
        "PreCompact": 2,
        "PostCompact": 2,
    }
    assert Counter(seen.event for _, seen in RUN if seen.done) == {
        # Two calls of our own tools are not counted.
        "PostToolUse": 43,
        "PostToolUseFailure": 10,
        "UserPromptSubmit": 7,
        "Stop": 6,
        "PreCompact": 2,
        "PostCompact": 2,
    }
    assert {seen.folder for _, seen in RUN} == {"/home/me/app"}
    assert [seen.conversation for _, seen in RUN] == [payload["session_id"] for payload, _ in RUN]


def test_what_failed_in_the_recorded_run_is_failed_with_the_models_own_text() -> None:
    failed = [(payload, seen.done) for payload, seen in RUN if seen.done and seen.done.failed]
    assert {payload["hook_event_name"] for payload, _ in failed} == {"PostToolUseFailure"}
    assert len(failed) == 10
    texts = model_reads()
    for payload, told in failed:
        assert told.content.split("\n", 1)[1] == texts[payload["tool_use_id"]]


def test_our_own_tools_are_not_counted_but_name_the_session() -> None:
    branch, returned = (named(f"mcp__contextfold__context_{verb}") for verb in ("branch", "return"))
    assert [(seen.done, seen.session_id) for _, seen in branch] == [(None, SESSION)]
    assert [seen.done for _, seen in returned] == [None, None]
    assert [payload["hook_event_name"] for payload, _ in returned] == ["PostToolUse", "PostToolUseFailure"]


def test_a_look_at_our_state_is_counted_and_names_the_session() -> None:
    [(_, seen)] = named("mcp__contextfold__context_branch_status")
    assert seen.session_id == SESSION
    assert seen.done
    assert seen.done.type == "mcp__contextfold__context_branch_status"
    listed = by_hand("mcp__contextfold__context_list_branches")
    assert listed.done
    assert listed.session_id is None


def test_our_tools_are_known_under_a_plugins_name_too() -> None:
    seen = by_hand("mcp__plugin_contextfold_contextfold__context_branch")
    assert (seen.done, seen.session_id) == (None, "sess_b2d955c0ecb4416d")


def test_what_is_no_session_of_ours_names_none() -> None:
    seen = by_hand("mcp__contextfold__context_record")
    assert (seen.done, seen.session_id) == (None, None)
    other = observed(
        "PostToolUse", tool_name="mcp__x__look", tool_response='{"session_id":"sess_b2d955c0ecb4416d"}', tool_use_id="t"
    )
    assert other.session_id is None
    assert other.done


@pytest.mark.parametrize("name", ["mcp__x__context_branch_other", "context_branch", "mcp__x__mycontext_branch", "Bash"])
def test_a_tool_that_only_resembles_ours_is_counted(name: str) -> None:
    assert tool(name, "text").type == name


def test_a_count_comes_close_to_what_the_model_reads() -> None:
    texts, count = model_reads(), COUNTERS["v0"]
    ours = theirs = 0
    for payload, seen in RUN:
        if seen.done and "tool_use_id" in payload:
            wrote = json.dumps(payload["tool_input"], ensure_ascii=False, separators=(",", ":"))
            ours += count(seen.done.content)
            theirs += count(f"{wrote}\n{texts[payload['tool_use_id']]}")
    # The run has very short calls; see the note in tool_text.
    assert 0.88 < ours / theirs < 1.0


@pytest.mark.parametrize("name", ["Glob", "Read", "Bash", "mcp__contextfold__context_branch_status"])
def test_a_successful_call_is_what_the_model_wrote_and_read(name: str) -> None:
    payload, seen = named(name)[0]
    assert seen.done
    wrote, read_by_model = seen.done.content.split("\n", 1)
    assert json.loads(wrote) == payload["tool_input"]
    assert read_by_model == model_reads()[payload["tool_use_id"]]


def test_an_edit_does_not_count_the_file_before_it_nor_the_patch() -> None:
    edited = [(p, seen.done) for name in ("Edit", "Write", "MultiEdit") for p, seen in named(name)]
    edited += [(payload, read(payload).done) for payload in payloads("claude-code-by-hand") if "Edit" in str(payload)]
    for payload, told in edited:
        assert told
        result = told.content.split("\n", 1)[1]
        assert result in {f"{verb} {payload['tool_response']['filePath']}" for verb in ("created", "updated")}
    assert len(edited) == 4


def test_a_notebook_counts_its_cells_and_an_edited_cell_its_new_source() -> None:
    contents = [seen.done.content for _, seen in named("Read") if seen.done and "nb.ipynb" in seen.done.content]
    assert all(content.endswith('<cell id="a1">\nprint(1)\n\n1\n') for content in contents)
    [(_, edited)] = named("NotebookEdit")
    assert edited.done
    assert edited.done.content.endswith("\nupdated cell a1 with print(2)")


def test_pictures_and_pdfs_do_not_count_as_text() -> None:
    contents = [
        seen.done.content for payload, seen in RUN if seen.done and "base64" in str(payload.get("tool_response"))
    ]
    contents = [content for content in contents if "base64" not in content.split("\n", 1)[0]]
    assert contents == [
        '{"file_path":"/home/me/app/dot.png"}\n',
        '{"file_path":"/home/me/app/doc.pdf"}\n/home/me/app/doc.pdf',
    ]
    assert tool("Bash", {"stdout": "data:image/png;base64,iVBORw0KGgo=", "isImage": True}).content == "{}\nno output"
    drawn = by_hand("mcp__paint__draw").done
    assert drawn
    assert drawn.content == '{"what":"dot"}\ndrawn\n<svg/>'
    unknown = tool("New", {"pages": [{"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}]})
    assert unknown.content == '{}\n{"pages":[{"type":"base64","media_type":"image/png"}]}'


def test_an_output_put_into_a_file_counts_as_the_preview_that_the_model_reads() -> None:
    [told] = [seen.done for payload, seen in RUN if seen.done and "persistedOutputPath" in str(payload)]
    assert 2_000 < len(told.content) < 2_300


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WebFetch", "An example page."),
        ("TodoWrite", "todos updated"),
        ("mcp__paint__list", "[1,2]"),
        ("mcp__paint__raw", "plain words"),
    ],
)
def test_what_could_not_be_recorded_is_read_as_documented(name: str, text: str) -> None:
    told = by_hand(name).done
    assert told
    assert told.content.split("\n", 1)[1] == text


def test_a_subagents_calls_name_it() -> None:
    agents = {(seen.event, seen.agent) for _, seen in RUN if seen.agent}
    assert ("PostToolUse", "general-purpose aae2bb9837c1f5fec") in agents
    assert ("PostToolUseFailure", "general-purpose aae2bb9837c1f5fec") in agents
    # The agent that writes the summary has no type.
    assert ("SubagentStop", "ae3231f9c341ad3b5") in agents


def test_the_main_agent_may_have_a_type_and_is_no_subagent() -> None:
    assert observed("Stop", agent_type="reviewer").agent is None
    assert observed("Stop", agent_type="reviewer", agent_id="a1\n").agent == "reviewer a1"


def test_a_call_without_an_id_is_left_out_of_a_batch() -> None:
    refused = "<tool_use_error>No.</tool_use_error>"
    calls = [
        {"tool_name": "Bash", "tool_response": refused},
        {"tool_name": "Read", "tool_use_id": "t", "tool_response": refused},
    ]
    assert [told.type for told in observed("PostToolBatch", tool_calls=calls).batch] == ["Read"]


def test_calls_that_never_ran_are_in_the_batch_alone() -> None:
    ran = {seen.done.call_id for _, seen in RUN if seen.done}
    never = [told for _, seen in RUN for told in seen.batch]
    assert not ran & {told.call_id for told in never}
    assert all(told.failed for told in never)
    assert Counter(told.type for told in never) == {
        "Grep": 4,
        "Edit": 2,
        "TodoWrite": 2,
        "Glob": 1,
        "NoSuchTool": 1,
        "Bash": 1,
        "NotebookEdit": 1,
        "Skill": 1,
    }


def test_a_batch_leaves_calls_that_ran_to_their_own_hooks_in_whatever_order_they_come() -> None:
    assert sum(len(payload.get("tool_calls", ())) for payload, _ in RUN) == 71
    assert sum(len(seen.batch) for _, seen in RUN) == 13
    sessions = {seen.session_id for _, seen in RUN if seen.event == "PostToolBatch"}
    assert sessions == {None, SESSION}


def test_a_call_told_twice_has_one_id_and_two_calls_have_two() -> None:
    one, again, other = (tool("Bash", {"stdout": "x"}, session_id=s).call_id for s in ("a", "a", "b"))
    assert one == again != other
    assert done("PostToolUse", tool_name="Bash", tool_response="x").call_id == ""


def test_the_last_message_of_a_turn_is_told_once() -> None:
    told = done("Stop", last_assistant_message="Ready.", stop_hook_active=False)
    assert (told.type, told.content, told.failed) == ("message", "Ready.", False)
    assert told.call_id == done("Stop", last_assistant_message="Ready.", stop_hook_active=True).call_id
    assert told.call_id != done("Stop", last_assistant_message="Ready.", prompt_id="p2").call_id
    assert observed("Stop").done is None
    assert observed("SubagentStop", last_assistant_message="Ready.", agent_id="a").done is None


def test_a_compaction_counts_for_nothing() -> None:
    compactions = [seen.done for _, seen in RUN if seen.done and seen.done.type == "compaction"]
    assert [told.content for told in compactions] == ["manual: keep the names", "auto"]
    assert all(told.tokens == 0 and told.call_id for told in compactions)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("<analysis>I look back.</analysis>\n\n<summary>It is fixed.</summary>", "<summary>It is fixed.</summary>"),
        ("It is fixed.", "It is fixed."),
        ("It says </analysis> somewhere.", "It says </analysis> somewhere."),
        ("<analysis>I look back.</analysis>", "<analysis>I look back.</analysis>"),
        ("<analysis>I look back.</analysis>\n", "<analysis>I look back.</analysis>\n"),
        ("<analysis>I look back", "<analysis>I look back"),
    ],
)
def test_what_a_compaction_leaves_is_its_summary(written: str, kept: str) -> None:
    told = done("PostCompact", trigger="auto", compact_summary=written)
    assert (told.type, told.content, told.tokens, told.compacts) == ("compaction_summary", kept, None, True)
    assert told.call_id == done("PostCompact", trigger="auto", compact_summary=written).call_id
    assert told.call_id == done("PostCompact", trigger="auto", compact_summary=written, prompt_id="p2").call_id
    assert told.call_id != done("PostCompact", trigger="auto", compact_summary=f"{written} Now.").call_id


@pytest.mark.parametrize("summary", ["", None, 7, ["text"]])
def test_a_compaction_that_tells_no_summary_changes_no_figure(summary: object) -> None:
    assert observed("PostCompact", trigger="auto", compact_summary=summary).done is None


def test_an_event_nobody_knows_is_no_error() -> None:
    assert observed("MessageDisplay", something=[1]) == HookEvent("other", "host-1", folder="/home/me/app")


def test_a_line_is_added_only_where_the_host_takes_it() -> None:
    events = {payload["hook_event_name"] for payload, _ in RUN} | {"other"}
    added = {event for event in events if answer(event, "line")}
    assert added == {"PostToolUse", "PostToolUseFailure", "SessionStart", "UserPromptSubmit"}
    assert answer("PostToolUse", "line") == {
        "hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "line"}
    }
    assert answer("Stop", "line") == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hook_event_name", None),
        ("hook_event_name", 1),
        ("session_id", None),
        ("session_id", ""),
        ("session_id", ["x"]),
        ("session_id", "x" * 201),
        ("cwd", 7),
        ("tool_name", None),
        ("tool_name", " "),
    ],
)
def test_what_is_no_payload_is_refused_by_the_fields_name(field: str, value: object) -> None:
    with pytest.raises(ArgumentInvalid) as refused:
        read({**COMMON, "tool_name": "Bash", "tool_use_id": "t", field: value})
    assert refused.value.data["field"] == field


@pytest.mark.parametrize("calls", [None, {}, "x", [{"tool_name": "Bash", "tool_use_id": "t"}] * 1_001])
def test_a_batch_that_is_none_is_refused(calls: object) -> None:
    with pytest.raises(ArgumentInvalid):
        observed("PostToolBatch", tool_calls=calls)


def test_a_tools_name_is_short_and_printable() -> None:
    assert tool(" mcp__server__" + "c" * 115, "x").type == "mcp__server__" + "c" * 115
    for odd in ("a\nb", "a\x00b", "c" * 129):
        assert tool(odd, "x").type == "unnamed"


def test_text_that_no_encoding_has_is_replaced() -> None:
    told = tool("Bash", {"stdout": "a\ud800b \ud83d\ude00"}, cwd="/home/\udfff")
    assert told.content == "{}\na\ufffdb \U0001f600"
    assert observed("Stop", session_id="s\ud800", last_assistant_message="\udc00").done == HookOperation(
        "message", "\ufffd", call_id=done("Stop", session_id="s\ufffd", last_assistant_message="\ufffd").call_id
    )
