"""``python -m tau_retail_task.port``."""

from __future__ import annotations

import sys

from .command import main

sys.exit(main())
