"""A faulty set-up ends the run with its cause before anything is spent on it."""

import os
from typing import Any

import pytest
from stub_server import Answer, StubServer

from reward_kit.agent.base.types import Completion
from reward_kit.agent.models.calls import Limiters
from reward_kit.agent.models.litellm import check_model, remote_model
from reward_kit.agent.models.openai_http import OpenAIModel
from reward_kit.errors import ModelError, ModelInputError, ModelSetupError

NAME = "gpt-4o-mini"
HELLO = [{"role": "user", "content": "Hello"}]
CLIENTS = pytest.mark.parametrize("client", ["direct", "litellm"])


async def asked(
    name: str = f"openai/{NAME}", *, client: str = "direct", limiters: Limiters | None = None, **options: Any
) -> Completion | ModelError:
    """The completion or the error of one call."""
    model = remote_model(name, client=client, limiters=limiters or Limiters(), backoff=0.0, **options)
    try:
        return await model.complete(HELLO, seed=7)
    except ModelError as error:
        return error
    finally:
        await model.close()


HTML = Answer(body=b"<html>Welcome to nginx</html>", headers={"Content-Type": "text/html"})


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (HTML, "is not JSON (HTTP 200, text/html, from URL): <html>Welcome to nginx"),
        (
            Answer(body=b'data: {"id": 1}\n\n', headers={"Content-Type": "text/event-stream"}),
            'is not JSON (HTTP 200, text/event-stream, from URL): data: {"id": 1}',
        ),
        (Answer(body=b""), "is not JSON (HTTP 200, application/json, from URL): it is empty"),
        (
            Answer(body=b'{"detail": "It works"}'),
            'cannot be read (HTTP 200, application/json, from URL): no chat completion: {"detail":',
        ),
    ],
)
async def test_first_answers_that_are_no_completions_end_the_run(
    stub_llm: StubServer, answer: Answer, told: str
) -> None:
    limiters = Limiters()
    told = told.replace("URL", f"{stub_llm.url}/chat/completions")
    stub_llm.script(NAME, [answer])
    fault = await asked(limiters=limiters, retries=2)
    assert isinstance(fault, ModelSetupError)
    assert f"the answer {told}" in str(fault)
    assert "check the server's address" in str(fault)
    assert len(stub_llm.requests) == 3
    stub_llm.script(NAME, ["Hi"])
    assert isinstance(await asked(limiters=limiters), Completion)
    stub_llm.script(NAME, [answer])
    fault = await asked(limiters=limiters, retries=0)
    assert (type(fault), getattr(fault, "retryable", None)) == (ModelError, True)


async def test_one_broken_answer_at_the_start_is_asked_again(stub_llm: StubServer) -> None:
    stub_llm.script(NAME, ["Hi"])
    stub_llm.fail(NAME, HTML)
    assert isinstance(await asked(retries=1), Completion)


