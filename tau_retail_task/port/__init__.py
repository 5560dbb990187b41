"""Write the benchmark's own tasks as a bundle: ``python -m tau_retail_task.port --from SOURCE --out DIR``.

The instructions, policy, tool descriptions and gold actions are read from the source, word by word; the
tools' code, the reward and the tables are those of this package. Nothing of the source is executed.
"""

from __future__ import annotations

from .command import port

__all__ = ["port"]
