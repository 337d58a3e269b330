"""The providers' own Python clients send requests through the proxy and notice no difference."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from contextfold.fold.messages import project
from tests.fold.messages.short_histories import branch_result, return_turn, tool_results, work
from tests.serve.proxy.model_clients import APIS, KEY, Conversation, Model, folded_conversation, package_of
from tests.support.daemon import Daemon, Http, HttpAgent
from tests.support.upstream import MODEL, Script, Upstream, plain
from tests.support.upstream_answers import Call, Fail, Say
from tests.support.waiting import until

# Every worker of pytest imports this module, and these packages take seconds.
if TYPE_CHECKING:
    import anthropic
    import openai


@pytest.fixture(scope="module")
def provider() -> Iterator[Upstream]:
    with Upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def daemon(provider: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("clients"), *provider.argv()) as daemon:
        yield daemon


@pytest.fixture
def upstream(provider: Upstream) -> Iterator[Upstream]:
    """The provider in its initial state. Every request must have followed the provider's rules."""
    provider.requests.clear()
    provider.script, provider.compresses, provider.resume_stream, provider.end_stream = plain, True, None, None
    yield provider
    assert provider.violations == []


@pytest.fixture
def claude(daemon: Daemon) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=f"{daemon.url}/proxy/anthropic", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(daemon: Daemon) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{daemon.url}/proxy/openai/v1", api_key=KEY, max_retries=0) as client:
        yield client


def always(answer: Say | Fail) -> Script:
    return lambda _body, _api: answer


READ = Call("call_1", "read_file", {"path": 'ä "b"', "lines": [1, 2]})
USES_TOOLS = Say("I will read.", (READ, Call("call_2", "read_file", {})))


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_a_client_receives_the_whole_answer(
    upstream: Upstream, daemon: Daemon, api: str, streams: bool, packs: bool
) -> None:
    upstream.compresses = packs
    model = Model(api, daemon.url)
    for answer in (Say("Fine, and a longer text in pieces: ü 文書."), USES_TOOLS):
        upstream.script = always(answer)
        assert model.ask(Conversation(api).user("Hello"), streams=streams) == answer
        assert model.fold["reason"] is None
    model.close()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_a_folded_branch_does_not_reach_the_model(upstream: Upstream, daemon: Daemon, api: str, streams: bool) -> None:
    conversation = folded_conversation(api)
    model = Model(api, daemon.url)
    assert model.ask(conversation, streams=streams).text == "Fine."
    model.close()

    (got,) = upstream.requests
    remaining = [
        message
        for message in conversation.messages
        if "WORK" not in json.dumps(message) and "Page" not in json.dumps(message)
    ]
    # In this API a call is an item of its own.
    if api == "openai-responses":
        remaining = [message for message in remaining if message.get("name") != "read_file"]
    assert got.messages == remaining
    assert got.headers.get("x-api-key", got.headers.get("authorization", "")).endswith(KEY)
    assert model.fold["turns_dropped"] == 3
    assert model.fold["tokens_after"] < model.fold["tokens_before"] / 3
    assert conversation.messages[: model.fold["first_changed"]] == got.messages[: model.fold["first_changed"]]


@pytest.mark.parametrize("api", APIS)
def test_a_client_receives_the_first_words_before_the_answer_ends(upstream: Upstream, daemon: Daemon, api: str) -> None:
    upstream.resume_stream = threading.Event()
    model = Model(api, daemon.url)
    received = ""
    for event in model.begin(Conversation(api).user("Hello")):
        received += event.to_json()
        # The upstream has sent this much and waits for the event.
        if "delta" in received and not upstream.resume_stream.is_set():
            upstream.resume_stream.set()
    model.close()
    assert "Fine." in received


def test_a_client_that_disconnects_before_the_streams_end_is_recorded_as_answered(
    upstream: Upstream, daemon: Daemon, tmp_path: Path
) -> None:
    """The OpenAI client reads up to `[DONE]` and closes the connection, even if the stream goes on."""
    upstream.end_stream = threading.Event()
    model = Model("openai-chat", daemon.url, headers={"x-context-project": str(tmp_path)})
    # A conversation is identified by its first message, so this one must differ from those of other tests.
    assert model.ask(Conversation("openai-chat").user(f"Hello, {tmp_path}"), streams=True).text == "Fine."
    model.close()
    with HttpAgent(daemon.port) as agent, Http(daemon.port) as http:

        def session() -> Any:
            return agent.call("context_branch_status", project_path=str(tmp_path))["session_id"]

        # There is no signal for the moment at which the daemon notices.
        until(lambda: session() is not None)
        session_id = session()
        upstream.end_stream.set()
        ledger = http.ask("GET", f"/v1/sessions/{session_id}/savings").json
    (bill,) = upstream.billed
    assert (ledger["requests"], ledger["tokens_sent"], ledger["output_tokens"]) == (1, bill.prompt, bill.output)


