"""``--guard-user``: a line that confirms and ends the conversation goes back to the user's model, once."""

from typing import Any

import pytest
from flight_bundle import Bundle
from small_task import wants

from reward_kit.agent import agent_eval
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
async def test_the_agent_can_do_what_was_confirmed(conversation: Any, user: str, answers: list[str]) -> None:
    book = wants(("create_booking", {"flight_id": 1, "passenger": "Alice"}))
    rollout, model = await conversation([ASKS, book, "Booked."], answers, user, guard_user=True)
    assert [line.text for line in rollout.lines[1:]] == [ASKS, "Yes, please.", "Booked.", "###STOP###"]
    assert [call.name for call in rollout.tool_calls] == ["create_booking"]
    assert rollout.sent_back == {1: LEAVES}
    note = next(seen[-1]["content"] for seen in model.seen if "was not sent" in str(seen[-1]))
    assert LEAVES in note
    assert "acts only after your answer" in note


@pytest.mark.parametrize(("guard", "calls"), [(True, 2), (False, 1)])
async def test_a_line_is_sent_back_once_and_only_if_asked(conversation: Any, guard: bool, calls: int) -> None:
    rollout, _ = await conversation([ASKS], [LEAVES], "llm", guard_user=guard)
    assert rollout.stop_reason == "user_stop"
    assert rollout.usage["user"].calls == calls
    assert len(rollout.sent_back) == calls - 1


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
