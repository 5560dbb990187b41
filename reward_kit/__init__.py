"""Evaluate tool-using agents on task bundles, and write the rewards that judge them.

    from reward_kit import reward_function, RewardOutput

    @reward_function
    def evaluate(messages, *, db, **kwargs):
        paid = db.execute("SELECT COUNT(*) > 0 FROM bookings WHERE status = 'paid'").scalar_one()
        return RewardOutput(score=float(paid), reason="paid" if paid else "not paid")

Names are imported when they are first used. ``reward_kit.agent`` holds the tools, databases and rollouts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import reward_kit.reward_function  # noqa: F401 - sets the attribute that is deleted below
from reward_kit.lazy_names import lazy_names

if TYPE_CHECKING:
    from reward_kit.compat.common_utils import load_jsonl as load_jsonl
    from reward_kit.compat.integrations.braintrust import reward_fn_to_scorer as reward_fn_to_scorer
    from reward_kit.compat.integrations.braintrust import scorer_to_reward_fn as scorer_to_reward_fn
    from reward_kit.compat.resources import create_llm_resource as create_llm_resource
    from reward_kit.errors import RewardKitError as RewardKitError
    from reward_kit.models import EvaluateResult as EvaluateResult
    from reward_kit.models import Message as Message
    from reward_kit.models import MetricResult as MetricResult
    from reward_kit.models import MetricRewardOutput as MetricRewardOutput
    from reward_kit.models import RewardOutput as RewardOutput
    from reward_kit.models import StepOutput as StepOutput
    from reward_kit.reward_function import RewardFunction as RewardFunction
    from reward_kit.typed_interface import reward_function as reward_function

    __version__: str

# The modules of 0.2 to 0.4 keep their import paths (reward_kit.auth ...); their files are in compat/.
__path__.append(str(Path(__file__).with_name("compat")))

# The name means the decorator here. Importing the submodule of the same name sets the attribute once, which
# has happened by now.
del reward_function

_find, _names, globals()["__all__"] = lazy_names(__name__)  # type checkers read the imports


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _installed_version()
    # the second is the name that 0.2 gave the decorator beside its own
    return _find("reward_function" if name == "legacy_reward_function" else name)


def __dir__() -> list[str]:
    return [*_names(), "__version__"]


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("reward-kit")
    except PackageNotFoundError:
        return "0+unknown"
