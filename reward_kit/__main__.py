"""``python -m reward_kit`` is the command ``reward-kit``."""

from __future__ import annotations

import gc
import os
import sys


def main() -> int:
    """Run the command; Ctrl-C while it is imported ends the process without a traceback."""
    gc.set_threshold(10_000)  # neither imports nor rollouts leave many cycles behind
    here = os.getcwd()  # noqa: PTH109 - last, so that a json.py beside a bundle does not hide Python's own
    sys.path[:] = [*(entry for entry in sys.path if entry not in ("", here)), here]
    try:
        from reward_kit import cli
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)  # noqa: T201 - nothing else is imported yet
        return 130
    code = cli.main()
    signals = sys.modules.get("reward_kit.agent.evaluation.signals")
    if signals is not None and signals.is_held_up():
        os._exit(code)  # everything is written: do not wait for an agent or tool that never ends
    return code


if __name__ == "__main__":
    sys.exit(main())
