"""What our tools add to requests and responses, as the ledger is told it."""

from __future__ import annotations

import json

import pytest

from contextfold.common.token_counter import tokens_of
from contextfold.fold.messages import FORMATS, Format
from contextfold.fold.messages.own_share import NO_OWN_OUTPUT, OwnShare, common_prefix, definitions_tokens, own_output
from tests.fold.messages.projecting import answered, asked, back, branch, say, work

OURS = {"name": "mcp__contextfold__context_fold", "description": "Folds.", "input_schema": {"type": "object"}}
OTHER = {"name": "Read", "description": "Reads a file.", "input_schema": {"type": "object"}}


def share_of(format: str, messages: list[dict[str, object]]) -> OwnShare:
    share = OwnShare(format)
    for message in messages:
        share.take(message)
    return share


@pytest.mark.parametrize("format", FORMATS)
def test_our_calls_and_results_count_and_nothing_else_does(format: Format) -> None:
    others = [*say("go"), *work(format, "w")]
    assert share_of(format, others).tokens == 0
    ours = [*branch(format, "br_1"), *back(format, "br_1")]
    counted = share_of(format, [*others, *ours]).tokens
    assert counted == pytest.approx(tokens_of(len(json.dumps(ours))), rel=0.35)


def test_blocks_of_all_messages_count() -> None:
    messages = [*say("go"), *asked("anthropic", ("a", "Read"), ("b", "Read")), *answered("anthropic", ("a", "x"))]
    blocks = sum(len(each["content"]) if isinstance(each["content"], list) else 1 for each in messages)
    assert share_of("anthropic", messages).blocks == blocks


@pytest.mark.parametrize(
    "listed",
    [
        [OTHER, OURS],
        [{"type": "function", "function": OTHER}, {"type": "function", "function": OURS}],
        [{"functionDeclarations": [OTHER, OURS]}],
    ],
)
def test_definitions_of_our_tools_count(listed: list[object]) -> None:
    assert definitions_tokens(listed) == pytest.approx(tokens_of(len(json.dumps(OURS))), rel=0.4)
    assert definitions_tokens([OTHER]) == definitions_tokens(None) == 0


def test_a_response_of_only_our_call_is_told_from_one_with_more() -> None:
    call = {"type": "tool_use", "id": "t1", "name": OURS["name"], "input": {"message": "m" * 400}}
    other = {"type": "tool_use", "id": "t2", "name": "Read", "input": {}}
    alone = own_output("anthropic", [{"content": [{"type": "text", "text": " "}, call]}])
    assert (alone.is_all, alone.tokens > 100) == (True, True)
    for more in (other, {"type": "text", "text": "I fold."}):
        assert own_output("anthropic", [{"content": [more, call]}]) == alone._replace(is_all=False)
    assert own_output("anthropic", [{"content": [other]}]) == NO_OWN_OUTPUT


def test_a_common_prefix_ends_with_the_first_difference() -> None:
    assert [common_prefix(b"abcd", other) for other in (b"abcd", b"abXd", b"", b"abcdef", b"x")] == [4, 2, 0, 4, 0]
