"""``--guard-user``: a line that confirms and ends the conversation goes back to the user's model, once."""

from pathlib import Path

import pytest
from flight_bundle import Bundle
from small_task import InProcessModel, play, small_task, wants

from reward_kit.agent import agent_eval, load_user
from reward_kit.agent.agents.tool_calling import ToolCallingAgent
from reward_kit.agent.scoring.user_faults import confirms_and_leaves
from reward_kit.errors import UsageError

ASKS = "I would book flight 1 for Alice. Do you confirm?"
LEAVES = "Yes, please book it. ###STOP###"


@pytest.mark.parametrize(
    ("user", "answers"),
    [
        ("llm", [LEAVES, "Yes, please.", "###STOP###"]),
        ("react", [f"Thought:\nGood.\nUser Response:\n{LEAVES}", "Yes, please.", "###STOP###"]),
        ("verify", [LEAVES, "Yes, please.", "true", "###STOP###", "true"]),
        ("llm", ["", "", LEAVES, "Yes, please.", "###STOP###"]),  # empty answers count apart
    ],
)
async def test_the_agent_can_do_what_was_confirmed(tmp_path: Path, user: str, answers: list[str]) -> None:
    book = wants(("create_booking", {"flight_id": 1, "passenger": "Alice"}))
    models = {"agent": InProcessModel([ASKS, book, "Booked."]), "user": InProcessModel(answers)}
    task = small_task(tmp_path, sim_user_prompt="You are Alice.")
    finished = await play(task, ToolCallingAgent(), user=load_user(user)(), models=models, guard_user=True)
    rollout = finished.rollout
    assert [line.text for line in rollout.lines[1:]] == [ASKS, "Yes, please.", "Booked.", "###STOP###"]
    assert [call.name for call in rollout.tool_calls] == ["create_booking"]
    assert rollout.sent_back == {1: LEAVES}
    note = next(seen[-1]["content"] for seen in models["user"].seen if "was not sent" in str(seen[-1]))
    assert LEAVES in note
    assert "acts only after your answer" in note


@pytest.mark.parametrize(("guard", "calls"), [(True, 2), (False, 1)])
async def test_a_line_is_sent_back_once_and_only_if_asked(tmp_path: Path, guard: bool, calls: int) -> None:
    models = {"agent": InProcessModel([ASKS]), "user": InProcessModel([LEAVES])}
    task = small_task(tmp_path, sim_user_prompt="You are Alice.")
    finished = await play(task, ToolCallingAgent(), user=load_user("llm")(), models=models, guard_user=guard)
    assert finished.rollout.stop_reason == "user_stop"
    assert finished.rollout.usage["user"].calls == calls
    assert len(finished.rollout.sent_back) == calls - 1


@pytest.mark.parametrize(
    ("heard", "line", "found"),
    [
        (ASKS, "yes ###STOP###", True),
        (ASKS, "It is W12. Yes, go ahead!\n\n###STOP###", True),
        ("Please reply with your confirmation.", "That\u2019s right. ###STOP###", True),
        (ASKS, "Yes, please.", False),
        (ASKS, "###STOP###", False),
        (ASKS, "No, thanks. ###STOP###", False),
        ("It is booked. Is there anything else I can help you with?", "Yes, that's all. ###STOP###", False),
        ("It is booked.", "Ok, thanks! ###STOP###", False),
    ],
)
def test_a_yes_that_leaves_something_open_is_recognised(heard: str, line: str, found: bool) -> None:
    assert confirms_and_leaves(heard, line) is found


def test_the_evaluation_counts_it_and_refuses_the_option_without_such_a_user(bundle: Bundle) -> None:
    bundle.rows({"n_rollouts": 2})
    models = {"agent": lambda messages: ASKS, "user": lambda messages: LEAVES}
    result = agent_eval(bundle.dataset, models=models, guard_user=True)
    assert result.user_faults.kinds["sent_back"] == 2
    with pytest.raises(UsageError, match="--guard-user has no effect"):
        agent_eval(bundle.dataset, agent="gold", guard_user=True)
