"""Whole evaluations and single answers with the shapes of the servers that people use."""

import os
from typing import Any

import pytest
from answer_shapes import SEARCH, SERVERS, THOUGHT, USAGE, answer_of, written
from command import run_command
from flight_bundle import Bundle
from stub_server import StubServer

from reward_kit.agent.base.types import Message
from reward_kit.agent.models import openai_http
from reward_kit.agent.models.openai_http import OpenAIModel, read_answer
from reward_kit.agent.models.providers import find_endpoint
from reward_kit.agent.store.layout import load_evaluation

NAMES = [f"You are served by {name}!" for name in SERVERS]
ROWS = [
    {"id": name, "system_prompt": said, "sim_user_prompt": said, "initial_messages": None, "n_rollouts": 4}
    for name, said in zip(SERVERS, NAMES, strict=True)
]
AT_ONCE = str(4 * len(ROWS))


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["in process", "workers"])
def test_four_rollouts_at_once_end_on_every_server(
    stub_llm: StubServer, bundle: Bundle, workers: tuple[str, ...]
) -> None:
    stub_llm.script("m", answer_of)
    models = ("--model", "openai/m", "--sim-model", "openai/m", "--max-concurrency", AT_ONCE)
    ran = run_command(
        *("agent-eval", "-d", "flight_task", "--retries", "0", "--patience", "5", *models, *workers),
        env={**os.environ},
    )
    rows = load_evaluation("latest").rows
    found = {row.row_id: (row.passed, [one.trouble for one in row.outcomes]) for row in rows}
    assert found == dict.fromkeys(SERVERS, (4, [""] * 4))
    assert ran.code == 0, ran.error


@pytest.fixture
def without_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("import_litellm", "usage_by_litellm"):
        monkeypatch.delattr(openai_http, name)


@pytest.mark.usefixtures("without_litellm")
@pytest.mark.parametrize("name", SERVERS)
async def test_an_answer_is_read_with_its_calls_and_its_tokens(name: str) -> None:
    server = SERVERS[name]
    body = written(name, "Let me look.", ("search_flights", SEARCH), ("ping", {}))
    completion = await read_answer(body, "asked", frozenset())
    message = completion.message
    assert (message["content"], completion.finish_reason) == ("Let me look.", "tool_calls")
    first, second = message["tool_calls"]
    assert (first["type"], second["type"]) == ("function", "function")
    assert first["id"] != second["id"]
    assert [one["function"]["arguments"] for one in (first, second)] == [
        '{"origin": "SFO", "dest": "JFK", "date": "2025-05-20"}',
        "{}",
    ]
    for field in server.returned:
        assert server.message.get(field, server.call.get(field)) in (message.get(field), first.get(field))
    assert not message.keys() & {"annotations", "audio", "function_call"}
    assert "index" not in first
    if server.thinks_in_parts:
        assert message["reasoning_content"] == THOUGHT
    used = completion.usage
    if name == "sparse":
        assert (used.input_tokens, used.unpriced_calls, completion.model) == (0, 1, "asked")
        return
    details: Any = server.usage.get("prompt_tokens_details") or {}
    assert (used.input_tokens, used.output_tokens) == (USAGE["prompt_tokens"], USAGE["completion_tokens"])
    assert used.cached_tokens == details.get("cached_tokens", 0)
    assert completion.model == name


@pytest.mark.usefixtures("without_litellm")
@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"<html>Bad gateway</html>", "no chat completion: <html>Bad gateway</html>"),
        (b"", "no chat completion: it is empty"),
        (b'{"detail": "Not ready"}', 'no chat completion: {"detail": "Not ready"}'),
        (b'{"choices": [{"message": {"tool_calls": ["x"]}}]}', 'no chat completion: {"choices": '),
        (b'{"choices": [{"text": "Hi"}]}', 'no chat completion: {"choices": [{"text"'),
        (b"[1]", "no chat completion: [1]"),
        (b"[" * 5000, "no chat completion: [[[["),
    ],
)
async def test_an_unreadable_answer_is_told_with_its_first_words(body: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=r"^no chat completion: ") as caught:
        await read_answer(body, "asked", frozenset())
    assert str(caught.value).startswith(told)


async def test_half_a_surrogate_pair_in_an_answer_can_be_sent_back(stub_llm: StubServer) -> None:
    body = b'{"choices": [{"message": {"content": "a \\ud83d", "reasoning": "b \\ud83d"}}]}'
    message = (await read_answer(body, "asked", frozenset())).message
    assert message == {"role": "assistant", "content": "a ?", "reasoning": "b ?"}


ANSWERED: Message = {"role": "assistant", "content": "Hi", "reasoning": "r", "reasoning_content": THOUGHT}
PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]},
    {"type": "text", "text": "Hi"},
]


@pytest.mark.parametrize(
    ("address", "sent"),
    [
        ("http://api.groq.com/openai/v1", {"role": "assistant", "content": "Hi", "reasoning": "r"}),
        ("http://api.cerebras.ai/v1", {"role": "assistant", "content": "Hi", "reasoning": "r"}),
        ("http://api.mistral.ai/v1", {"role": "assistant", "content": PARTS}),
        ("http://api.deepseek.com", ANSWERED),
    ],
)
async def test_a_provider_gets_back_what_it_takes_back(
    stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch, address: str, sent: Message
) -> None:
    monkeypatch.setenv("HTTP_PROXY", stub_llm.url.removesuffix("/v1"))
    stub_llm.script("m", ["Yes"])
    endpoint = find_endpoint("openai/m", None, {"api_base": address, "api_key": "sk-test-0123456789"})
    assert endpoint is not None
    model = OpenAIModel("openai/m", endpoint, retries=0)
    history = [{"role": "user", "content": "Hello"}, dict(ANSWERED), {"role": "user", "content": "And?"}]
    await model.complete(history)
    await model.close()
    (request,) = stub_llm.requests
    assert request["messages"] == [history[0], sent, history[2]]
