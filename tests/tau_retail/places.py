"""Where the retail bundle is."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "tau_retail_task"
