"""Bundles in other frameworks, each in a module that needs its framework installed; reward functions as well.

The modules of Reward Kit 0.2 to 0.4 that had this name are in ``compat/integrations``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.lazy_names import lazy_names

if TYPE_CHECKING:
    from reward_kit.compat.integrations.braintrust import reward_fn_to_scorer as reward_fn_to_scorer
    from reward_kit.compat.integrations.braintrust import scorer_to_reward_fn as scorer_to_reward_fn
    from reward_kit.compat.integrations.openeval import adapt as adapt
    from reward_kit.compat.integrations.trl import create_trl_adapter as create_trl_adapter

__path__.append(str(Path(__file__).parents[1] / "compat" / "integrations"))

__getattr__, __dir__, __all__ = lazy_names(__name__)
