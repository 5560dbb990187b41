"""The task written by hand: plain Python on this package's ``Database``, saved in synced groups.

The yardstick of ``benchmarks/plain_loop.py``: a fork a rollout, a transaction with its row changes a tool
call, the final state as a delta, and outcome, messages and calls as JSON in one SQLite file. No limits, no
checks, no handle, no failure classes: the least that the work itself costs in Python.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from typing import TYPE_CHECKING, Any

from conversation import COUNTER, EXPECTED, INPUT_TOKENS, OUTPUT_TOKENS, READ_TOOL, SYSTEM, WISHES, next_turn
from measuring import measure, parse_arguments
from pydantic_core import from_json, to_json
from with_reward_kit import SEED

from reward_kit.agent.database import Database

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_GROUP = 64
TABLE = "CREATE TABLE rollouts(id TEXT PRIMARY KEY, number INT, reward REAL, record TEXT, state BLOB)"
Saved = tuple[str, int, float, bytes, bytes]
"""Id, number, reward, record as JSON, delta of the final state."""


class Writer:
    """Writes what is saved from a thread, a group in one transaction; the next gathers meanwhile."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(TABLE)
        self._waiting: list[tuple[Saved, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    def save(self, saved: Saved) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((saved, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return done

    async def _write(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:LARGEST_GROUP], self._waiting[LARGEST_GROUP:]
            await asyncio.to_thread(self._insert, [saved for saved, _ in group])
            for _, done in group:
                done.set_result(None)

    def _insert(self, group: list[Saved]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO rollouts VALUES (?, ?, ?, ?, ?)", group)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


async def complete(messages: list[dict[str, Any]], delay: float) -> dict[str, Any]:
    """The stub's answer to ``messages``, in the OpenAI format."""
    turn = sum(message["role"] == "assistant" for message in messages)
    text, call = await next_turn(turn, delay)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if call:
        function = {"name": call[0], "arguments": call[1]}
        message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
    return message


async def run_tool(name: str, arguments: dict[str, int], database: Database) -> tuple[str, dict[str, Any]]:
    """The text that the tool answers, and the rows that it changed."""
    COUNTER.tool_calls += 1
    async with database.tool_call() as scope:
        if name == READ_TOOL:
            sql = "SELECT id, quantity FROM stock WHERE id = :id"
            found = await database.fetch_one(sql, {"id": arguments["item_id"]})
            answer = found._asdict()
        else:
            values = {"q": arguments["quantity"], "id": arguments["item_id"]}
            await database.execute("UPDATE stock SET quantity = :q WHERE id = :id", values)
            answer = {"id": arguments["item_id"], "quantity": arguments["quantity"]}
    return to_json(answer).decode(), scope.changes.to_json()


async def rollout(number: int, delay: float, base: Database) -> Saved:
    """One rollout from its fork to what is saved of it."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": WISHES[0]},
    ]
    model_calls: list[dict[str, Any]] = []
    tool_calls: list[dict[str, Any]] = []
    replies = 0
    with base.fork(seed=number) as database:
        while replies < len(WISHES):
            started, clock = time.time(), time.perf_counter()
            message = await complete(messages, delay)
            usage = {"calls": 1, "input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS, "cost": 0.001}
            seconds = time.perf_counter() - clock
            model_calls.append({"role": "agent", "usage": usage, "started": started, "seconds": seconds})
            messages.append(message)
            if "tool_calls" not in message:
                replies += 1
                if replies < len(WISHES):
                    messages.append({"role": "user", "content": WISHES[replies]})
                continue
            for call in message["tool_calls"]:
                name, arguments = call["function"]["name"], from_json(call["function"]["arguments"])
                clock = time.perf_counter()
                content, changes = await run_tool(name, arguments, database)
                messages.append(
                    {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}
                )
                record = {"name": name, "arguments": arguments, "content": content, "changes": changes}
                tool_calls.append({**record, "seconds": time.perf_counter() - clock})
        rows = await database.fetch_all("SELECT id, quantity FROM stock")
        reward = float({row.id: row.quantity for row in rows} == EXPECTED)
        state = database.delta()
    name = uuid.uuid4().hex
    record = {"messages": messages, "tool_calls": tool_calls, "model_calls": model_calls}
    return name, number, reward, to_json({"id": name, "reward": reward, **record}), state


def main() -> None:
    arguments = parse_arguments()

    async def play_all(rollouts: int, base: Database, writer: Writer) -> int:
        passed = 0
        numbers = iter(range(rollouts))

        async def work() -> None:
            nonlocal passed
            for number in numbers:
                saved = await rollout(number, arguments.delay, base)
                passed += saved[2] == 1.0
                await writer.save(saved)

        await asyncio.gather(*(work() for _ in range(arguments.at_once)))
        return passed

    def play(rollouts: int, folder: Path) -> None:
        folder.mkdir(parents=True)
        writer = Writer(folder / "evaluation.db")
        with Database.seed(folder / "base.db", SEED) as base:
            passed = asyncio.run(play_all(rollouts, base, writer))
        writer.close()
        COUNTER.check(passed, rollouts)

    measure(arguments, play)


if __name__ == "__main__":
    main()
