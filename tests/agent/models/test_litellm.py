"""Models behind LiteLLM, asked over real HTTP."""

import asyncio
import importlib.util
import json
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from answer_shapes import answer_of
from stub_server import Answer, StubServer, call

from reward_kit.agent.models import litellm_library
from reward_kit.agent.models.litellm import LiteLLMModel, check_model, remote_model
from reward_kit.agent.models.litellm_library import import_litellm, sent_messages
from reward_kit.agent.models.providers import find_endpoint
from reward_kit.errors import ModelError, ModelInputError, ModelSetupError

NAME = "gpt-4o-mini"
HELLO = [{"role": "user", "content": "Hello"}]
PARAMETERS = {"type": "object", "properties": {"where": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Look", "parameters": PARAMETERS}}]


def model(**options: Any) -> LiteLLMModel:
    return LiteLLMModel(f"openai/{NAME}", **{"backoff": 0.0, "timeout": 20.0, **options})


async def failure(stub_llm: StubServer, answer: Answer, **options: Any) -> ModelError:
    """The error that ``answer`` leads to, for ever given."""
    stub_llm.script(NAME, [answer])
    with pytest.raises(ModelError) as caught:
        await model(**options).complete(HELLO)
    return caught.value


async def test_an_answer_comes_with_its_tokens_and_its_cost(stub_llm: StubServer) -> None:
    usage: Any = {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200}
    usage["prompt_tokens_details"] = {"cached_tokens": 400}
    usage["completion_tokens_details"] = {"reasoning_tokens": 50}
    stub_llm.script(NAME, [Answer(content="Hi there", usage=usage)])
    completion = await model().complete(HELLO)
    assert completion.message == {"role": "assistant", "content": "Hi there"}
    assert completion.finish_reason == "stop"
    used = completion.usage
    assert (used.calls, used.input_tokens, used.cached_tokens) == (1, 1000, 400)
    assert (used.output_tokens, used.reasoning_tokens) == (200, 50)
    assert 0.0 < used.cost < 0.01
    assert used.unpriced_calls == 0
    assert completion.seconds > 0.0


async def test_temperature_seed_tools_and_further_arguments_reach_the_server(stub_llm: StubServer) -> None:
    stub_llm.script(NAME, ["Hi"])
    asked = model(temperature=0.3, model_args={"top_p": 0.5})
    await asked.complete(HELLO, tools=TOOLS, seed=7, parallel_tool_calls=False)
    request = stub_llm.requests[0]
    assert (request["temperature"], request["top_p"], request["seed"]) == (0.3, 0.5, 7)
    assert request["parallel_tool_calls"] is False
    assert request["tools"] == TOOLS
    assert request["messages"] == HELLO


async def test_reasoning_is_handed_back_with_the_history(stub_llm: StubServer) -> None:
    answer = call("look", where="up")
    answer.message = {"reasoning_content": "I had better look"}
    stub_llm.script(NAME, [answer, "Hi"])
    first = await model().complete(HELLO, tools=TOOLS)
    assert first.message["reasoning_content"] == "I had better look"
    seen = {"role": "tool", "tool_call_id": first.message["tool_calls"][0]["id"], "content": "sky"}
    await model().complete([*HELLO, first.message, seen], tools=TOOLS)
    assert stub_llm.requests[1]["messages"][1]["reasoning_content"] == "I had better look"


@pytest.mark.parametrize(
    ("provider", "shape"),
    [
        *[("hosted_vllm", "vllm"), ("groq", "groq"), ("openrouter", "openrouter"), ("deepseek", "deepseek")],
        *[("mistral", "mistral"), ("cerebras", "groq"), ("openai", "gemini"), ("together_ai", "sparse")],
    ],
)
async def test_a_server_gets_its_message_back_as_it_sent_it(
    stub_llm: StubServer, provider: str, shape: str
) -> None:
    for name in ("m", f"{provider}/m"):  # as LiteLLM calls it
        stub_llm.script(name, answer_of)
    options: dict[str, Any] = {"api_base": stub_llm.url, "api_key": "sk-test-0123456789"}
    asked = LiteLLMModel(f"{provider}/m", retries=0, timeout=20.0, model_args=options)
    messages = [{"role": "system", "content": f"You are served by {shape}!"}, *HELLO]
    first = (await asked.complete(messages, tools=TOOLS)).message
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": '{"booking_id": "b"}'}
        for one in first["tool_calls"]
    ]
    second = await asked.complete([*messages, first, *results], tools=TOOLS)
    assert [one["function"]["name"] for one in second.message["tool_calls"]] == ["pay_booking"]


@pytest.mark.parametrize("provider", ["gemini", "anthropic", "vertex_ai"])
def test_who_wants_them_back_gets_them(provider: str) -> None:
    plain = {"role": "assistant", "content": "Hi"}
    signed = {**plain, "provider_specific_fields": {"thought_signatures": ["x"]}}
    assert sent_messages([*HELLO, signed], provider) == [*HELLO, signed]
    assert sent_messages([*HELLO, signed], "mistral") == [*HELLO, plain]


@pytest.mark.parametrize(("provider", "roles"), [("anthropic", ["system", "user"]), ("openai", ["system"])])
def test_a_conversation_without_a_line_begins_with_one_where_that_is_needed(
    provider: str, roles: list[str]
) -> None:
    sent = sent_messages([{"role": "system", "content": "Open the door."}], provider)
    assert [one["role"] for one in sent] == roles


async def test_a_refused_key_is_told_once_and_not_shown(stub_llm: StubServer) -> None:
    refusal = Answer(status=401, error="Incorrect API key provided: sk-test-0123456789abcdef")
    error = await failure(stub_llm, refusal)
    assert isinstance(error, ModelSetupError)
    assert error.status == 401
    assert len(stub_llm.requests) == 1
    assert "OPENAI_API_KEY" in str(error)
    assert NAME in str(error)
    assert "sk-test" not in str(error)


async def test_a_server_that_does_not_answer_is_given_up(stub_llm: StubServer) -> None:
    error = await failure(stub_llm, Answer(delay=3.0), timeout=0.3, retries=0)
    assert error.retryable
    assert "no answer within 0.3 s" in str(error)


async def test_a_local_server_needs_no_key(stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_llm.script(NAME, ["Hi"])
    monkeypatch.delenv("OPENAI_API_KEY")
    check_model(f"openai/{NAME}")
    assert (await model().complete(HELLO)).message["content"] == "Hi"


def test_one_model_serves_one_event_loop_after_another(stub_llm: StubServer) -> None:
    stub_llm.script(NAME, ["Hi"])
    shared = model()

    async def ask() -> str:
        content: str = (await shared.complete(HELLO)).message["content"]
        await shared.close()
        return content

    assert [asyncio.run(ask()) for _ in range(2)] == ["Hi", "Hi"]


async def test_a_closed_model_leaves_no_closed_connections_to_the_next(stub_llm: StubServer) -> None:
    stub_llm.script(NAME, ["Hi"])
    for _ in range(2):
        asked = model(retries=0)
        assert (await asked.complete(HELLO)).message["content"] == "Hi"
        await asked.close()


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "ollama_chat", "deepseek"])
async def test_a_redirect_is_not_followed(
    stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", stub_llm.url)
    monkeypatch.setenv("OLLAMA_API_BASE", stub_llm.url)
    monkeypatch.setenv("DEEPSEEK_API_BASE", stub_llm.url)
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-test")
    other = StubServer()
    other.script(NAME, ["Hi"])
    stub_llm.script(NAME, [Answer(status=307, headers={"Location": f"{other.url}/chat/completions"})])
    asked = LiteLLMModel(f"{provider}/{NAME}", retries=0)
    with pytest.raises(ModelSetupError, match=r"HTTP 307: it redirects to .*, which is not followed"):
        await asked.complete(HELLO)
    await asked.close()
    other.close()
    assert other.requests == []


async def test_an_error_in_a_choice_is_no_answer(stub_llm: StubServer) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Half"}, "finish_reason": "error"}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": NAME, "choices": [choice]}
    choice["error"] = {"code": 502, "message": "connection lost"}
    fault = await failure(stub_llm, Answer(body=json.dumps(answer).encode()), retries=0)
    assert (fault.status, fault.retryable, "connection lost" in fault.fault) == (502, True, True)
    choice["error"] = {"code": 400, "message": "maximum context length is 8192 tokens"}
    refused = await failure(stub_llm, Answer(body=json.dumps(answer).encode()), retries=0)
    assert isinstance(refused, ModelInputError)


