"""A small airline for the tests of rollouts: a real database, tools, a reward, and a model in process."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reward_kit.agent import load_agent
from reward_kit.agent.base.types import Completion, Message, Usage
from reward_kit.agent.bundles.bundle import Seed, Task
from reward_kit.agent.database import Database
from reward_kit.agent.rollout.episode import Episode
from reward_kit.agent.rollout.orchestrator import run_rollout_async
from reward_kit.agent.rollout.rollout import RolloutLimits
from reward_kit.agent.rows.task_row import TaskRow
from reward_kit.agent.tools.registry import ToolError, ToolRegistry

SEED = """
CREATE TABLE flights(id INTEGER PRIMARY KEY, origin TEXT, dest TEXT, seats INTEGER);
CREATE TABLE bookings(id TEXT PRIMARY KEY, flight_id INTEGER, passenger TEXT, status TEXT);
INSERT INTO flights VALUES (1, 'SFO', 'JFK', 3), (2, 'SFO', 'LAX', 1);
"""
GOAL = "SELECT COUNT(*) > 0 FROM bookings WHERE passenger = 'Alice' AND status = 'paid'"
BOOKED = [
    {"name": "create_booking", "arguments": {"flight_id": 1, "passenger": "Alice"}},
    {"name": "pay_booking", "arguments": {"booking_id": {"$result": [0, "booking_id"]}}},
]


_written: list[asyncio.Event] = []


async def hanging(call: Any) -> asyncio.Task[Any]:
    """Begin a call of the tool ``hang``; returned is its task, once the tool has written."""
    _written[:] = [asyncio.Event()]
    task = asyncio.ensure_future(call)
    await _written[0].wait()
    return task


def airline(**options: Any) -> ToolRegistry:
    """The tools: reading, writing, refusing, failing, hanging, and ending the rollout."""
    registry = ToolRegistry("airline", **options)

    @registry.tool(description="List flights", parameters={"origin": str, "dest": str})
    async def search_flights(origin: str, dest: str, db: Any) -> Any:
        found = "SELECT id, seats FROM flights WHERE origin = :o AND dest = :d"
        return await db.fetch_all(found, {"o": origin, "d": dest})

    @registry.tool(description="Reserve a seat", parameters={"flight_id": int, "passenger": str})
    async def create_booking(flight_id: int, passenger: str, db: Any) -> Any:
        booking = await db.fetch_val("SELECT hex(randomblob(4))")
        values = {"b": booking, "f": flight_id, "p": passenger}
        await db.execute("INSERT INTO bookings VALUES (:b, :f, :p, 'reserved')", values)
        return {"booking_id": booking}

    @registry.tool(description="Pay", parameters={"booking_id": str})
    async def pay_booking(booking_id: str, db: Any) -> Any:
        paid = await db.execute("UPDATE bookings SET status = 'paid' WHERE id = :b", {"b": booking_id})
        if paid.rowcount == 0:
            raise ToolError("no such booking")
        return {"ok": True}

    @registry.tool(description="Write, then hang", parameters={})
    async def hang(db: Any) -> str:
        await db.execute("DELETE FROM flights")
        for event in _written:
            event.set()
        await asyncio.sleep(60)
        return "never"

    @registry.tool(description="Nothing to fill in", parameters={})
    async def ping() -> str:
        return "pong"

    @registry.tool(description="Hand over to a person", parameters={}, terminal=True)
    async def transfer() -> str:
        return "Transferred"

    return registry


def paid_reward(messages: list[Message], *, db: Any, **kwargs: Any) -> dict[str, Any]:
    """1.0 if Alice has a paid booking."""
    return {"score": float(db.execute(GOAL).scalar_one()), "reason": "judged", "metrics": {}}


def small_task(folder: Path, *, reward: Any = paid_reward, registry: Any = None, **fields: Any) -> Task:
    said = [{"role": "user", "content": "Book me a flight"}]
    row = TaskRow.from_json({"id": "book", "toolset": "airline.tools", "initial_messages": said, **fields})
    return Task(row, registry or airline(), reward, Seed("0" * 64, SEED), folder)


def seeded(folder: Path) -> Database:
    return Database.seed(folder / "base.db", SEED)


class InProcessModel:
    """Answers in order and repeats the last one; ``seen`` are the messages of each request."""

    name = "in-process"

    def __init__(self, answers: Sequence[str | Message | BaseException]) -> None:
        self.answers = list(answers)
        self.seen: list[list[Message]] = []
        self.tools: list[Any] = []
        self.options: list[dict[str, Any]] = []

    async def complete(
        self, messages: list[Message], *, tools: Any = None, seed: int | None = None, **options: Any
    ) -> Completion:
        answer = self.answers[min(len(self.seen), len(self.answers) - 1)]
        self.seen.append([dict(message) for message in messages])
        self.tools.append(tools)
        self.options.append({"seed": seed, **options})
        if isinstance(answer, BaseException):
            raise answer
        message: Message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        usage = Usage(calls=1, input_tokens=10, output_tokens=2, cost=0.5)
        return Completion(message, usage, model=self.name)


def wants(*calls: tuple[str, Any], content: str | None = None, ids: Sequence[Any] = ()) -> Message:
    """An assistant message with tool calls of (name, arguments); arguments that are a str go as they are."""
    made = []
    for number, (name, arguments) in enumerate(calls):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = ids[number] if number < len(ids) else f"c{number}"
        made.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": text}})
    return {"role": "assistant", "content": content, "tool_calls": made}


class Speaker:
    """An agent or a user whose turns are lines, exceptions to raise, or functions of the rollout."""

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns or ["Done"])

    async def respond(self, rollout: Any) -> Any:
        turn = self.turns.pop(0)
        if isinstance(turn, BaseException):
            raise turn
        return await turn(rollout) if callable(turn) else turn


class ScriptedUser:
    """Says its lines in order, then leaves."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = [*lines, "###STOP###"]
        self.heard: list[str] = []

    async def respond(self, rollout: Any) -> str:
        if rollout.lines and rollout.lines[-1].speaker == "agent":
            self.heard.append(rollout.lines[-1].text)
        return self.lines.pop(0)


async def play_answers(
    agent: str, folder: Path, answers: list[Any], *, lines: Any = None, row: Any = None, **options: Any
) -> Any:
    """Play the answers of its model; that is at ``.models["agent"]`` of the rollout that comes back."""
    user = ScriptedUser(lines) if lines is not None else None
    players = {"user": user, "models": {"agent": InProcessModel(answers)}}
    return await play(small_task(folder, **(row or {})), load_agent(agent)(), **players, **options)


async def play(task: Task, agent: Any, *, user: Any = None, **options: Any) -> Episode:
    """Run one rollout of ``task`` on a fresh base; its database is closed when the test's folder goes."""
    limits = {name: options.pop(name) for name in list(options) if name in RolloutLimits.__slots__}
    options["base"] = options.get("base") or seeded(task.folder)
    options |= {"agent": agent, "user": user, "limits": RolloutLimits(**limits)}
    return await run_rollout_async(task, options.pop("index", 0), **options)
