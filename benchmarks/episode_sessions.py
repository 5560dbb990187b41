"""The memory of a server with many sessions, and the time of their requests.

    python benchmarks/episode_sessions.py [--sessions 1000]

``reward-kit serve tau_retail_task`` runs as a process, with a user that is a function. Each session holds an
episode in which the gold actions of a row were played and some lines were said. Memory is that of the server
process at its highest.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import click

from reward_kit.agent import TaskBundle

USER = "def talks(rollout):\n    return f'Line {len(rollout.lines)}: and what about my order?'\n"
LINES = 5
AT_ONCE = 16
TARGET_MEGABYTES = 1000


async def play(client: aiohttp.ClientSession, session: str, task: object, taken: list[float]) -> None:
    """Play the gold actions of a row in a session, and say some lines."""

    async def post(path: str, body: object) -> None:
        start = time.perf_counter()
        async with client.post(path, json=body, headers={"X-Session-Id": session}) as answer:
            assert answer.status == 200, await answer.text()
        taken.append(time.perf_counter() - start)

    await post(f"/sessions/{session}/reset?row={task.row.id}", {})
    for action in task.row.actions or ():
        await post(f"/tools/{action.name}", action.arguments)
    for _ in range(LINES):
        await post(f"/sessions/{session}/say", {"text": "I have changed it. Is there anything else?"})


def peak(pid: int) -> float:
    """Megabytes of memory that a process has held at most."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


async def measure(sessions: int) -> None:
    with TaskBundle.load("tau_retail_task") as bundle, tempfile.TemporaryDirectory() as folder:
        tasks = [task for task in bundle.tasks if task.row.actions]
        Path(folder, "speaking_user.py").write_text(USER)
        command = ["-m", "reward_kit", "serve", "tau_retail_task", "--port", "0"]
        command += ["--user", "speaking_user:talks"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, str(Path.cwd())])}
        pipe = asyncio.subprocess.PIPE
        server = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=pipe, env=env)
        try:
            url = (await server.stdout.readline()).decode().split()[0]
            before, taken, room = peak(server.pid), [], asyncio.Semaphore(AT_ONCE)

            async def played(number: int) -> None:
                async with room:
                    await play(client, f"s{number}", tasks[number % len(tasks)], taken)

            timeout = aiohttp.ClientTimeout(total=300)
            async with aiohttp.ClientSession(url, timeout=timeout) as client:
                await asyncio.gather(*map(played, range(sessions)))
            after = peak(server.pid)
        finally:
            server.terminate()
            await server.wait()
    click.echo(f"{sessions} sessions   {after:8.1f} MB   (target {TARGET_MEGABYTES} for 1000)")
    click.echo(f"without any     {before:8.1f} MB")
    click.echo(f"a request       {statistics.median(taken) * 1e3:8.1f} ms, {AT_ONCE} at a time")


@click.command()
@click.option("--sessions", default=1000, show_default=True, help="Sessions that are open at a time.")
def main(sessions: int) -> None:
    """Measure a server of episodes."""
    asyncio.run(asyncio.wait_for(measure(sessions), 600))


if __name__ == "__main__":
    main()
