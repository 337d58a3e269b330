"""The providers' own Python clients, pointed at the daemon: they notice no difference, and the history is shorter."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from contextfold.fold.messages import project
from tests.fold.messages.projecting import answered, back, named, work
from tests.serve.proxy.agents import APIS, KEY, Conversation, Model, folded_conversation, package_of
from tests.support.clauses import covers
from tests.support.daemon import Daemon, Http, HttpAgent
from tests.support.upstream import BAD_KEY, MODEL, Script, Upstream, plain
from tests.support.upstream_answers import Call, Fail, Say
from tests.support.waiting import until

# Every worker of pytest imports this module, and these packages take seconds.
if TYPE_CHECKING:
    import anthropic
    import openai

WAIT_S = 60


@pytest.fixture(scope="module")
def provider() -> Iterator[Upstream]:
    with Upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def daemon(provider: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("clients"), *provider.argv())
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture
def upstream(provider: Upstream) -> Iterator[Upstream]:
    """The provider in its initial state. Every request must have followed the provider's rules."""
    provider.got.clear()
    provider.script, provider.packs, provider.goes_on, provider.ends = plain, True, None, None
    provider.cut_off.clear()
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


def always(said: Say | Fail) -> Script:
    return lambda _body, _api: said


READ = Call("call_1", "read_file", {"path": 'ä "b"', "lines": [1, 2]})
USES_TOOLS = Say("I will read.", (READ, Call("call_2", "read_file", {})))


@covers("proxy.md#clients")
@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_an_answer_comes_through_whole(
    upstream: Upstream, daemon: Daemon, api: str, streams: bool, packs: bool
) -> None:
    upstream.packs = packs
    model = Model(api, daemon.url)
    for said in (Say("Fine, and a longer text in pieces: ü 文書."), USES_TOOLS):
        upstream.script = always(said)
        assert model.ask(Conversation(api).user("Hello"), streams=streams) == said
        assert model.fold["reason"] is None
    model.close()


@covers("proxy.md#routes")
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_a_folded_branch_does_not_reach_the_model(upstream: Upstream, daemon: Daemon, api: str, streams: bool) -> None:
    talk = folded_conversation(api)
    model = Model(api, daemon.url)
    assert model.ask(talk, streams=streams).text == "Fine."
    model.close()

    (got,) = upstream.got
    kept = [
        message for message in talk.messages if "WORK" not in json.dumps(message) and "Page" not in json.dumps(message)
    ]
    # In this API a call is an item of its own.
    if api == "openai-responses":
        kept = [message for message in kept if message.get("name") != "read_file"]
    assert got.messages == kept
    assert got.headers.get("x-api-key", got.headers.get("authorization", "")).endswith(KEY)
    assert model.fold["turns_dropped"] == 3
    assert model.fold["tokens_after"] < model.fold["tokens_before"] / 3
    assert talk.messages[: model.fold["first_changed"]] == got.messages[: model.fold["first_changed"]]


@covers("proxy.md#streams")
@pytest.mark.parametrize("api", APIS)
def test_words_reach_the_client_while_the_model_still_speaks(upstream: Upstream, daemon: Daemon, api: str) -> None:
    upstream.goes_on = threading.Event()
    model = Model(api, daemon.url)
    seen = ""
    for event in model.begin(Conversation(api).user("Hello")):
        seen += event.to_json()
        # The upstream has sent this much and waits for the event.
        if "delta" in seen and not upstream.goes_on.is_set():
            upstream.goes_on.set()
    model.close()
    assert "Fine." in seen


@pytest.mark.parametrize("api", APIS)
def test_a_client_that_leaves_ends_the_request_upstream(upstream: Upstream, daemon: Daemon, api: str) -> None:
    upstream.goes_on = threading.Event()
    # This is more than the buffers of the sockets hold.
    upstream.script = always(Say("word " * 400_000))
    model = Model(api, daemon.url)
    stream = model.begin(Conversation(api).user("Hello"))
    next(iter(stream))
    stream.close()
    model.close()
    upstream.goes_on.set()
    assert upstream.cut_off.wait(WAIT_S)


def test_a_client_that_leaves_at_the_last_word_has_been_answered(
    upstream: Upstream, daemon: Daemon, tmp_path: Path
) -> None:
    """The OpenAI client reads up to `[DONE]` and closes the connection, even if the stream goes on."""
    upstream.ends = threading.Event()
    model = Model("openai-chat", daemon.url, headers={"x-context-project": str(tmp_path)})
    # A conversation is known by its first words, so these are its own.
    assert model.ask(Conversation("openai-chat").user(f"Hello, {tmp_path}"), streams=True).text == "Fine."
    model.close()
    with closing(HttpAgent(daemon.port)) as agent, closing(Http(daemon.port)) as http:

        def session() -> Any:
            return agent.call("context_branch_status", project_path=str(tmp_path))["session_id"]

        # There is no signal for the moment at which the daemon notices.
        until(lambda: session() is not None)
        session_id = session()
        upstream.ends.set()
        told = http.ask("GET", f"/v1/sessions/{session_id}/savings").json
    (bill,) = upstream.billed
    assert (told["requests"], told["tokens_sent"], told["output_tokens"]) == (1, bill.prompt, bill.output)


