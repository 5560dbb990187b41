"""The bundle of the page "When the user acts": it is sound, and nothing of the phone reaches the agent."""

import json
import shutil
from pathlib import Path

from command import run_command

from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.checks import validate_async

EXAMPLE = Path(__file__).parents[2] / "examples" / "phone_task"


async def test_it_is_valid_and_only_the_gold_actions_earn_the_reward():
    with TaskBundle.load(EXAMPLE) as bundle:
        report = await validate_async(bundle, deep=True)
        assert (len(bundle.tasks), report.rewarded, report.idle) == (6, 6, [])
    assert [str(finding) for finding in report.findings if finding.grade != "note"] == []


async def test_the_agent_hears_nothing_of_the_phone_that_the_user_does_not_say():
    with TaskBundle.load(EXAMPLE) as bundle, bundle.episode("suspended") as episode:
        await episode.call("resume_line", {"number": "555-0101"})
        await episode.call("check_status_bar", {}, by="user")
        await episode.call("restart", {}, by="user")
        assert (await episode.finish()).score == 1.0
        known = json.dumps([episode.messages, episode.tools])
    assert "resume_line" in known
    assert not [word for word in ("status_bar", "airplane", "has restarted", "signal") if word in known]


def test_its_checks_are_known_in_an_evaluation_and_where_it_is_judged_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLE, tmp_path / "phone_task", ignore=shutil.ignore_patterns("__pycache__"))
    played = run_command("agent-eval", "phone_task", "--agent", "gold", "--no-sim-user", "--eval-id", "gold")
    assert "6 of 6 judged rollouts passed" in played.out
    tasks = (tmp_path / "phone_task" / "task.jsonl").read_text()
    (tmp_path / "phone_task" / "task.jsonl").write_text(tasks.replace('"abroad": true', '"abroad": false'))
    again = run_command("rescore", "gold", "--dataset", "phone_task")
    assert (again.code, again.err) == (0, "")
    assert "-> none" not in again.out
