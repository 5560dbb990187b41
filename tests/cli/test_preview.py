"""reward-kit preview, and deploy, which says that it is gone."""

import json

import pytest
from command import run_command

from reward_kit.cli import deploy_command, parse_args

RAISES = "raise LookupError('mine')"


@pytest.fixture
def folder(tmp_path):
    """Metric folders good/ and broken/, and two samples."""
    for name, body in (("good", "return {'score': 0.5, 'reason': 'fine'}"), ("broken", RAISES)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "main.py").write_text(f"def evaluate(messages, **kwargs):\n    {body}\n")
    row = {"messages": [{"role": "user", "content": "hi"}], "weight": 2}
    (tmp_path / "samples.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    return tmp_path


def run(folder, *arguments):
    return run_command(*arguments, cwd=folder)


def test_the_results_are_shown(folder):
    done = run(folder, "preview", "-m", "first=good", "second=good", "--samples", "samples.jsonl")
    assert (done.code, done.err) == (0, "")
    assert "Total Samples: 2" in done.out
    assert "  Score: 0.5\n  first: {'score': 0.5, 'reason': 'fine'}\n  second: " in done.out


def test_a_sample_that_cannot_be_judged_is_exit_code_1(folder):
    done = run(folder, "preview", "-m", "broken=broken", "-s", "samples.jsonl")
    assert done.code == 1
    assert "Error: broken: LookupError: mine" in done.out


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["-s", "samples.jsonl"], "nothing to preview. Give --metrics-folders NAME=PATH or --remote-url"),
        (["-m", "a=good"], "no samples. Give --samples FILE or --huggingface-dataset NAME."),
        (["--remote-url", "ftp://x", "-s", "samples.jsonl"], "--remote-url ftp://x does not start with http"),
        (["-m", "a=good", "-s", "x", "--huggingface-key-map", "[1]"], "--huggingface-key-map is not a JSON"),
        (["-m", "a=good", "a=broken", "-s", "samples.jsonl"], "Two metric folders have the name 'a'. Give"),
        (["-m", "a=good", "-s", "good"], "[Errno 21] Is a directory: 'good'"),
    ],
)
def test_a_fault_is_one_line_and_exit_code_2(folder, arguments, fault):
    done = run(folder, "preview", *arguments)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert done.err.startswith(f"Error: {fault}")


def test_deploy_says_that_it_is_gone(folder, capsys):
    done = run(folder, "deploy", "--id", "x", "--target", "fireworks", "-m", "a=good")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Error: deploying an evaluator to the Fireworks platform is not part of this")
    assert deploy_command(parse_args(["deploy", "--id", "x"])[0]) == 1
    assert "not part of this package" in capsys.readouterr().err
