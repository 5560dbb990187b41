"""A reward function behind POST /reward, and RewardFunction as its client."""

import pytest
import requests
from reward_kit.server import RewardServer, create_app

from reward_kit import EvaluateResult, Message, RewardFunction, RewardOutput, reward_function

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello", "mood": "good"}]


@pytest.fixture
def echo(serve_app):
    """The address of a reward that says what it was called with."""

    def judge(messages, ground_truth=None, **kwargs):
        said = f"{messages} {ground_truth} {kwargs}"
        return RewardOutput(score=1.0, reason=said, metrics={"m": {"score": 0.5, "reason": "r"}})

    return serve_app(create_app(judge))


def post(url, **body):
    return requests.post(f"{url}/reward", json=body, timeout=10)


def test_health(echo):
    assert requests.get(f"{echo}/health", timeout=10).json() == {"status": "ok"}


def test_messages_arrive_as_the_dicts_they_were(echo):
    answer = post(echo, messages=MESSAGES, weight=3).json()
    assert answer["reason"] == f"{MESSAGES} {MESSAGES[:1]} {{'weight': 3}}"
    assert answer["metrics"]["m"] == {"score": 0.5, "reason": "r", "is_score_valid": True}


def test_a_ground_truth_is_text_or_messages(echo):
    for truth in ("text", MESSAGES):
        answer = post(echo, messages=MESSAGES, ground_truth=truth)
        assert answer.json()["reason"] == f"{MESSAGES} {truth} {{}}"


@pytest.mark.parametrize("body", [{}, {"messages": "hi"}, {"messages": [{"content": "no role"}]}])
def test_a_bad_body_is_422(echo, body):
    assert post(echo, **body).status_code == 422


async def awaited(messages: list[Message], **kwargs):
    return EvaluateResult(score=len(messages))


def test_async_functions_and_functions_without_a_ground_truth(serve_app):
    for function in (reward_function(awaited), lambda messages: EvaluateResult(score=len(messages))):
        assert post(serve_app(create_app(function)), messages=MESSAGES).json()["score"] == 2.0


def broken(messages, **kwargs):
    raise LookupError("mine")


def test_a_reward_that_fails_is_500_with_its_error(serve_app):
    unreadable = {"step_index": 0, "base_reward": 1.0, "metrics": {"what": object()}}
    for function, detail in (
        (broken, "mine"),
        (lambda messages, **kwargs: 0.5, "Invalid return type"),
        (lambda messages: EvaluateResult(score=1.0, step_outputs=[unreadable]), "Unable to serialize"),
    ):
        answer = post(serve_app(create_app(function)), messages=MESSAGES)
        assert answer.status_code == 500
        assert detail in answer.json()["detail"]


def test_a_remote_reward_function_is_a_client_of_it(echo):
    remote = RewardFunction(mode="remote", endpoint=f"{echo}/reward", weight=3)
    result = remote([Message(role="user", content="hi"), Message(role="assistant", content="hello")])
    assert isinstance(result, EvaluateResult)
    assert result.metrics["m"].score == 0.5
    assert result.reason.endswith("[{'role': 'user', 'content': 'hi'}] {'weight': 3}")


def test_a_remote_error_status_raises(serve_app):
    with pytest.raises(requests.HTTPError, match="500"):
        RewardFunction(mode="remote", endpoint=f"{serve_app(create_app(broken))}/reward")(MESSAGES)


def test_a_server_finds_its_function_and_listens_on_this_machine_only(users_rewards):
    users_rewards.judge = lambda messages, **kwargs: EvaluateResult(score=1)
    server = RewardServer("users_rewards:judge")
    assert server.reward_func is users_rewards.judge
    assert server.host == "127.0.0.1"
    with pytest.raises(ImportError, match="users_rewards:nothing"):
        RewardServer("users_rewards:nothing")