def test_other_paths_pass_through(upstream: Upstream, claude: anthropic.Anthropic, gpt: openai.OpenAI) -> None:
    import anthropic
    import openai

    counted = claude.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "Hello"}])
    assert counted.input_tokens > 0
    assert [model.id for model in claude.models.list()] == [MODEL]
    assert [model.id for model in gpt.models.list()] == [MODEL]
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("no such")
    with pytest.raises(openai.NotFoundError):
        gpt.models.retrieve("no such")
    assert upstream.requests == []


def test_asynchronous_clients_work(upstream: Upstream, daemon: Daemon) -> None:
    import anthropic
    import openai

    async def ask() -> list[str]:
        claude = anthropic.AsyncAnthropic(base_url=f"{daemon.url}/proxy/anthropic", api_key=KEY, max_retries=0)
        gpt = openai.AsyncOpenAI(base_url=f"{daemon.url}/proxy/openai/v1", api_key=KEY, max_retries=0)
        async with claude, gpt:
            messages, chat, items = (folded_conversation(api).body() for api in APIS)
            message: Any
            streamed: Any
            message, completion, response = await asyncio.gather(
                claude.messages.create(**messages), gpt.chat.completions.create(**chat), gpt.responses.create(**items)
            )
            async with claude.messages.stream(**messages) as stream:
                streamed = await stream.get_final_message()
            async with gpt.responses.stream(**items) as answering:
                answered = await answering.get_final_response()
            chunks = await gpt.chat.completions.create(**chat, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices]
        texts = [message.content[0].text, completion.choices[0].message.content, response.output_text]
        return [*texts, streamed.content[0].text, answered.output_text, "".join(pieces)]

    assert asyncio.run(ask()) == ["Fine."] * 6
    assert len(upstream.requests) == 6
    assert not any(b"WORK" in got.raw for got in upstream.requests)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("fail", "error_class"),
    [
        (Fail(400, "invalid_request_error", "too long"), "BadRequestError"),
        (Fail(403, "permission_error", "not yours"), "PermissionDeniedError"),
        (Fail(429, "rate_limit_error", "slowly", (("retry-after", "17"),)), "RateLimitError"),
        (Fail(500, "api_error", "oh"), "InternalServerError"),
        (Fail(529, "overloaded_error", "busy"), "InternalServerError"),
    ],
    ids=["400", "403", "429", "500", "529"],
)
def test_a_providers_error_raises_the_clients_own_exception(  # noqa: PLR0917
    upstream: Upstream, daemon: Daemon, fail: Fail, error_class: str, api: str, streams: bool
) -> None:
    upstream.script = always(fail)
    model = Model(api, daemon.url)
    module = package_of(api)
    with pytest.raises(getattr(module, error_class), match=fail.message) as raised:
        model.ask(folded_conversation(api), streams=streams)
    model.close()
    error: Any = raised.value
    assert error.status_code == fail.status
    assert error.response.headers.get("retry-after") == ("17" if fail.status == 429 else None)
    assert error.response.json() == fail.body(api)
    assert json.loads(error.response.headers["x-context-fold"])["turns_dropped"] == 3
    if fail.status == 529 and api == "anthropic":
        assert type(error).__name__ == "OverloadedError"


@pytest.mark.parametrize("api", APIS)
def test_an_invalid_request_is_refused_by_the_provider(provider: Upstream, daemon: Daemon, api: str) -> None:
    """A result is missing in a branch. The proxy does not repair that."""
    provider.script = plain
    conversation = folded_conversation(api)
    incomplete = [
        message
        for message in conversation.messages
        if "c_1" not in json.dumps(message) or "WORK" not in json.dumps(message)
    ]
    conversation.messages[:] = incomplete
    model = Model(api, daemon.url)
    provider.requests.clear()
    with pytest.raises(package_of(api).BadRequestError):
        model.ask(conversation)
    model.close()
    assert [got.messages for got in provider.requests] == [incomplete]
    assert provider.violations != []


@pytest.mark.parametrize("api", APIS)
def test_a_client_can_retry_after_an_error(upstream: Upstream, daemon: Daemon, api: str) -> None:
    """The proxy sends each request once and does not retry."""
    answers: list[Say | Fail] = [Say("At last."), Fail(429, "rate_limit_error", "soon", (("retry-after-ms", "1"),))]
    upstream.script = lambda _body, _api: answers.pop()
    model = Model(api, daemon.url)
    model.retry(2)
    assert model.ask(Conversation(api).user("Hello")).text == "At last."
    model.close()
    assert len(upstream.requests) == 2


def test_objects_of_the_anthropic_client_can_be_in_the_message_list() -> None:
    from anthropic.types import TextBlock, ToolUseBlock

    tool_block = ToolUseBlock(type="tool_use", id="b", name="context_branch", input={})
    text_block = TextBlock(type="text", text="I branch.", citations=None)
    head = [
        {"role": "assistant", "content": [text_block, tool_block]},
        *tool_results("anthropic", ("b", branch_result("br_1"))),
    ]
    tail = return_turn("anthropic", "br_1")
    projection = project([*head, *work("anthropic", "w"), *tail], "anthropic")
    assert projection.messages == head + tail
    assert projection.messages[0] is head[0]
    assert projection.changed
