"""A ``tools.py`` or ``reward.py`` that fails while it is imported: one clear error with the line."""

import pytest
from flight_bundle import Bundle
from hostile import GOLD_RUN, VALIDATE, Command, Writer


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("import sys; sys.exit(0)", ["tools.py:1", "SystemExit", "must not exit"]),
        ("import os\nraise ValueError(os.environ['SHOP_TOKEN'])", ["tools.py:2: ValueError: [hidden]"]),
    ],
    ids=["exit", "secret"],
)
def test_one_error_with_the_line(
    agent_eval: Command, tools: Writer, monkeypatch: pytest.MonkeyPatch, code: str, parts: list[str]
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "canary-4711")
    tools(code)
    agent_eval(*VALIDATE).refused("task.jsonl:1", "flight_task.tools", *parts)


def test_a_reward_without_a_signature_is_refused(agent_eval: Command, bundle: Bundle) -> None:
    bundle.write("reward.py", "evaluate = dict\n")
    agent_eval(*GOLD_RUN).refused("task.jsonl:1", "has no signature", "def evaluate(messages, *, db")
