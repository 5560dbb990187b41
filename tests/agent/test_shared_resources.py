"""Factories of agents made for an evaluation: they open what its agents share, and close it at the end."""

from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle

from reward_kit.agent import agent_eval
from reward_kit.errors import BundleError, RewardKitError

ROWS = [{"actions": GOLD, "n_rollouts": 2}]
PLAYERS = '''
import asyncio

from reward_kit.agent.base.types import Usage
from reward_kit.errors import ModelSetupError


def note(event):
    with open("events.txt", "a") as file:
        print(event, file=file)


class Server:
    """What all agents of an evaluation share."""

    fault = None

    def __init__(self, config, tasks):
        self.rows = [task.id for task in tasks]
        self.steps = config.max_steps

    def __call__(self):
        return Client(self)

    async def open(self):
        note(f"open {self.rows} {self.steps}")
        if self.fault is not None:
            raise self.fault

    async def close(self):
        note("close")


class Client:
    def __init__(self, server):
        self.server = server

    @classmethod
    def configured(cls, config, tasks):
        return Server(config, tasks)

    async def respond(self, rollout):
        note(f"respond {rollout.index}")
        rollout.step()
        rollout.count_usage(Usage(calls=1, input_tokens=7, output_tokens=3, cost=0.25), model="mine/large")
        if rollout.index == 1:
            await asyncio.sleep(60)
        return "Done."

    async def close(self):
        note("over")
        raise OSError("already gone")


def client_of(error, kind):
    """A client whose server cannot be opened."""

    class Other(Client):
        @classmethod
        def configured(cls, config, tasks):
            server = Server(config, tasks)
            server.fault = error
            return server

    Other.__qualname__ = Other.__name__ = kind
    return Other


RefusingClient = client_of(ModelSetupError("no server", remedy="Start one."), "RefusingClient")
BrokenClient = client_of(OSError("no room"), "BrokenClient")


class Misconfigured(Client):
    @classmethod
    def configured(cls, config, tasks):
        raise KeyError("settings")
'''


def events() -> list[str]:
    file = Path("events.txt")
    return file.read_text().splitlines() if file.exists() else []


def test_it_is_opened_once_before_the_first_rollout_and_closed_after_the_last(bundle: Bundle) -> None:
    limits: Any = {"max_concurrency": 1, "max_steps": 5, "timeout": 1.0}
    result = agent_eval(bundle.dataset, agent=bundle.player("Client"), user="none", **limits)
    row = result.rows[0].row_id
    assert events() == [f"open ['{row}'] 5", "respond 0", "over", "respond 1", "over", "close"]
    assert [outcome.stop_reason for outcome in result.outcomes] == ["agent_done", "timeout"]


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        ("RefusingClient", RewardKitError, "no server"),
        ("BrokenClient", BundleError, "cannot be opened: .*OSError: no room"),
        ("Misconfigured", BundleError, r"Misconfigured.configured\(\) raised .*KeyError"),
    ],
)
def test_what_cannot_be_opened_stops_the_run_at_once(
    bundle: Bundle, kind: str, error: Any, told: str
) -> None:
    with pytest.raises(error, match=told):
        agent_eval(bundle.dataset, agent=bundle.player(kind), user="none")
    assert not any(event.startswith("respond") for event in events())
    if kind != "Misconfigured":
        assert "close" in events()[-2:]
