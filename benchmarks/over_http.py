"""Rollouts against a provider over HTTP: this package, verifiers, and loops on two client libraries.

    python benchmarks/over_http.py [--at-once 50 200 500] [--repeats 3] [--delay 0.3]

A stub provider in a process of its own answers after ``--delay`` seconds. Everybody plays the shop of
``benchmarks/peers``, ten model calls and eight tool calls a rollout, twice as many rollouts as run at once;
the ideal time is therefore ``2 * 10 * delay``. The contenders take turns, each run is a fresh process:

- ``reward-kit``: the command with its default options but ``--no-cache``; everything is saved
- ``reward-kit --workers 2``: the same in two processes
- ``verifiers``: version 0.3.1 with its own client, in the environment of ``benchmarks/peers`` (made on first
  use), tools on a dict; a line for each rollout is saved
- ``openai loop``: ``AsyncOpenAI`` with its default settings, tools on a dict, nothing is saved
- ``litellm loop``: the same with ``litellm.acompletion``

Printed are medians with the least and the most: the wall time of the process and its share of the ideal, the
span from the first request to the last answer as the stub measures it, the CPU time of the process with its
children, and that of a call without start and end, which a run of two rollouts before each run measures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

PEERS = Path(__file__).parent / "peers"
HARNESSES = PEERS / "harnesses"
sys.path[:0] = [str(HARNESSES), str(PEERS)]

from conversation import (  # noqa: E402 - of the harnesses
    CALLS,
    EXPECTED,
    INPUT_TOKENS,
    MODEL_TURNS,
    OUTPUT_TOKENS,
    READ_TOOL,
    REPLIES,
    STOCK,
    SYSTEM,
    WISHES,
    read_stock,
    write_stock,
)
from environments import CONTENDERS, make_environment  # noqa: E402 - of the peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERIFIERS = next(one for one in CONTENDERS if one.script == "with_verifiers.py")
FEW = 2
"""Rollouts of the run that measures start and end."""
SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {
                "type": "object",
                "properties": {one: {"type": "integer"} for one in names},
                "required": names,
            },
        },
    }
    for name, text, names in (
        ("read_item", "Read one item of the stock.", ["item_id"]),
        ("write_item", "Change how many there are of an item.", ["item_id", "quantity"]),
    )
]


# --- the provider


def serve(delay: float) -> None:
    """Answer chat completions until standard input ends; ``GET /span`` tells and clears the times."""
    from aiohttp import web

    times: list[float] = []

    async def chat(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        times.append(time.perf_counter())
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": REPLIES.get(turn)}
        if turn in CALLS:
            name, arguments = CALLS[turn]
            function = {"name": name, "arguments": json.dumps(arguments)}
            message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
        finish = "stop" if turn in REPLIES else "tool_calls"
        usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS}
        answer = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "stub",
            "usage": {**usage, "total_tokens": sum(usage.values())},
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        }
        await asyncio.sleep(delay)
        times.append(time.perf_counter())
        return web.json_response(answer)

    async def span(_: web.Request) -> web.Response:
        found = {"span": max(times) - min(times) if times else 0.0, "calls": len(times) // 2}
        times.clear()
        return web.json_response(found)

    async def run() -> None:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/v1/chat/completions", chat)
        app.router.add_get("/span", span)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        print(site._server.sockets[0].getsockname()[1], flush=True)  # noqa: SLF001 - the free port
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await runner.cleanup()

    asyncio.run(run())


@contextmanager
def provider(delay: float) -> Iterator[str]:
    """The address of a stub provider, while the block runs."""
    line = [sys.executable, __file__, "--serve", "--delay", str(delay)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


# --- the loops on client libraries


async def loop_rollout(ask: Callable[..., Any]) -> bool:
    """One rollout by hand; True if the stock is as expected."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": WISHES[0]},
    ]
    stock = dict(STOCK)
    wishes = iter(WISHES[1:])
    while True:
        answer = await ask(model="openai/stub", messages=messages, tools=SCHEMAS)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            run = read_stock if call.function.name == READ_TOOL else write_stock
            content = json.dumps(run(stock, **json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        if not message.tool_calls:
            wish = next(wishes, None)
            if wish is None:
                return stock == EXPECTED
            messages.append({"role": "user", "content": wish})


async def play_loop(library: str, rollouts: int, at_once: int) -> None:
    """Play all rollouts; exits with an error if one fails."""
    if library == "litellm":
        from litellm import acompletion as ask
    else:
        from openai import AsyncOpenAI

        ask = AsyncOpenAI(max_retries=10).chat.completions.create
    numbers = iter(range(rollouts))

    async def work() -> int:
        return sum([await loop_rollout(ask) for _ in numbers])

    passed = sum(await asyncio.gather(*(work() for _ in range(at_once))))
    if passed != rollouts:
        sys.exit(f"{passed} of {rollouts} rollouts passed")


# --- one run


def command(contender: str, rollouts: int, at_once: int, folder: Path) -> list[str]:
    """The command line of a run."""
    if contender.endswith(" loop"):
        counts = ["--rollouts", str(rollouts), "--at-once", str(at_once)]
        return [sys.executable, __file__, "--loop", contender.split()[0], *counts]
    if contender == "verifiers":
        return VERIFIERS.run_line("--over-http", "--rollouts", str(rollouts), "--at-once", str(at_once))
    from with_reward_kit import write_bundle

    dataset = write_bundle(folder / "shop_task", rollouts)
    options = ["--dataset", str(dataset), "--model", "openai/stub", "--user", "reward_kit_user:second_wish"]
    options += ["--max-concurrency", str(at_once), "--no-cache", "--quiet", "--fail-under", "1"]
    workers = ["--workers", "2"] if contender.endswith("2") else []
    return [sys.executable, "-m", "reward_kit", "agent-eval", *options, *workers]


def run(contender: str, rollouts: int, at_once: int, address: str) -> dict[str, float]:
    """The figures of one run in a fresh process."""
    from urllib.request import urlopen

    with tempfile.TemporaryDirectory() as temporary:
        line = command(contender, rollouts, at_once, Path(temporary))
        given = {"OPENAI_BASE_URL": f"{address}/v1", "OPENAI_API_KEY": "none"}
        given["PYTHONDONTWRITEBYTECODE"] = ""  # else each process compiles what it imports
        paths = os.pathsep.join([str(HARNESSES), os.environ.get("PYTHONPATH", "")])
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        done = subprocess.run(
            line,
            cwd=temporary,
            env={**os.environ, **given, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
        )
        wall = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        with urlopen(f"{address}/span") as told:
            span = json.loads(told.read())
    if done.returncode or span["calls"] < rollouts * MODEL_TURNS:
        sys.exit(f"{contender}: exit code {done.returncode}, {span['calls']} calls\n{done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": wall, "span": span["span"], "cpu": cpu}


COLUMNS = {
    "wall": "wall s",
    "share": "of the ideal",
    "span": "span s",
    "cpu": "CPU s",
    "call": "CPU ms a call",
}
"""Titles of the figures of a run."""


def spread(values: list[float]) -> str:
    """The median, with the least and the most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--at-once", type=int, nargs="+", default=[50, 200, 500])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.3, help="seconds of an answer")
    parser.add_argument("--only", nargs="+", help="only these contenders")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--loop", help=argparse.SUPPRESS)
    parser.add_argument("--rollouts", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.delay)
        return
    if arguments.loop:
        asyncio.run(play_loop(arguments.loop, arguments.rollouts, arguments.at_once[0]))
        return
    contenders = arguments.only or [
        "reward-kit",
        "reward-kit --workers 2",
        "verifiers",
        "openai loop",
        "litellm loop",
    ]
    if "verifiers" in contenders and (fault := make_environment(VERIFIERS)):
        sys.exit(f"verifiers does not install: {fault}")
    ideal = 2 * MODEL_TURNS * arguments.delay
    with provider(arguments.delay) as address:
        for at_once in arguments.at_once:
            runs: dict[str, list[dict[str, float]]] = {one: [] for one in contenders}
            for _ in range(arguments.repeats):
                for one in contenders:
                    start = run(one, FEW, FEW, address)["cpu"]
                    figures = run(one, 2 * at_once, at_once, address)
                    calls = (2 * at_once - FEW) * MODEL_TURNS
                    figures["call"] = (figures["cpu"] - start) / calls * 1000
                    figures["share"] = figures["wall"] / ideal
                    runs[one].append(figures)
            print(f"{at_once} at once, {2 * at_once} rollouts, ideal {ideal:g} s")
            print(" " * 24 + "".join(f"{title:>22}" for title in COLUMNS.values()))
            for one in contenders:
                columns = (spread([each[name] for each in runs[one]]) for name in COLUMNS)
                print(f"{one:24}" + "".join(f"{text:>22}" for text in columns))


if __name__ == "__main__":
    main()
