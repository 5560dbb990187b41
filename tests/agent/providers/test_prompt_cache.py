"""Requests are marked for the prompt caches of providers that cache only what is marked."""

import json
from typing import Any

import pytest
from chat_protocol import Chat
from flight_bundle import Bundle
from native_protocols import TOKENS, Anthropic, Converse
from provider_stub import ProviderStub

from reward_kit.agent import evaluate
from reward_kit.agent.base.types import Message
from reward_kit.agent.models.litellm import LiteLLMModel
from reward_kit.agent.models.litellm_library import import_litellm

TEXT = {"type": "object", "properties": {"origin": {"type": "string"}}}
NAMES = ("search_flights", "create_booking", "pay_booking")
TOOLS = [{"type": "function", "function": {"name": n, "description": n, "parameters": TEXT}} for n in NAMES]
SYSTEM: Message = {"role": "system", "content": "Sell flights."}
BEGINNING: list[Message] = [SYSTEM, {"role": "user", "content": "One seat."}]
CLAUDE = "anthropic/claude-sonnet-4-5"
ON_BEDROCK = "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0"
MODELS = [
    (CLAUDE, Anthropic(), 3),
    (ON_BEDROCK, Converse(), 3),
    ("bedrock/us.amazon.nova-pro-v1:0", Converse(), 2),
    ("bedrock/meta.llama3-1-70b-instruct-v1:0", Converse(), 0),
    ("openrouter/anthropic/claude-sonnet-4.5", Chat("", fields="usage", marks=True), 2),
    ("openrouter/google/gemini-2.5-flash", Chat("", fields="usage"), 0),
    ("openai/gpt-4o-mini", Chat("", fields="seed"), 0),
]
"""Models, their protocols, which refuse marks in wrong places, and the marks in each request."""


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_REGION_NAME", "us-east-1")


def model(name: str, stub: ProviderStub, **options: Any) -> LiteLLMModel:
    at = "aws_bedrock_runtime_endpoint" if name.startswith("bedrock/") else "api_base"
    key = {} if name.startswith("bedrock/") else {"api_key": "test"}
    return LiteLLMModel(name, model_args={at: stub.url, **key}, retries=0, timeout=20.0, **options)


async def play(asked: LiteLLMModel, beginning: list[Message] = BEGINNING) -> list[Any]:
    """The answers to a search with a booking, a payment, and two lines of the user."""
    messages, answers = list(beginning), []
    for _ in range(4):
        answer = await asked.complete(messages, tools=TOOLS)
        answers.append(answer)
        messages.append(answer.message)
        results = ["[]", '{"booking_id": "0123ABCD"}'] if len(answers) == 1 else ['{"ok": true}']
        calls = answer.message.get("tool_calls") or ()
        for call, result in zip(calls, results, strict=bool(calls)):
            messages.append({"role": "tool", "tool_call_id": call["id"], "name": "x", "content": result})
        if not calls:
            messages.append({"role": "user", "content": "Is it paid?"})
    return answers


def marks(body: Any) -> int:
    text = json.dumps(body)
    return text.count('"cache_control"') + text.count('"cachePoint"')


@pytest.mark.parametrize(("name", "protocol", "count"), MODELS)
async def test_what_requests_repeat_is_marked(name: str, protocol: Any, count: int) -> None:
    with ProviderStub(protocol) as stub:
        await play(model(name, stub, prompt_cache=True))
        assert [marks(request.body) for request in stub.requests] == [count] * 4
        await play(model(name, stub))
        assert not any(marks(request.body) for request in stub.requests[4:])
    assert stub.refusals == []


@pytest.mark.parametrize(("name", "protocol"), [(CLAUDE, Anthropic()), (ON_BEDROCK, Converse())])
async def test_each_request_of_claude_reads_all_of_the_one_before(name: str, protocol: Any) -> None:
    with ProviderStub(protocol) as stub:
        answers = await play(model(name, stub, prompt_cache=True))
    used = [answer.usage for answer in answers]
    sent = [usage.input_tokens for usage in used]  # with what is read and written
    assert sent == [TOKENS * blocks for blocks in (5, 10, 12, 14)]
    assert [usage.cached_tokens for usage in used] == [0, *sent[:-1]]
    price = import_litellm().get_model_info(name)
    for usage in used:
        written = usage.input_tokens - usage.cached_tokens
        cost = written * price["cache_creation_input_token_cost"]
        cost += usage.cached_tokens * price["cache_read_input_token_cost"]
        assert usage.cost == pytest.approx(cost + usage.output_tokens * price["output_cost_per_token"])


async def test_marks_of_a_row_are_left_alone() -> None:
    part = {"type": "text", "text": "One seat.", "cache_control": {"type": "ephemeral"}}
    with ProviderStub(Anthropic()) as stub:
        await play(model(CLAUDE, stub, prompt_cache=True), [SYSTEM, {"role": "user", "content": [part]}])
        assert [marks(request.body) for request in stub.requests] == [1, 1, 1, 1]


@pytest.mark.parametrize("content", ["", " ", [{"type": "text", "text": " "}]])
async def test_nothing_blank_is_marked(content: Any) -> None:
    with ProviderStub(Anthropic()) as stub:
        asked = model(CLAUDE, stub, prompt_cache=True)
        await asked.complete([{"role": "system", "content": content}, *BEGINNING[1:]])
        assert [marks(request.body) for request in stub.requests] == [1]


def test_evaluations_mark_unless_told_not_to_and_stored_answers_do_not_depend_on_it(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProviderStub(Anthropic()) as stub:
        monkeypatch.setenv("ANTHROPIC_API_BASE", stub.url)
        options = {"model": CLAUDE, "sim_model": CLAUDE, "n_rollouts": 1, "retries": 0}
        marked = evaluate(bundle.dataset, cache=True, **options)
        assert [marks(request.body) for request in stub.requests] == [2, 3, 3, 2, 3, 2]
        again = evaluate(bundle.dataset, cache=True, prompt_cache=False, **options)
        assert len(stub.requests) == 6
        evaluate(bundle.dataset, prompt_cache=False, **options)
        assert [marks(request.body) for request in stub.requests[6:]] == [0] * 6
    assert [one.pass_power[1].value for one in (marked, again)] == [1.0, 1.0]
