"""The history processor with pydantic-ai itself and its own function model."""

from __future__ import annotations

from typing import Any

from tests.adapters.scripted_conversation import (
    BRANCH,
    FIRST_PROMPT,
    FIRST_TURN,
    FOLDED,
    RETURNED,
    SECOND_PROMPT,
    SECOND_TURN,
    ReceiptList,
    check_requests,
    import_or_skip,
    page_text,
)

import_or_skip("pydantic_ai")

from pydantic_ai import Agent  # noqa: E402
from pydantic_ai.capabilities import ProcessHistory  # noqa: E402
from pydantic_ai.messages import (  # noqa: E402
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel  # noqa: E402

from contextfold.adapters.pydantic_ai import HistoryFolding, fold_history  # noqa: E402


class ScriptedAgent:
    """An agent with our tools, the script of its model, and the requests to the model."""

    def __init__(self, **options: Any) -> None:
        self.script = [*FIRST_TURN, *SECOND_TURN]
        self.requests: list[list[Any]] = []
        self.agent = Agent(FunctionModel(self._respond, model_name="gpt-5"), **options)
        for name, result in (("context_branch", BRANCH), ("context_return", RETURNED), ("context_fold", FOLDED)):
            self.agent.tool_plain(name=name)(self._tool_returning(result))
        self.agent.tool_plain(name="read_page")(page_text)

    @staticmethod
    def _tool_returning(result: str) -> Any:
        def tool() -> str:
            return result

        return tool

    def _respond(self, messages: list[Any], _info: Any) -> Any:
        self.requests.append(list(messages))
        step = self.script.pop(0)
        if isinstance(step, str):
            return ModelResponse(parts=[TextPart(step)])
        return ModelResponse(parts=[ToolCallPart(call.name, call.arguments) for call in step])


def test_the_history_of_an_agent_is_folded_and_user_messages_stay() -> None:
    receipts = ReceiptList()
    scripted = ScriptedAgent(capabilities=[ProcessHistory(HistoryFolding(receipts))])
    first = scripted.agent.run_sync(FIRST_PROMPT)
    assert first.output == "Shall I migrate prod?"
    assert scripted.agent.run_sync(SECOND_PROMPT, message_history=first.all_messages()).output == "Done."
    check_requests([str(request) for request in scripted.requests], receipts)


def message(*parts: Any) -> Any:
    is_response = isinstance(parts[0], ThinkingPart | ToolCallPart | TextPart)
    return ModelResponse(parts=list(parts)) if is_response else ModelRequest(parts=list(parts))


def call_with_result(name: str, result: str, *parts: Any, user_parts: tuple[Any, ...] = ()) -> list[Any]:
    call = ToolCallPart(name, {}, tool_call_id=name)
    return [message(*parts, call) if parts else message(call), message(ToolReturnPart(name, result, name), *user_parts)]


def test_messages_that_stay_are_the_same_objects_with_their_metadata() -> None:
    user_part = UserPromptPart(SECOND_PROMPT)
    history = [
        message(UserPromptPart(FIRST_PROMPT)),
        *call_with_result("context_branch", BRANCH),
        *call_with_result("read_page", page_text(1), user_parts=(user_part,)),
        *call_with_result("context_return", RETURNED),
    ]
    history[2].metadata = {"mine": 1}
    sent = fold_history(None, history)
    assert sent[:3] == history[:3]
    assert all(sent_message is message_ for sent_message, message_ in zip(sent[:3], history[:3], strict=True))
    assert all(sent_message is message_ for sent_message, message_ in zip(sent[4:], history[5:], strict=True))
    # The user's part of the dropped message becomes a request of its own, with the same part object.
    assert [part is user_part for part in sent[3].parts] == [True]


def test_thinking_that_may_be_bound_delays_a_fold_until_the_next_user_message() -> None:
    thought = ThinkingPart("Hm.", signature="s")
    history = [
        message(UserPromptPart(FIRST_PROMPT)),
        *call_with_result("context_branch", BRANCH),
        *call_with_result("read_page", page_text(1)),
        *call_with_result("context_return", RETURNED, thought),
    ]
    assert fold_history(None, history) == history
    later = [*history, message(TextPart("Done.")), message(UserPromptPart(SECOND_PROMPT))]
    sent = fold_history(None, later)
    assert page_text(1) not in str(sent)
    assert "Hm." not in str(sent)
    assert later[5].parts[0] is thought


def test_an_unreadable_history_passes_unchanged() -> None:
    history = [object()]
    assert fold_history(None, history) is history
