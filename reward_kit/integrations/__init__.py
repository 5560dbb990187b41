"""Bundles in other frameworks, each in a module that needs its framework installed; reward functions as well.

The modules of Reward Kit 0.2 to 0.4 that had this name are in ``compat/integrations``.
"""

from __future__ import annotations

from pathlib import Path

from reward_kit.lazy_names import lazy_names

__path__.append(str(Path(__file__).parents[1] / "compat" / "integrations"))

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "reward_kit.integrations.braintrust": ["reward_fn_to_scorer", "scorer_to_reward_fn"],
        "reward_kit.integrations.openeval": ["adapt"],
        "reward_kit.integrations.trl": ["create_trl_adapter"],
    },
)
