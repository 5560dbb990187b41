"""The handle of an agent: nothing reachable from it leads to answers or to the engine."""

from pathlib import Path
from typing import Any

import pytest
from reachable import reachable
from small_task import InProcessModel, ScriptedUser, Speaker, play, small_task

from reward_kit.agent import Database, Episode, Rollout, RolloutStopped, Task, TaskRow, TaskView
from reward_kit.agent.players.wrappers import BlockingRollout

SECRETS = {
    "actions": [{"name": "create_booking", "arguments": {"flight_id": 1, "passenger": "GOLDEN"}}],
    "outputs": ["the secret output"],
    "end_goal_sql": "SELECT 'the secret goal'",
    "sim_user_prompt": "You are the secret customer.",
    "secret_field": "of the row",
    "metadata": {"level": "easy"},
    "system_prompt": "Sell seats.",
}
FORBIDDEN = (Episode, Database, Task, TaskRow)


def secrets_in(found: list[Any]) -> list[Any]:
    text = [one for one in found if isinstance(one, str) and ("GOLDEN" in one or "secret" in one)]
    return [*text, *(one for one in found if isinstance(one, FORBIDDEN))]


class Walking:
    """Plays a little and walks from all that it is given."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.checked: list[Any] = []

    def check(self, task: Any) -> None:
        self.checked = reachable(task)

    async def respond(self, rollout: Rollout) -> str:
        await rollout.call_tool("search_flights", {"origin": "SFO", "dest": "JFK"})
        self.found = [*reachable(rollout), *reachable(BlockingRollout(rollout))]
        return "Done"


async def test_nothing_that_an_agent_holds_leads_to_the_answers(tmp_path: Path) -> None:
    agent = Walking()
    task = small_task(tmp_path, **SECRETS)
    await play(task, agent, user=ScriptedUser(["Hello"]), models={"agent": InProcessModel(["Hi"])})
    assert len(agent.found) > 50
    assert secrets_in(agent.found) == []
    agent.check(TaskView(task))
    assert secrets_in(agent.checked) == []
    assert "GOLDEN" in str(secrets_in(reachable(task.row.actions))), "the walk finds what there is"


async def test_what_a_rollout_shows(tmp_path: Path) -> None:
    shown: dict[str, Any] = {}

    async def look(rollout: Rollout) -> str:
        names = [name for name in dir(rollout) if not name.startswith("_")]
        shown.update({name: getattr(rollout, name) for name in names})
        return "Done"

    finished = await play(small_task(tmp_path, **SECRETS), Speaker(look), index=2, seed=7)
    assert (shown["row_id"], shown["index"], shown["seed"], shown["turns"]) == ("book", 2, 7, 1)
    assert (shown["metadata"], shown["system_prompt"]) == ({"level": "easy"}, "Sell seats.")
    assert shown["id"] == finished.trace.id
    assert [line.text for line in shown["lines"]] == ["Book me a flight"]


@pytest.mark.parametrize("name", ["row", "task", "history", "gold"])
async def test_the_state_behind_a_rollout_has_no_name_in_it(tmp_path: Path, name: str) -> None:
    async def ask(rollout: Rollout) -> str:
        return str(getattr(rollout, name))

    finished = await play(small_task(tmp_path), Speaker(ask))
    assert finished.trace.stop_reason == "agent_error"
    assert f"no attribute {name!r}" in str(finished.trace.stop_detail)


@pytest.mark.parametrize(
    ("forgotten", "called"),
    [
        ("rollout.call_tool('ping', {})", "rollout.call_tool('ping')"),
        ("rollout.complete()", "rollout.complete()"),
        ("'x' + rollout.call_tool('ping', {})", "rollout.call_tool('ping')"),
    ],
)
async def test_a_forgotten_await_is_named(tmp_path: Path, forgotten: str, called: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"async def respond(self, rollout):\n    {forgotten}\n    return 'Done'", namespace)
    agent = type("Careless", (), namespace)()
    finished = await play(small_task(tmp_path), agent, models={"agent": InProcessModel(["Hi"])})
    assert finished.trace.stop_reason == "agent_error"
    assert f"{called} was never awaited: an await is missing" in str(finished.trace.stop_detail)


async def test_once_its_state_is_dropped_a_rollout_is_over(tmp_path: Path) -> None:
    kept: list[Any] = []

    async def keep(rollout: Rollout) -> str:
        kept.append(rollout)
        return "Done"

    await play(small_task(tmp_path), Speaker(keep))
    with pytest.raises(RolloutStopped):
        await kept[0].call_tool("ping", {})
