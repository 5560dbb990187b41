"""One episode by tau-bench's own code, as a program of its own: ``their_code.py CHECKOUT AGENT USER TASK``.

The models ``gpt-4o`` (agent) and ``gpt-4o-mini`` (user) are wherever ``OPENAI_API_BASE`` points.
"""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

AGENT_MODEL, USER_MODEL = "gpt-4o", "gpt-4o-mini"


def tau_bench(agent: str, user: str, task: int) -> None:
    """Play with the agent and the environment that ``run.py`` of tau-bench makes."""
    run = importlib.import_module("tau_bench.run")
    envs = importlib.import_module("tau_bench.envs")
    options = {"model": AGENT_MODEL, "model_provider": "openai", "temperature": 0.0, "agent_strategy": agent}
    env = envs.get_env(
        "retail",
        user_strategy=user,
        user_model=USER_MODEL,
        user_provider="openai",
        task_split="test",
        task_index=task,
    )
    run.agent_factory(env.tools_info, env.wiki, SimpleNamespace(**options)).solve(env=env, task_index=task)


if __name__ == "__main__":
    checkout, agent, user, task = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    sys.path.insert(0, str(checkout))
    tau_bench(agent, user, task)
