"""What had to be said and was not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def missing_outputs(outputs: Sequence[str], said: Sequence[str]) -> list[str]:
    """The outputs that occur in nothing that was said.

    Case is ignored, and so are commas in what was said, which separate thousands (the rule of tau-bench).
    """
    heard = [line.replace(",", "").lower() for line in said]
    return [output for output in outputs if not any(output.lower() in line for line in heard)]
