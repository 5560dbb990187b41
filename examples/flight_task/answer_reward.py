"""The reward of rows that ask for an answer: nothing was changed, and the user was told every output."""

from reward_kit import reward_function
from reward_kit.agent.rewards import all_of, database_equal, outputs_said


@reward_function
def evaluate(messages, *, db, outputs, **kwargs):
    checks = {"told": outputs_said(outputs, messages), "untouched": database_equal(db, None)}
    return all_of(checks)
