"""The server that is told what to load."""

import subprocess
import sys

import pytest
import requests
from command import free_port, listening, wait_for

from reward_kit import EvaluateResult, RewardOutput, generic_server, reward_function

MESSAGES = [{"role": "user", "content": "hi"}]
STEP = {"step_index": 0, "base_reward": 1.0}


@pytest.fixture
def url(serve_app, users_rewards):
    @reward_function
    def judge(messages, ground_truth=None, **kwargs):
        return {"score": 0.5, "reason": f"{messages} {ground_truth} {kwargs}"}

    def broken(messages, **kwargs):
        raise LookupError("mine")

    @reward_function
    def beyond(messages, **kwargs):
        return RewardOutput(score=1.0, metrics={"m": {"score": 2.0, "reason": "above 1"}})

    @reward_function
    def unreadable(messages, **kwargs):
        return EvaluateResult(score=1.0, step_outputs=[{**STEP, "metrics": {"what": object()}}])

    async def alone(messages, **kwargs):
        return EvaluateResult(score=1.0, reason=f"{kwargs}")

    users_rewards.judge, users_rewards.broken, users_rewards.beyond = judge, broken, beyond
    users_rewards.unreadable, users_rewards.around = unreadable, lambda **given: alone(**given)
    return serve_app(generic_server.app)


def post(url, **body):
    return requests.post(f"{url}/evaluate", json={"messages": MESSAGES, **body}, timeout=10)


def test_nothing_loaded(url):
    answer = requests.get(f"{url}/health", timeout=10)
    assert (answer.status_code, answer.json()["status"]) == (200, "error")
    assert (post(url).status_code, post(url).json()) == (500, {"detail": "Reward function not loaded."})


def test_a_loaded_function_answers(url):
    generic_server.load_reward_function("users_rewards.judge")
    health = requests.get(f"{url}/health", timeout=10).json()
    assert health == {"status": "ok", "reward_function": "users_rewards.judge"}
    answer = EvaluateResult(**post(url, ground_truth="x", kwargs={"weight": 3}).json())
    assert (answer.score, answer.reason) == (0.5, f"{MESSAGES} x {{'weight': 3}}")


def test_an_error_is_500_with_its_text(url):
    generic_server.load_reward_function("users_rewards.broken")
    assert post(url).status_code == 500
    assert "mine" in post(url).json()["detail"]
    generic_server.load_reward_function("users_rewards.beyond")
    assert "Error evaluating reward" in post(url).json()["detail"]
    generic_server.load_reward_function("users_rewards.unreadable")
    assert "Unable to serialize" in post(url).json()["detail"]


def test_an_async_function_may_be_inside_and_an_argument_have_any_name(url):
    generic_server.load_reward_function("users_rewards.around")
    assert post(url, kwargs={"func": 1}).json()["reason"] == "{'ground_truth': None, 'func': 1}"
    generic_server.load_reward_function("users_rewards.judge")
    assert post(url, kwargs={"func": 1}).json()["score"] == 0.5


def test_a_bad_body_is_422(url):
    generic_server.load_reward_function("users_rewards.judge")
    answer = requests.post(f"{url}/evaluate", json={"ground_truth": "x"}, timeout=10)
    assert answer.status_code == 422
    assert "messages" in answer.json()["detail"][0]["loc"]


def test_the_api_key(url, monkeypatch):
    monkeypatch.setenv("RK_ENDPOINT_API_KEY", "secret")
    generic_server.load_reward_function("users_rewards.judge")

    def status(**headers):
        body = {"messages": MESSAGES}
        return requests.post(f"{url}/evaluate", json=body, headers=headers, timeout=10).status_code

    assert status() == 401
    assert status(**{"X-Api-Key": "wrong"}) == status(Authorization="Bearer wrong") == 403
    assert status(**{"X-Api-Key": "secret"}) == status(Authorization="Bearer secret") == 200
    assert requests.get(f"{url}/health", timeout=10).status_code == 200


@pytest.mark.parametrize(
    ("path", "error"),
    [("no_such_module.judge", ImportError), ("users_rewards.nothing", AttributeError), ("nodot", ValueError)],
)
def test_a_failed_load_leaves_nothing_loaded(url, path, error):
    generic_server.load_reward_function("users_rewards.judge")
    with pytest.raises(error):
        generic_server.load_reward_function(path)
    assert requests.get(f"{url}/health", timeout=10).json()["status"] == "error"


class TestCommandLine:
    def run(self, folder, *arguments):
        line = [sys.executable, "-u", "-m", "reward_kit.generic_server", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(line, cwd=folder, text=True, **pipes)

    def test_it_serves_what_it_is_told(self, tmp_path):
        (tmp_path / "mine.py").write_text("def judge(messages, **kwargs):\n    return None\n")
        port = free_port()
        server = self.run(tmp_path, "mine.judge", "--port", str(port))
        try:
            wait_for(lambda: listening(port), server)
            health = requests.get(f"http://127.0.0.1:{port}/health", timeout=10).json()
            assert health == {"status": "ok", "reward_function": "mine.judge"}
        finally:
            server.terminate()
            server.communicate(timeout=10)

    def test_what_cannot_be_loaded_ends_it_with_one_line(self, tmp_path):
        server = self.run(tmp_path, "mine.judge")
        output, _ = server.communicate(timeout=60)
        assert server.returncode == 1
        assert output.strip() == "Error: mine.judge cannot be loaded: No module named 'mine'"
