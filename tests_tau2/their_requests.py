"""One conversation by τ²-bench's own code, as a program of its own: ``their_requests.py DOMAIN TASK MODE``.

The models ``gpt-4o`` (agent) and ``gpt-4o-mini`` (user) are wherever ``OPENAI_API_BASE`` points.
``TAU2_BENCH`` names a checkout, if the package is not installed. It prints the reason for the end.
"""

import importlib
import os
import sys
from pathlib import Path


def played(domain: str, task_id: str, mode: str) -> str:
    """Play with the orchestrator that tau2-bench builds for its defaults; in solo mode with one made here.

    Its own builder of a solo run passes arguments that the user refuses.
    """
    build = importlib.import_module("tau2.runner.build")
    helpers = importlib.import_module("tau2.runner.helpers")
    config_of = importlib.import_module("tau2.data_model.simulation").TextRunConfig
    task = next(one for one in helpers.get_tasks(domain) if one.id == task_id)
    if mode != "solo":
        config = config_of(domain=domain, llm_agent="gpt-4o", llm_user="gpt-4o-mini")
        return str(build.build_text_orchestrator(config, task).run().termination_reason.value)
    agents = importlib.import_module("tau2.agent.llm_agent")
    users = importlib.import_module("tau2.user.user_simulator")
    orchestrator = importlib.import_module("tau2.orchestrator.orchestrator").Orchestrator
    environment = build.build_environment(domain, solo_mode=True)
    tools = environment.get_tools() + environment.get_user_tools()
    arguments = {"llm": "gpt-4o", "llm_args": {"temperature": 0.0}, "task": task}
    agent = agents.LLMSoloAgent(tools=tools, domain_policy=environment.get_policy(), **arguments)
    solo = orchestrator(domain, agent, users.DummyUser(), environment, task, solo_mode=True)
    return str(solo.run().termination_reason.value)


if __name__ == "__main__":
    if checkout := os.environ.get("TAU2_BENCH"):
        sys.path.insert(0, str(Path(checkout) / "src"))
        os.environ.setdefault("TAU2_DATA_DIR", str(Path(checkout) / "data"))
    sys.stdout.write(played(*sys.argv[1:]))
