"""Step rewards find their steps."""

from reward_kit.rl_processing import RLDataAligner

from reward_kit import EvaluateResult, Message, StepOutput
from reward_kit.agent import StepData


def step(**info):
    history = [Message(role="user", content="hi")]
    given = {"observation_data": [], "action_taken": {"type": "text"}, "resulting_messages_history": history}
    return StepData(system_step_index=0, step_info=info, advantage=0.5, trainer="own", **given)


def align(outputs, steps):
    result = EvaluateResult(score=1, step_outputs=outputs)
    return RLDataAligner().align_data_for_rl_processing(result, steps, rollout_id="r1")


def test_a_step_gets_the_reward_of_its_turn():
    steps = [*(step(assistant_turn_index=index) for index in (0, "last", 1)), step()]
    outputs = [StepOutput(step_index=index, base_reward=reward) for index, reward in (("last", 2), (0, 1))]
    aligned = align(outputs, steps)
    assert aligned is steps
    assert [one.base_reward for one in aligned] == [1.0, 2.0, None, None]
    assert (aligned[0].advantage, aligned[0].trainer) == (0.5, "own")


def test_a_reward_that_fits_no_step_is_logged(caplog):
    align([StepOutput(step_index=9, base_reward=1)], [step(assistant_turn_index=0)])
    assert "Rollout r1" in caplog.text
    assert "[9]" in caplog.text


def test_a_result_without_step_outputs_changes_nothing():
    for outputs in (None, []):
        assert align(outputs, [step(assistant_turn_index=0)])[0].base_reward is None
