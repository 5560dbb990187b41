"""Evaluations that run within others, and several that overlap on one event loop."""

from command import run_python
from flight_bundle import GOLD, Bundle

from reward_kit.agent.evaluation.signals import run_from_code

ROWS = [{"evaluation_criteria": {"actions": GOLD}, "actions": GOLD, "sim_user_prompt": None}]


def test_an_agent_that_waits_for_an_evaluation_gets_its_result(bundle: Bundle) -> None:
    """In a process of its own, which ends where the loop of the inner evaluation never does."""
    script = (
        "from reward_kit.agent import agent_eval\n"
        "said = []\n"
        "def asks(rollout):\n"
        f"    said.append(agent_eval({str(bundle.dataset)!r}, agent='gold').score)\n"
        "    return 'asked'\n"
        f"agent_eval({str(bundle.dataset)!r}, agent=asks, n_rollouts=3)\n"
        "print(said)\n"
    )
    done = run_python(script)
    assert (done.err, done.out) == ("", "[1.0, 1.0, 1.0]\n")


async def _cause_of_one_raised_again() -> BaseException | None:
    """LiteLLM raises its errors so; what is at fault is told by their causes."""
    error = KeyError()
    error.__context__ = ConnectionRefusedError()
    try:
        raise error
    except KeyError:
        return error.__context__


def test_exceptions_keep_their_causes() -> None:
    """Whatever surrounds the call: the code of a run cannot tell what it would replace."""
    assert isinstance(run_from_code(_cause_of_one_raised_again()), ConnectionRefusedError)
    try:
        int("no number")
    except ValueError:
        assert isinstance(run_from_code(_cause_of_one_raised_again()), ConnectionRefusedError)