def test_what_is_not_folded_passes_through(upstream: Upstream, claude: anthropic.Anthropic, gpt: openai.OpenAI) -> None:
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
    assert upstream.got == []


@covers("proxy.md#clients")
def test_asynchronous_clients_work_as_well(upstream: Upstream, daemon: Daemon) -> None:
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
    assert len(upstream.got) == 6
    assert not any(b"WORK" in got.raw for got in upstream.got)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("fail", "error"),
    [
        (Fail(400, "invalid_request_error", "too long"), "BadRequestError"),
        (Fail(403, "permission_error", "not yours"), "PermissionDeniedError"),
        (Fail(429, "rate_limit_error", "slowly", (("retry-after", "17"),)), "RateLimitError"),
        (Fail(500, "api_error", "oh"), "InternalServerError"),
        (Fail(529, "overloaded_error", "busy"), "InternalServerError"),
    ],
    ids=["400", "403", "429", "500", "529"],
)
def test_the_provider_s_errors_are_the_client_s_own(  # noqa: PLR0917
    upstream: Upstream, daemon: Daemon, fail: Fail, error: str, api: str, streams: bool
) -> None:
    upstream.script = always(fail)
    model = Model(api, daemon.url)
    module = package_of(api)
    with pytest.raises(getattr(module, error), match=fail.message) as raised:
        model.ask(folded_conversation(api), streams=streams)
    model.close()
    problem: Any = raised.value
    assert problem.status_code == fail.status
    assert problem.response.headers.get("retry-after") == ("17" if fail.status == 429 else None)
    assert problem.response.json() == fail.body(api)
    assert json.loads(problem.response.headers["x-context-fold"])["turns_dropped"] == 3
    if fail.status == 529 and api == "anthropic":
        assert type(problem).__name__ == "OverloadedError"


@pytest.mark.parametrize("api", APIS)
def test_a_key_that_the_provider_does_not_know_is_refused_by_the_provider(
    upstream: Upstream, daemon: Daemon, api: str
) -> None:
    model = Model(api, daemon.url, key=BAD_KEY)
    with pytest.raises(package_of(api).AuthenticationError, match="no such key"):
        model.ask(Conversation(api).user("Hello"))
    model.close()
    assert len(upstream.got) == 1


@pytest.mark.parametrize("api", APIS)
def test_a_request_that_breaks_the_rules_is_the_provider_s_to_refuse(
    provider: Upstream, daemon: Daemon, api: str
) -> None:
    """Half of a branch is missing: the proxy does not repair it."""
    provider.script = plain
    talk = folded_conversation(api)
    broken = [
        message for message in talk.messages if "c_1" not in json.dumps(message) or "WORK" not in json.dumps(message)
    ]
    talk.messages[:] = broken
    model = Model(api, daemon.url)
    provider.got.clear()
    with pytest.raises(package_of(api).BadRequestError):
        model.ask(talk)
    model.close()
    assert [got.messages for got in provider.got] == [broken]
    assert provider.violations != []


@pytest.mark.parametrize("api", APIS)
def test_a_client_retries_by_itself_and_is_answered_then(upstream: Upstream, daemon: Daemon, api: str) -> None:
    """The proxy sends each request once and does not retry."""
    answers: list[Say | Fail] = [Say("At last."), Fail(429, "rate_limit_error", "soon", (("retry-after-ms", "1"),))]
    upstream.script = lambda _body, _api: answers.pop()
    model = Model(api, daemon.url)
    model.retry(2)
    assert model.ask(Conversation(api).user("Hello")).text == "At last."
    model.close()
    assert len(upstream.got) == 2


def test_what_the_official_clients_give_back_can_be_put_into_the_list() -> None:
    from anthropic.types import TextBlock, ToolUseBlock

    made = ToolUseBlock(type="tool_use", id="b", name="context_branch", input={})
    said = TextBlock(type="text", text="I branch.", citations=None)
    head = [{"role": "assistant", "content": [said, made]}, *answered("anthropic", ("b", named("br_1")))]
    tail = back("anthropic", "br_1")
    projection = project([*head, *work("anthropic", "w"), *tail], "anthropic")
    assert projection.messages == head + tail
    assert projection.messages[0] is head[0]
    assert projection.changed
