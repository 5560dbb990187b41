"""A provider's variables in the environment, and rules of single providers, over their own protocols."""

import json
from typing import Any

import pytest
from stub_server import Answer, StubServer

from reward_kit.agent.models.calls import Limiters
from reward_kit.agent.models.litellm import LiteLLMModel, remote_model
from reward_kit.agent.models.litellm_library import BEGINNING
from reward_kit.agent.models.providers import key_variables, server_variables
from reward_kit.errors import ModelError, ModelSetupError

HELLO = [{"role": "user", "content": "Hello"}]
MODELS = {
    "anthropic/claude-haiku-4-5": "ANTHROPIC_API_BASE",
    "bedrock/us.amazon.nova-pro-v1:0": "AWS_BEDROCK_RUNTIME_ENDPOINT",
    "cohere/command-a-03-2025": "COHERE_API_BASE",
    "ollama_chat/qwen3": "OLLAMA_API_BASE",
}
KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-test",
    "AWS_ACCESS_KEY_ID": "AKIATEST",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "COHERE_API_KEY": "test",
}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


async def failure(name: str, messages: Any = HELLO, **options: Any) -> ModelError:
    model = remote_model(name, client="direct", limiters=Limiters(), retries=0, **options)
    with pytest.raises(ModelError) as caught:
        await model.complete(messages)
    await model.close()
    return caught.value


def scripted(stub: StubServer, monkeypatch: pytest.MonkeyPatch, name: str, answer: Answer) -> None:
    """Have the model's provider answer so; Bedrock's requests name no model."""
    monkeypatch.setenv(MODELS[name], stub.url)
    for model in (name.partition("/")[2], ""):
        stub.script(model, [answer])


@pytest.mark.parametrize(
    ("provider", "variable"),
    [
        ("anthropic", "ANTHROPIC_BASE_URL"),
        ("azure", "AZURE_API_VERSION"),
        ("bedrock", "AWS_BEDROCK_RUNTIME_ENDPOINT"),
        ("bedrock", "AWS_REGION_NAME"),
        ("cohere_chat", "COHERE_API_BASE"),
        ("fireworks_ai", "FIREWORKS_API_BASE"),
        ("friendliai", "FRIENDLI_API_BASE"),
        ("hosted_vllm", "HOSTED_VLLM_API_BASE"),
        ("huggingface", "HF_API_BASE"),
        ("lm_studio", "OPENAI_BASE_URL"),
        ("ollama_chat", "OLLAMA_API_BASE"),
        ("openai", "OPENAI_API_BASE"),
        ("vertex_ai", "VERTEXAI_LOCATION"),
        ("volcengine", "ARK_API_BASE"),
        ("watsonx", "WX_URL"),
    ],
)
def test_another_server_is_another_model_to_the_cache(
    monkeypatch: pytest.MonkeyPatch, provider: str, variable: str
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    model = LiteLLMModel("some-model", provider=provider)
    found = []
    for server in "ab":
        monkeypatch.setenv(variable, f"http://{server}.example")
        found.append(model.identity())
        monkeypatch.setenv("XINFERENCE_API_BASE", f"http://{server}.example")  # of none of them
        assert model.identity() == found[-1]
    assert found[0] != found[1]
    assert "AWS_SECRET_ACCESS_KEY" not in server_variables(provider)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("anthropic/claude-haiku-4-5", "Check the key in ANTHROPIC_API_KEY."),
        ("bedrock/us.amazon.nova-pro-v1:0", "Check the key in AWS_ACCESS_KEY_ID."),
        ("cohere/command-a-03-2025", "Check the key in COHERE_API_KEY."),
        ("ollama_chat/qwen3", "Check the provider's key (OLLAMA_API_KEY is not set)."),
    ],
)
async def test_a_refused_key_is_named_as_the_provider_reads_it(
    stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    scripted(stub_llm, monkeypatch, name, Answer(status=401, error="invalid key"))
    assert told in str(await failure(name))
    monkeypatch.delenv("COHERE_API_KEY")
    monkeypatch.setenv("CO_API_KEY", "test")
    assert key_variables("cohere_chat") == (["CO_API_KEY"], True)


@pytest.mark.parametrize("name", MODELS)
async def test_a_server_that_is_not_running_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(MODELS[name], "http://127.0.0.1:9/here")
    fault = await failure(name)
    assert fault.no_answer == "connection"
    assert "cannot connect to http://127.0.0.1:9/here" in str(fault)


@pytest.mark.parametrize("status", [400, 403, 429])
async def test_words_of_a_used_up_account_count_whatever_the_status(
    stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    name = "anthropic/claude-haiku-4-5"
    said = {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API."}
    body = json.dumps({"type": "error", "error": said}).encode()
    scripted(stub_llm, monkeypatch, name, Answer(status=status, body=body))
    fault = await failure(name)
    assert isinstance(fault, ModelSetupError)
    assert "quota is used up" in str(fault)
    assert "billing" in str(fault)


@pytest.mark.parametrize("name", ["anthropic/claude-haiku-4-5", "bedrock/us.amazon.nova-pro-v1:0"])
async def test_a_greeting_by_the_agent_is_sent_behind_a_users_line(
    stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    scripted(stub_llm, monkeypatch, name, Answer(status=401))
    greeting = {"role": "assistant", "content": "Hi! How can I help you?"}
    messages = [{"role": "system", "content": "Be kind."}, greeting, *HELLO]
    await failure(name, messages)
    sent = stub_llm.requests[0]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert BEGINNING in json.dumps(sent[0])
    assert len(messages) == 3


async def test_a_call_of_ollama_is_one_request(stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"role": "assistant", "content": "Hi"}
    answer = {"model": "qwen3", "message": said, "done": True, "done_reason": "stop"}
    body = json.dumps({**answer, "prompt_eval_count": 10, "eval_count": 5}).encode()
    scripted(stub_llm, monkeypatch, "ollama_chat/qwen3", Answer(body=body))
    model = remote_model("ollama_chat/qwen3", client="direct", retries=0)
    used = (await model.complete(HELLO)).usage
    await model.close()
    assert len(stub_llm.requests) == 1
    assert (used.input_tokens, used.cost, used.unpriced_calls) == (10, 0.0, 0)
