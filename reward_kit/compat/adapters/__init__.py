"""The integrations under the names of the earlier releases: ``reward_kit.adapters.trl``, ``.braintrust``."""

from pathlib import Path

__path__ = [str(Path(__file__).parents[1] / "integrations")]