async def test_a_price_is_that_of_one_model_alone(stub_llm: StubServer) -> None:
    stub_llm.script(NAME, ["Hi"])
    costs = []
    for price in (None, 0.0, 0.001, None):
        names = ("input_cost_per_token", "output_cost_per_token")
        own = {} if price is None else dict.fromkeys(names, price)
        used = (await model(model_args=own).complete(HELLO)).usage
        costs.append(used.cost)
        assert used.unpriced_calls == 0
    assert costs[1:3] == [0.0, pytest.approx(0.11)]
    assert costs[0] == costs[3] > 0.0
    assert not {"input_cost_per_token"} & stub_llm.requests[-2].keys()


async def test_cached_tokens_have_the_price_that_is_given_for_them(stub_llm: StubServer) -> None:
    counts = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    stub_llm.script(NAME, [Answer("Hi", usage=counts | {"prompt_tokens_details": {"cached_tokens": 80}})] * 2)
    prices = {"input_cost_per_token": 0.1, "output_cost_per_token": 1.0}
    given = remote_model(f"openai/{NAME}", client="litellm", model_args=dict.fromkeys(prices, ".1"))
    assert given.model_args == dict.fromkeys(prices, 0.1)
    for more, cost in (({}, 20.0), ({"cache_read_input_token_cost": 0.0}, 12.0)):
        used = (await model(model_args=prices | more).complete(HELLO)).usage
        assert used.cost == pytest.approx(cost)
    assert "cache_read_input_token_cost" not in stub_llm.requests[-1]