async def test_litellm_names_the_url_that_it_called(
    stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = stub_llm.url.removesuffix("/v1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test")
    monkeypatch.setenv("ANTHROPIC_API_BASE", root)
    stub_llm.script("claude-haiku-4-5", [HTML])
    fault = await asked("anthropic/claude-haiku-4-5", retries=0)
    assert isinstance(fault, ModelSetupError)
    assert f"not JSON (from {root}/v1/messages): <html>Welcome" in str(fault)


@CLIENTS
@pytest.mark.parametrize(
    "said",
    [
        "'max_tokens' is too large: 64000. This model's maximum context length is 32768 tokens",
        "Unrecognized request argument supplied: content_filter",
    ],
)
async def test_a_refused_setting_is_no_conversation_that_is_too_long(
    stub_llm: StubServer, client: str, said: str
) -> None:
    stub_llm.script(NAME, [Answer(status=400, error=said)])
    limiters = Limiters()
    for name in ("other", NAME):  # which the same server has answered
        model = remote_model(f"openai/{name}", client=client, limiters=limiters)
        if name == "other":
            stub_llm.script("other", ["Hi"])
            await model.complete(HELLO)
    with pytest.raises(ModelSetupError, match=r"refuses a setting: .*Check --model-arg"):
        await model.complete(HELLO)


@CLIENTS
async def test_a_first_conversation_that_is_too_long_ends_no_run(stub_llm: StubServer, client: str) -> None:
    length = "This model's maximum context length is 8192 tokens and your request has 7000 input tokens"
    said = f"'max_tokens' or 'max_completion_tokens' is too large: 2048. {length} (2048 > 8192 - 7000)"
    stub_llm.script(NAME, [Answer(status=400, error=said)])
    model = remote_model(f"openai/{NAME}", client=client, limiters=Limiters())
    with pytest.raises(ModelInputError):
        await model.complete(HELLO)


@CLIENTS
async def test_a_refused_seed_is_named_and_can_be_left_out(stub_llm: StubServer, client: str) -> None:
    refusal = Answer(status=400, error="Unrecognized request argument supplied: seed")
    stub_llm.script(NAME, lambda request, _: refusal if "seed" in request else "Hi")
    model = remote_model(f"openai/{NAME}", client=client, limiters=Limiters())
    with pytest.raises(ModelSetupError, match="--model-arg seed=null"):
        await model.complete(HELLO, seed=7)
    assert isinstance(await asked(client=client, model_args={"seed": None}), Completion)
    assert isinstance(remote_model(f"openai/{NAME}", client="direct", model_args={"seed": None}), OpenAIModel)


@pytest.mark.parametrize(
    ("name", "variable", "value", "told"),
    [
        (f"openai/{NAME}", "OPENAI_API_KEY", "sk-test-0123456789\r", "OPENAI_API_KEY ends with a line end"),
        ("mistral/x", "MISTRAL_API_KEY", "0123456789\n", "MISTRAL_API_KEY ends with a line end"),
        ("groq/x", "GROQ_API_KEY", "“0123456789”", "GROQ_API_KEY contains a character"),
        (f"openai/{NAME}", "OPENAI_BASE_URL", "http://a.example/v1?key=secret", "v1?...' has a query"),
        (f"openai/{NAME}", "OPENAI_BASE_URL", "http://127.0.0.1:99999/v1", "is no URL (Port out of range"),
        (f"openai/{NAME}", "OPENAI_BASE_URL", "http:///v1", "names no server"),
        ("ollama_chat/x", "OLLAMA_API_BASE", "127.0.0.1:11434", "has no http://"),
    ],
)
def test_what_cannot_be_sent_is_named_before_the_run(
    stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch, name: str, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ModelSetupError) as caught:
        remote_model(name, client="direct")
    assert told in str(caught.value)
    assert "0123456789" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not stub_llm.requests


@CLIENTS
async def test_a_server_on_this_machine_is_called_past_the_proxy(
    stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://me:password@127.0.0.1:9")
    stub_llm.script(NAME, ["Hi"])
    note = remote_model(f"openai/{NAME}", client=client).note
    assert note == f"{stub_llm.url} is called directly, not through http_proxy=http://***@127.0.0.1:9"
    assert isinstance(await asked(client=client), Completion)
    assert "127.0.0.1" in os.environ["NO_PROXY"]


@CLIENTS
async def test_a_proxy_in_the_way_is_named(monkeypatch: pytest.MonkeyPatch, client: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://me:password@127.0.0.1:9")
    args = {"api_base": "http://server.example/v1"}
    model = remote_model(f"openai/{NAME}", client=client, retries=0, model_args=args)
    with pytest.raises(ModelError) as caught:
        await model.complete(HELLO)
    await model.close()
    assert "http://server.example/v1 through http_proxy=http://***@127.0.0.1:9" in str(caught.value)
    assert "NO_PROXY" in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "provider"),
    [
        ("TOGETHER_AI_API_KEY", "together_ai"),
        ("FIREWORKS_API_KEY", "fireworks_ai"),
        ("AZURE_API_KEY", "azure"),
    ],
)
def test_a_key_under_another_of_its_names_is_found(
    monkeypatch: pytest.MonkeyPatch, variable: str, provider: str
) -> None:
    for name in [name for name in os.environ if name.startswith(provider.upper().partition("_")[0])]:
        monkeypatch.delenv(name)
    with pytest.raises(ModelSetupError, match="is not set"):
        check_model(f"{provider}/some-model")
    monkeypatch.setenv(variable, "0123456789")
    check_model(f"{provider}/some-model")
