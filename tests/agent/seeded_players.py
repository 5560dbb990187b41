"""An agent and a user who draw all they do from the seed of their rollout, in a file of their own.

Each rollout that begins is noted in ``BEGUN``, so that a test sees what is run again.
"""

from pathlib import Path

BEGUN = "begun.txt"
AGENT, USER = "players:Clerk", "players:Caller"
PLAYERS = '''
import asyncio
import json
import os
import random

from reward_kit.agent.base.types import Usage


def note(rollout):
    descriptor = os.open("begun.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{rollout.row_id} {rollout.index}\\n".encode())
    os.close(descriptor)


class Clerk:
    """Books for whom it likes, and pays or forgets to."""

    chance = None

    async def respond(self, rollout):
        if self.chance is None:
            self.chance = random.Random(rollout.seed)
            note(rollout)
        chance = self.chance
        rollout.step()
        usage = Usage(calls=1, input_tokens=chance.randrange(50), output_tokens=5, cost=0.25)
        rollout.count_usage(usage, model="made-up")
        await asyncio.sleep(0.004 * chance.random())
        if chance.random() < 0.3:
            return f"Shall I? {chance.randrange(100)}"
        passenger = chance.choice(["Alice", "Alice", "Bob"])
        booked = await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": passenger})
        await asyncio.sleep(0.004 * chance.random())
        if chance.random() < 0.7:
            await rollout.call_tool("pay_booking", {"booking_id": _id(booked)})
        return f"Done. {chance.randrange(100)}"


class Caller:
    """Says so many lines, then that it is over."""

    chance = None

    async def respond(self, rollout):
        if self.chance is None:
            self.chance = random.Random(rollout.seed + 1)
        await asyncio.sleep(0.004 * self.chance.random())
        return "###STOP###" if self.chance.random() < 0.4 else f"Go on, {self.chance.randrange(100)}."


def _id(booked):
    return json.loads(booked)["booking_id"]
'''


def write_players(folder: Path) -> None:
    """``players.py`` in ``folder``, from which ``AGENT`` and ``USER`` can then be named."""
    (folder / "players.py").write_text(PLAYERS)