@pytest.mark.parametrize("client", ["direct", "litellm"])
async def test_a_header_is_sent_once_in_any_spelling(stub_llm: StubServer, client: str) -> None:
    stub_llm.script(NAME, ["Hi"])
    given = {"extra_headers": {"authorization": "Bearer gateway", "x-none": None}}
    asked = remote_model(f"openai/{NAME}", client=client, model_args=given)
    await asked.complete(HELLO)
    await asked.close()
    sent = {name.lower(): value for name, value in stub_llm.request_headers[-1].items()}
    assert (sent["authorization"], "x-none" in sent) == ("Bearer gateway", False)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"messages": []}, "'messages' is no argument"),
        ({"stream": True}, "'stream' is no argument"),
        ({"input_cost_per_second": 0.1}, "'input_cost_per_second' is no argument"),
        ({"extra_headers": "abc"}, "'extra_headers' is no JSON"),
        ({"input_cost_per_token": 0.1}, "are not both numbers"),
        ({"input_cost_per_token": 0.1, "output_cost_per_token": "x"}, "are not both numbers"),
    ],
)
def test_what_is_not_to_be_set_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelSetupError, match=told):
        remote_model(f"openai/{NAME}", client="litellm", model_args=given)


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_API_BASE", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "GROQ_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_keys")
@pytest.mark.parametrize(
    ("name", "provider", "told"),
    [
        ("openai/gpt-4o", None, "OPENAI_API_KEY is not set"),
        ("llama-3", "groq", "GROQ_API_KEY is not set"),
        ("anthropic/claude-sonnet-4-5", None, "ANTHROPIC_API_KEY is not set"),
        ("home-made", None, "Name its provider as well: provider/home-made, such as openai/home-made"),
        ("opnai/gpt-4o", None, "Did you mean openai"),
        ("", None, "no model is named"),
    ],
)
def test_a_missing_key_or_an_unknown_model_is_told(name: str, provider: str | None, told: str) -> None:
    with pytest.raises(ModelSetupError, match=told):
        check_model(name, provider)


@pytest.mark.usefixtures("no_keys")
def test_a_missing_key_of_openai_is_told_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelSetupError) as by_library:
        check_model("openai/gpt-4o")
    monkeypatch.delitem(sys.modules, "litellm")
    with pytest.raises(ModelSetupError) as alone:
        remote_model("openai/gpt-4o", client="direct")
    assert str(alone.value) == str(by_library.value)
    assert "litellm" not in sys.modules


@pytest.mark.usefixtures("no_keys")
def test_a_blank_key_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    with pytest.raises(ModelSetupError, match="OPENAI_API_KEY is not set"):
        check_model("openai/gpt-4o")
    assert os.environ["OPENAI_API_KEY"] == " "
    with pytest.raises(ModelSetupError, match="OPENAI_API_KEY is not set"):
        remote_model("openai/gpt-4o", client="direct")
    local = find_endpoint("openai/gpt-4o", None, {"api_base": "http://127.0.0.1:8000/v1"})
    assert local is not None
    assert local.headers["Authorization"] == "Bearer none"


def test_a_blank_argument_leaves_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    endpoint = find_endpoint("openai/gpt-4o", None, {"api_key": " "})
    assert endpoint is not None
    assert endpoint.headers["Authorization"] == "Bearer sk-test"


def test_an_argument_that_the_provider_does_not_know_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test")
    with pytest.raises(ModelSetupError, match="does not know logit_bias"):
        check_model("anthropic/claude-sonnet-4-5", model_args={"logit_bias": {}})


def test_threads_that_need_the_library_at_once_all_get_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in that takes a moment."""
    (tmp_path / "litellm.py").write_text("import time\ntime.sleep(0.1)\nModelResponse = dict\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "litellm", None)
    del sys.modules["litellm"]
    spec = importlib.util.spec_from_file_location("not_called_before", litellm_library.__file__)
    assert spec is not None
    assert spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: library.import_litellm().ModelResponse, range(4)))
    assert found == [dict] * 4


def test_importing_the_library_leaves_logging_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in, which LiteLLM resembles in this."""
    (tmp_path / "litellm.py").write_text(
        "import logging\n"
        "for name in ('LiteLLM', 'httpx'): logging.getLogger(name).setLevel(logging.DEBUG)\n"
        "logging.root.addFilter(print)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "litellm", None)
    del sys.modules["litellm"]
    loggers = [logging.getLogger(name) for name in ("LiteLLM", "httpx")]
    for logger in loggers:
        monkeypatch.setattr(logger, "level", logging.INFO)
    before = list(logging.root.filters)
    assert import_litellm.__wrapped__().__file__ == str(tmp_path / "litellm.py")
    assert ([logger.level for logger in loggers], logging.root.filters) == ([logging.INFO] * 2, before)
