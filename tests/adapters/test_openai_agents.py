"""The input filter with the OpenAI Agents SDK's own runner and a scripted model."""

from __future__ import annotations

import asyncio
import json
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

import_or_skip("agents")

from agents import Agent, RunConfig, Runner, Usage, function_tool  # noqa: E402
from agents.items import ModelResponse  # noqa: E402
from agents.models.interface import Model  # noqa: E402
from agents.run_config import CallModelData, ModelInputData  # noqa: E402
from openai.types.responses import (  # noqa: E402
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from contextfold.adapters.openai_agents import InputFolding, fold_input  # noqa: E402


class ScriptedModel(Model):
    def __init__(self) -> None:
        self.script = [*FIRST_TURN, *SECOND_TURN]
        self.requests: list[list[Any]] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        self.requests.append([input] if isinstance(input, str) else list(input))
        step, number = self.script.pop(0), len(self.requests)
        output: list[Any] = []
        if isinstance(step, str):
            text = ResponseOutputText(text=step, type="output_text", annotations=[])
            output.append(
                ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
            )
        else:
            for index, call in enumerate(step):
                output.append(
                    ResponseFunctionToolCall(
                        call_id=f"call_{number}_{index}",
                        name=call.name,
                        arguments=json.dumps(call.arguments),
                        type="function_call",
                    )
                )
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


@function_tool
def read_page(number: int) -> str:
    return page_text(number)


@function_tool
def context_branch() -> str:
    return BRANCH


@function_tool
def context_return() -> str:
    return RETURNED


@function_tool
def context_fold() -> str:
    return FOLDED


def test_the_input_of_a_run_is_folded_and_its_items_stay() -> None:
    receipts, model = ReceiptList(), ScriptedModel()
    agent = Agent(name="a", model=model, tools=[read_page, context_branch, context_return, context_fold])
    config = RunConfig(call_model_input_filter=InputFolding(receipts), tracing_disabled=True)

    async def conversation() -> Any:
        first = await Runner.run(agent, FIRST_PROMPT, run_config=config)
        assert first.final_output == "Shall I migrate prod?"
        user_message: Any = {"role": "user", "content": SECOND_PROMPT}
        return await Runner.run(agent, [*first.to_input_list(), user_message], run_config=config)

    second = asyncio.run(conversation())
    assert second.final_output == "Done."
    check_requests([str(request) for request in model.requests], receipts)
    assert page_text(1) in str(second.to_input_list())


def test_items_that_stay_are_the_same_objects_and_unreadable_input_passes() -> None:
    agent: Any = Agent(name="a")
    call = {"type": "function_call", "call_id": "b", "name": "context_branch", "arguments": "{}"}
    items: list[Any] = [{"role": "user", "content": FIRST_PROMPT}, call]
    for model_data in (ModelInputData(input=items, instructions="x"), ModelInputData(input=None, instructions=None)):
        assert fold_input(CallModelData(model_data=model_data, agent=agent, context=None)) is model_data
    output = {"type": "function_call_output", "call_id": "b", "output": BRANCH}
    inside = [
        {"type": "function_call", "call_id": "r", "name": "read_page", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "r", "output": page_text(1)},
    ]
    returned = [
        {"type": "function_call", "call_id": "x", "name": "context_return", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "x", "output": RETURNED},
    ]
    model_data = ModelInputData(input=[*items, output, *inside, *returned], instructions="x")
    sent = fold_input(CallModelData(model_data=model_data, agent=agent, context=None))
    assert [id(item) for item in sent.input] == [id(item) for item in [*items, output, *returned]]
    assert sent.instructions == "x"
