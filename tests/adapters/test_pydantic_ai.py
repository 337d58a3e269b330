"""The history processor with pydantic-ai itself and its own function model."""

from __future__ import annotations

from typing import Any

from tests.adapters.days import (
    BRANCH,
    FIRST,
    FIRST_TURN,
    FOLDED,
    RETURNED,
    SECOND,
    SECOND_TURN,
    Receipts,
    check_day,
    needed,
    page,
)

needed("pydantic_ai")

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


class Run:
    """An agent with our tools, the script of its model, and what the model was given."""

    def __init__(self, **options: Any) -> None:
        self.script = [*FIRST_TURN, *SECOND_TURN]
        self.requests: list[list[Any]] = []
        self.agent = Agent(FunctionModel(self._say, model_name="gpt-5"), **options)
        for name, answer in (("context_branch", BRANCH), ("context_return", RETURNED), ("context_fold", FOLDED)):
            self.agent.tool_plain(name=name)(self._answering(answer))
        self.agent.tool_plain(name="read_page")(page)

    @staticmethod
    def _answering(answer: str) -> Any:
        def tool() -> str:
            return answer

        return tool

    def _say(self, messages: list[Any], _info: Any) -> Any:
        self.requests.append(list(messages))
        step = self.script.pop(0)
        if isinstance(step, str):
            return ModelResponse(parts=[TextPart(step)])
        return ModelResponse(parts=[ToolCallPart(call.name, call.arguments) for call in step])


def test_an_agents_history_is_folded_and_the_user_is_heard() -> None:
    receipts = Receipts()
    run = Run(capabilities=[ProcessHistory(HistoryFolding(receipts))])
    first = run.agent.run_sync(FIRST)
    assert first.output == "Shall I migrate prod?"
    assert run.agent.run_sync(SECOND, message_history=first.all_messages()).output == "Done."
    check_day([str(request) for request in run.requests], receipts)


def message(*parts: Any) -> Any:
    is_said = isinstance(parts[0], ThinkingPart | ToolCallPart | TextPart)
    return ModelResponse(parts=list(parts)) if is_said else ModelRequest(parts=list(parts))


def called(name: str, answer: str, *said: Any, beside: tuple[Any, ...] = ()) -> list[Any]:
    call = ToolCallPart(name, {}, tool_call_id=name)
    return [message(*said, call) if said else message(call), message(ToolReturnPart(name, answer, name), *beside)]


def test_messages_that_stay_are_the_same_objects_and_keep_what_is_not_known() -> None:
    spoken = UserPromptPart(SECOND)
    history = [
        message(UserPromptPart(FIRST)),
        *called("context_branch", BRANCH),
        *called("read_page", page(1), beside=(spoken,)),
        *called("context_return", RETURNED),
    ]
    history[2].metadata = {"mine": 1}
    sent = fold_history(None, history)
    assert sent[:3] == history[:3]
    assert all(one is other for one, other in zip(sent[:3], history[:3], strict=True))
    assert all(one is other for one, other in zip(sent[4:], history[5:], strict=True))
    # The user's words of the dropped message are a request of their own, the very part that it was.
    assert [part is spoken for part in sent[3].parts] == [True]


def test_thinking_that_may_be_bound_makes_the_change_wait_for_the_users_next_words() -> None:
    thought = ThinkingPart("Hm.", signature="s")
    history = [
        message(UserPromptPart(FIRST)),
        *called("context_branch", BRANCH),
        *called("read_page", page(1)),
        *called("context_return", RETURNED, thought),
    ]
    assert fold_history(None, history) == history
    later = [*history, message(TextPart("Done.")), message(UserPromptPart(SECOND))]
    sent = fold_history(None, later)
    assert page(1) not in str(sent)
    assert "Hm." not in str(sent)
    assert later[5].parts[0] is thought


def test_what_cannot_be_read_passes_as_it_came() -> None:
    history = [object()]
    assert fold_history(None, history) is history
