"""The output of ``reward-kit agent-eval``, and its end by signals."""

import json
import shlex
import signal
from pathlib import Path

import pytest
from command import Command, Starter, wait_for
from command import start as start_command
from flight_bundle import GOLD, REWARD, TOOLS, Bundle

GOLD_RUN = ("-d", "task.jsonl", "--agent", "gold")
NOISY_AGENT = """
import os

print("agent imported")

class Agent:
    async def respond(self, rollout):
        print("agent speaks")
        os.system("echo a subprocess speaks")
        return "No."
"""
SLEEPING_AGENT = """
import time
from pathlib import Path

class Agent:
    async def respond(self, rollout):
        if rollout.index == 0 or Path("blocking").exists():
            return "No."
        Path("blocking").touch()
        time.sleep(300)
"""
ONE_BY_ONE = ("-d", "task.jsonl", "--agent", "own_agent:Agent", "--no-sim-user", "--max-concurrency", "1")


def test_json_on_the_output_is_whole_whatever_prints(agent_eval: Command, bundle: Bundle) -> None:
    bundle.rows({"n_rollouts": 2, "sim_user_prompt": None})
    bundle.write("own_agent.py", NOISY_AGENT)
    bundle.write("tools.py", f'print("tools imported")\n{TOOLS}')
    bundle.write("reward.py", REWARD.replace("    ok =", '    print("reward speaks")\n    ok ='))
    ran = agent_eval(*ONE_BY_ONE, "--json", "-")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["finished"] == 2
    for said in ("tools imported", "agent imported", "agent speaks", "a subprocess speaks", "reward speaks"):
        assert said in ran.err, said


def test_a_second_signal_ends_a_blocked_run(start: Starter, agent_eval: Command, bundle: Bundle) -> None:
    bundle.rows({"n_rollouts": 3, "sim_user_prompt": None})
    bundle.write("own_agent.py", SLEEPING_AGENT)
    process = start(*ONE_BY_ONE, "-o", "my runs")
    try:
        wait_for((bundle.folder / "blocking").exists, process)
        assert process.stderr is not None
        process.send_signal(signal.SIGTERM)
        said = ""
        while "press Ctrl-C again" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "1 of 3 rollouts are done and saved" in err
    command = shlex.split(err.splitlines()[-1])
    assert command[:3] == ["reward-kit", "agent-eval", "--resume"]
    assert command[4:] == ["--output-dir", "my runs"]

    resumed = agent_eval(*command[2:])
    assert resumed.code == 0, resumed.err
    assert "0 of 3 judged rollouts passed" in resumed.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("more", [[], ["--json", "-"]])
def test_an_output_that_is_full_is_told_in_a_line(bundle: Bundle, environment: None, more: list[str]) -> None:
    bundle.rows({"actions": GOLD, "n_rollouts": 1})
    with Path("/dev/full").open("w") as full:
        ran = start_command("agent-eval", *GOLD_RUN, *more, cwd=bundle.folder, stdout=full)
        _, err = ran.communicate(timeout=100)
    assert ran.returncode == 2
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if "No space left" in line]
    assert "The evaluation is complete; its results are in runs/evals/" in line
    assert len(list((bundle.folder / "runs" / "evals").glob("*.json"))) == 1


def test_quiet_says_in_a_line_what_was_not_judged(agent_eval: Command, bundle: Bundle) -> None:
    bundle.rows({"actions": GOLD, "n_rollouts": 2})
    bundle.write("reward.py", "def evaluate(messages, *, db, **kwargs):\n    raise KeyError('seat')\n")
    ran = agent_eval(*GOLD_RUN, "--quiet")
    assert (ran.code, len(ran.out.splitlines())) == (1, 1)
    (line,) = ran.error.splitlines()
    assert line.startswith("2 of 2 rollouts not judged: reward_error 2; for instance flight.booking.001 #1: ")
    assert "seat" in line
