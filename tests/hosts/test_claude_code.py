"""Reading the hooks of Claude Code: a whole recorded run, and events that could not be recorded."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from contextfold.common.tokens import FOLD_COUNTERS
from contextfold.errors import ArgumentInvalid
from contextfold.hosts.claude_code import answer, read
from contextfold.hosts.hook_event import HookEvent, HookOperation
from tests.hosts.payloads import RECORDED, payloads

COMMON = {"session_id": "host-1", "hook_event_name": "PostToolUse", "cwd": "/home/me/app", "prompt_id": "p1"}
# The daemon gave the recorded run this session id.
SESSION = "sess_8a20462e20f13b6d"
RECORDED_EVENTS = [(payload, read(payload)) for payload in payloads(RECORDED)]


def read_event(event: str, **members: object) -> HookEvent:
    return read({**COMMON, "hook_event_name": event, **members})


def operation_of(event: str, **members: object) -> HookOperation:
    operation = read_event(event, **members).done
    assert operation
    return operation


def tool_operation(name: str, response: object, **members: object) -> HookOperation:
    return operation_of(
        "PostToolUse", tool_name=name, tool_input={}, tool_response=response, tool_use_id="t1", **members
    )


def events_of_tool(name: str) -> list[tuple[dict[str, Any], HookEvent]]:
    return [(payload, hook_event) for payload, hook_event in RECORDED_EVENTS if payload.get("tool_name") == name]


def by_hand(tool_name: str) -> HookEvent:
    return next(read(payload) for payload in payloads("claude-code-by-hand") if payload.get("tool_name") == tool_name)


def texts_for_model() -> dict[str, str]:
    """The text that the model received for each call."""
    texts = {}
    for payload, _ in RECORDED_EVENTS:
        for call in payload.get("tool_calls", []):
            response = call["tool_response"]
            blocks = response if isinstance(response, list) else [{"text": response}]
            texts[call["tool_use_id"]] = "\n".join(block["text"] for block in blocks if "text" in block)
    return texts


def test_the_recorded_run_is_read_event_by_event() -> None:
    assert Counter(hook_event.event for _, hook_event in RECORDED_EVENTS) == {
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
    assert Counter(hook_event.event for _, hook_event in RECORDED_EVENTS if hook_event.done) == {
        # Two calls of our own tools are not counted.
        "PostToolUse": 43,
        "PostToolUseFailure": 10,
        "UserPromptSubmit": 7,
        "Stop": 6,
        "PreCompact": 2,
        "PostCompact": 2,
    }
    assert {hook_event.folder for _, hook_event in RECORDED_EVENTS} == {"/home/me/app"}
    assert [hook_event.conversation for _, hook_event in RECORDED_EVENTS] == [
        payload["session_id"] for payload, _ in RECORDED_EVENTS
    ]


def test_failed_calls_of_the_recorded_run_have_the_text_that_the_model_read() -> None:
    failed = [
        (payload, hook_event.done)
        for payload, hook_event in RECORDED_EVENTS
        if hook_event.done and hook_event.done.failed
    ]
    assert {payload["hook_event_name"] for payload, _ in failed} == {"PostToolUseFailure"}
    assert len(failed) == 10
    texts = texts_for_model()
    for payload, operation in failed:
        assert operation.content.split("\n", 1)[1] == texts[payload["tool_use_id"]]


def test_our_own_tools_are_not_counted_but_name_the_session() -> None:
    branch, returned = (events_of_tool(f"mcp__contextfold__context_{verb}") for verb in ("branch", "return"))
    assert [(hook_event.done, hook_event.session_id) for _, hook_event in branch] == [(None, SESSION)]
    assert [hook_event.done for _, hook_event in returned] == [None, None]
    assert [payload["hook_event_name"] for payload, _ in returned] == ["PostToolUse", "PostToolUseFailure"]


def test_reading_our_state_is_counted_and_names_the_session() -> None:
    [(_, hook_event)] = events_of_tool("mcp__contextfold__context_branch_status")
    assert hook_event.session_id == SESSION
    assert hook_event.done
    assert hook_event.done.type == "mcp__contextfold__context_branch_status"
    listed = by_hand("mcp__contextfold__context_list_branches")
    assert listed.done
    assert listed.session_id is None


def test_our_tools_are_recognised_under_a_plugin_name() -> None:
    hook_event = by_hand("mcp__plugin_contextfold_contextfold__context_branch")
    assert (hook_event.done, hook_event.session_id) == (None, "sess_b2d955c0ecb4416d")


def test_results_without_our_session_name_no_session() -> None:
    hook_event = by_hand("mcp__contextfold__context_record")
    assert (hook_event.done, hook_event.session_id) == (None, None)
    other = read_event(
        "PostToolUse", tool_name="mcp__x__look", tool_response='{"session_id":"sess_b2d955c0ecb4416d"}', tool_use_id="t"
    )
    assert other.session_id is None
    assert other.done


@pytest.mark.parametrize("name", ["mcp__x__context_branch_other", "context_branch", "mcp__x__mycontext_branch", "Bash"])
def test_a_tool_that_only_resembles_ours_is_counted(name: str) -> None:
    assert tool_operation(name, "text").type == name


def test_the_counted_text_is_close_to_what_the_model_reads() -> None:
    texts, count = texts_for_model(), FOLD_COUNTERS["v0"]
    ours = theirs = 0
    for payload, hook_event in RECORDED_EVENTS:
        if hook_event.done and "tool_use_id" in payload:
            arguments = json.dumps(payload["tool_input"], ensure_ascii=False, separators=(",", ":"))
            ours += count(hook_event.done.content)
            theirs += count(f"{arguments}\n{texts[payload['tool_use_id']]}")
    # The run has very short calls; see the note in tool_text.
    assert 0.88 < ours / theirs < 1.0


@pytest.mark.parametrize("name", ["Glob", "Read", "Bash", "mcp__contextfold__context_branch_status"])
def test_a_successful_call_has_the_arguments_and_the_result_of_the_model(name: str) -> None:
    payload, hook_event = events_of_tool(name)[0]
    assert hook_event.done
    arguments, read_by_model = hook_event.done.content.split("\n", 1)
    assert json.loads(arguments) == payload["tool_input"]
    assert read_by_model == texts_for_model()[payload["tool_use_id"]]


def test_an_edit_counts_neither_the_original_file_nor_the_patch() -> None:
    edited = [(p, hook_event.done) for name in ("Edit", "Write", "MultiEdit") for p, hook_event in events_of_tool(name)]
    edited += [(payload, read(payload).done) for payload in payloads("claude-code-by-hand") if "Edit" in str(payload)]
    for payload, operation in edited:
        assert operation
        result = operation.content.split("\n", 1)[1]
        assert result in {f"{verb} {payload['tool_response']['filePath']}" for verb in ("created", "updated")}
    assert len(edited) == 4


def test_a_notebook_counts_its_cells_and_an_edited_cell_its_new_source() -> None:
    contents = [
        hook_event.done.content
        for _, hook_event in events_of_tool("Read")
        if hook_event.done and "nb.ipynb" in hook_event.done.content
    ]
    assert all(content.endswith('<cell id="a1">\nprint(1)\n\n1\n') for content in contents)
    [(_, edited)] = events_of_tool("NotebookEdit")
    assert edited.done
    assert edited.done.content.endswith("\nupdated cell a1 with print(2)")


def test_pictures_and_pdfs_do_not_count_as_text() -> None:
    contents = [
        hook_event.done.content
        for payload, hook_event in RECORDED_EVENTS
        if hook_event.done and "base64" in str(payload.get("tool_response"))
    ]
    contents = [content for content in contents if "base64" not in content.split("\n", 1)[0]]
    assert contents == [
        '{"file_path":"/home/me/app/dot.png"}\n',
        '{"file_path":"/home/me/app/doc.pdf"}\n/home/me/app/doc.pdf',
    ]
    assert (
        tool_operation("Bash", {"stdout": "data:image/png;base64,iVBORw0KGgo=", "isImage": True}).content
        == "{}\nno output"
    )
    drawn = by_hand("mcp__paint__draw").done
    assert drawn
    assert drawn.content == '{"what":"dot"}\ndrawn\n<svg/>'
    unknown = tool_operation("New", {"pages": [{"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}]})
    assert unknown.content == '{}\n{"pages":[{"type":"base64","media_type":"image/png"}]}'


def test_an_output_stored_in_a_file_counts_as_its_preview() -> None:
    [operation] = [
        hook_event.done
        for payload, hook_event in RECORDED_EVENTS
        if hook_event.done and "persistedOutputPath" in str(payload)
    ]
    assert 2_000 < len(operation.content) < 2_300


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WebFetch", "An example page."),
        ("TodoWrite", "todos updated"),
        ("mcp__paint__list", "[1,2]"),
        ("mcp__paint__raw", "plain words"),
    ],
)
def test_tools_that_were_not_recorded_are_read_as_documented(name: str, text: str) -> None:
    operation = by_hand(name).done
    assert operation
    assert operation.content.split("\n", 1)[1] == text


def test_calls_of_a_subagent_name_the_subagent() -> None:
    agents = {(each.event, each.agent_type, each.agent_id) for _, each in RECORDED_EVENTS if each.agent_id}
    assert ("PostToolUse", "general-purpose", "aae2bb9837c1f5fec") in agents
    assert ("PostToolUseFailure", "general-purpose", "aae2bb9837c1f5fec") in agents
    # The agent that writes the summary has no type.
    assert ("SubagentStop", "", "ae3231f9c341ad3b5") in agents


def test_a_main_agent_with_a_type_is_no_subagent() -> None:
    assert read_event("Stop", agent_type="reviewer").agent_type == ""
    assert read_event("Stop", agent_type="reviewer", agent_id="a1\n").agent_id == "a1"


def test_a_call_of_our_tools_is_named_before_it_is_made() -> None:
    call = {"tool_name": "mcp__contextfold__context_fold", "tool_input": {"message": "m"}, "tool_use_id": "toolu_1"}
    event = read_event("PreToolUse", **call)
    assert (event.own_call, event.call_id, event.done) == (("context_fold", {"message": "m"}), "toolu_1", None)
    assert read_event("PreToolUse", tool_name="Bash", tool_input={}).own_call is None


def test_a_call_without_an_id_is_omitted_from_a_batch() -> None:
    refusal = "<tool_use_error>No.</tool_use_error>"
    calls = [
        {"tool_name": "Bash", "tool_response": refusal},
        {"tool_name": "Read", "tool_use_id": "t", "tool_response": refusal},
    ]
    assert [operation.type for operation in read_event("PostToolBatch", tool_calls=calls).batch] == ["Read"]


def test_calls_that_did_not_run_are_only_in_the_batch() -> None:
    call_ids = {hook_event.done.call_id for _, hook_event in RECORDED_EVENTS if hook_event.done}
    not_run = [operation for _, hook_event in RECORDED_EVENTS for operation in hook_event.batch]
    assert not call_ids & {operation.call_id for operation in not_run}
    assert all(operation.failed for operation in not_run)
    assert Counter(operation.type for operation in not_run) == {
        "Grep": 4,
        "Edit": 2,
        "TodoWrite": 2,
        "Glob": 1,
        "NoSuchTool": 1,
        "Bash": 1,
        "NotebookEdit": 1,
        "Skill": 1,
    }


def test_a_batch_omits_calls_that_have_their_own_hook() -> None:
    assert sum(len(payload.get("tool_calls", ())) for payload, _ in RECORDED_EVENTS) == 71
    assert sum(len(hook_event.batch) for _, hook_event in RECORDED_EVENTS) == 13
    sessions = {hook_event.session_id for _, hook_event in RECORDED_EVENTS if hook_event.event == "PostToolBatch"}
    assert sessions == {None, SESSION}


def test_a_repeated_call_has_the_same_id_and_another_call_another_id() -> None:
    first, repeated, other_session = (
        tool_operation("Bash", {"stdout": "x"}, session_id=s).call_id for s in ("a", "a", "b")
    )
    assert first == repeated != other_session
    assert operation_of("PostToolUse", tool_name="Bash", tool_response="x").call_id == ""


def test_the_last_message_of_a_turn_has_one_id() -> None:
    operation = operation_of("Stop", last_assistant_message="Ready.", stop_hook_active=False)
    assert (operation.type, operation.content, operation.failed) == ("message", "Ready.", False)
    assert operation.call_id == operation_of("Stop", last_assistant_message="Ready.", stop_hook_active=True).call_id
    assert operation.call_id != operation_of("Stop", last_assistant_message="Ready.", prompt_id="p2").call_id
    assert read_event("Stop").done is None
    assert read_event("SubagentStop", last_assistant_message="Ready.", agent_id="a").done is None


def test_the_start_of_a_compaction_has_no_tokens() -> None:
    compactions = [
        hook_event.done for _, hook_event in RECORDED_EVENTS if hook_event.done and hook_event.done.type == "compaction"
    ]
    assert [operation.content for operation in compactions] == ["manual: keep the names", "auto"]
    assert all(operation.tokens == 0 and operation.call_id for operation in compactions)


@pytest.mark.parametrize(
    ("summary_text", "expected"),
    [
        ("<analysis>I look back.</analysis>\n\n<summary>It is fixed.</summary>", "<summary>It is fixed.</summary>"),
        ("It is fixed.", "It is fixed."),
        ("It says </analysis> somewhere.", "It says </analysis> somewhere."),
        ("<analysis>I look back.</analysis>", "<analysis>I look back.</analysis>"),
        ("<analysis>I look back.</analysis>\n", "<analysis>I look back.</analysis>\n"),
        ("<analysis>I look back", "<analysis>I look back"),
    ],
)
def test_a_compaction_leaves_its_summary_without_the_analysis(summary_text: str, expected: str) -> None:
    operation = operation_of("PostCompact", trigger="auto", compact_summary=summary_text)
    assert (operation.type, operation.content, operation.tokens, operation.compacts) == (
        "compaction_summary",
        expected,
        None,
        True,
    )
    assert operation.call_id == operation_of("PostCompact", trigger="auto", compact_summary=summary_text).call_id
    assert (
        operation.call_id
        == operation_of("PostCompact", trigger="auto", compact_summary=summary_text, prompt_id="p2").call_id
    )
    assert (
        operation.call_id != operation_of("PostCompact", trigger="auto", compact_summary=f"{summary_text} Now.").call_id
    )


@pytest.mark.parametrize("summary", ["", None, 7, ["text"]])
def test_a_compaction_without_a_summary_is_no_operation(summary: object) -> None:
    assert read_event("PostCompact", trigger="auto", compact_summary=summary).done is None


def test_an_unknown_event_is_no_error() -> None:
    assert read_event("MessageDisplay", something=[1]) == HookEvent("other", "host-1", folder="/home/me/app")


def test_a_line_is_added_only_to_events_that_accept_one() -> None:
    events = {payload["hook_event_name"] for payload, _ in RECORDED_EVENTS} | {"other"}
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
def test_an_invalid_payload_is_refused_with_its_field(field: str, value: object) -> None:
    with pytest.raises(ArgumentInvalid) as raised:
        read({**COMMON, "tool_name": "Bash", "tool_use_id": "t", field: value})
    assert raised.value.data["field"] == field


@pytest.mark.parametrize("calls", [None, {}, "x", [{"tool_name": "Bash", "tool_use_id": "t"}] * 1_001])
def test_an_invalid_batch_is_refused(calls: object) -> None:
    with pytest.raises(ArgumentInvalid):
        read_event("PostToolBatch", tool_calls=calls)


def test_a_tool_name_must_be_short_and_printable() -> None:
    assert tool_operation(" mcp__server__" + "c" * 115, "x").type == "mcp__server__" + "c" * 115
    for name in ("a\nb", "a\x00b", "c" * 129):
        assert tool_operation(name, "x").type == "unnamed"


def test_lone_surrogates_are_replaced() -> None:
    operation = tool_operation("Bash", {"stdout": "a\ud800b \ud83d\ude00"}, cwd="/home/\udfff")
    assert operation.content == "{}\na\ufffdb \U0001f600"
    assert read_event("Stop", session_id="s\ud800", last_assistant_message="\udc00").done == HookOperation(
        "message", "\ufffd", call_id=operation_of("Stop", session_id="s\ufffd", last_assistant_message="\ufffd").call_id
    )
