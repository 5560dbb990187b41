"""Align a result's step rewards with the steps of its rollout."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_kit.models import EvaluateResult, StepData

logger = logging.getLogger(__name__)


class RLDataAligner:
    """Set the ``base_reward`` of steps from ``EvaluateResult.step_outputs``."""

    def align_data_for_rl_processing(
        self,
        current_eval_result: EvaluateResult,
        current_step_data_list: list[StepData],
        rollout_id: str,
    ) -> list[StepData]:
        """Return the same list with ``base_reward`` set for matching steps.

        A ``StepOutput`` matches the steps whose ``step_info["assistant_turn_index"]`` equals its
        ``step_index``; other steps keep their ``base_reward``. Unmatched step outputs are logged.
        """
        rewards = {output.step_index: output.base_reward for output in current_eval_result.step_outputs or []}
        used = set()
        for step in current_step_data_list:
            index = step.step_info.get("assistant_turn_index")
            if index in rewards:
                step.base_reward = rewards[index]
                used.add(index)
        unused = [index for index in rewards if index not in used]
        if unused:
            logger.warning("Rollout %s: step outputs %s match no step", rollout_id, unused)
        return current_step_data_list
