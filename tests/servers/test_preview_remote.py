"""reward-kit preview against a running reward server."""

import json
import sys

import pytest

from reward_kit import generic_server, reward_function
from reward_kit.cli import main


@pytest.fixture
def preview(serve_app, users_rewards, monkeypatch, tmp_path, capsys):
    """``preview(function)`` previews two samples against a server of the function: exit code and output."""
    said = [[{"role": "user", "content": text}] for text in ("yes", "no")]
    rows = [{"messages": messages, "ground_truth": "yes", "weight": 2} for messages in said]
    (tmp_path / "samples.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(function):
        users_rewards.judge = function
        generic_server.load_reward_function("users_rewards.judge")
        url = serve_app(generic_server.app)
        code = main(["preview", "--remote-url", f"{url}/", "-s", str(tmp_path / "samples.jsonl")])
        return code, capsys.readouterr().out

    return run


def test_each_sample_is_shown(preview):
    @reward_function
    def judge(messages, ground_truth, weight, **kwargs):
        score = float(messages[0]["content"] == ground_truth)
        return {"score": score * weight, "metrics": {"same": {"score": score, "reason": "compared"}}}

    code, output = preview(judge)
    assert code == 0
    assert output == (
        "\n--- Sample 1 ---\n  Score: 2.0\n  Reason: N/A\n  Is Valid: True\n"
        "  Metric 'same': Score=1.0, Valid=True, Reason=compared\n--- End Sample ---\n"
        "\n--- Sample 2 ---\n  Score: 0.0\n  Reason: N/A\n  Is Valid: True\n"
        "  Metric 'same': Score=0.0, Valid=True, Reason=compared\n--- End Sample ---\n"
    )


def test_a_sample_that_fails_is_shown_and_exit_code_1(preview):
    def judge(messages, **kwargs):
        if messages[0]["content"] == "yes":
            raise LookupError("mine")
        return reward_function(lambda **kwargs: {"score": 1.0})()

    code, output = preview(judge)
    assert code == 1
    assert "--- Sample 1 ---\n  Error: http://127.0.0.1:" in output
    assert "--- Sample 2 ---\n  Score: 1.0\n" in output
