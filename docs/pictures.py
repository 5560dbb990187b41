"""Make the pictures of the documentation again, from real runs: ``make pictures``.

Screenshots need Chromium or Chrome, or the package playwright with a browser of its own.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from reward_kit.agent import EvaluationResult, evaluate
from reward_kit.agent.players.agents.replay import GoldAgent

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
WIDTH = 1100
FLIGHT = {"origin": "SFO", "dest": "JFK", "date": "2025-05-20"}


class Clerk:
    """Books a flight in two turns."""

    async def respond(self, rollout: Any) -> str:
        if rollout.turns <= 1:
            found = json.loads(await rollout.call_tool("search_flights", FLIGHT))[0]
            return f"There is one at {found['depart'][-5:]}. Shall I book and pay it for you?"
        seat = {"flight_id": 1, "passenger": "Alice"}
        booked = json.loads(await rollout.call_tool("create_booking", seat))
        await rollout.call_tool("pay_booking", {"booking_id": booked["booking_id"]})
        return "It is booked and paid. You leave at 06:30."


class Alice:
    """A user who agrees, and leaves when she has her flight."""

    async def respond(self, rollout: Any) -> str:
        is_done = "booked and paid" in rollout.lines[-1].text
        return "Thank you! ###STOP###" if is_done else "Yes, please. My name is Alice."


class Forgetful(GoldAgent):
    """Replays the gold actions, but forgets the last of several items."""

    async def respond(self, rollout: Any) -> str:
        actions = []
        for number, action in enumerate(self.episode.task.row.actions or ()):
            kept = {
                name: one[: max(1, len(one) - 1)] if isinstance(one, list) else one
                for name, one in action.arguments.items()
            }
            actions.append((number, replace(action, arguments=kept)))
        self._plan = actions
        return await super().respond(rollout)


def screenshot(page: Path, target: Path, height: int, *, since: str = "<h1>") -> None:
    """Take a picture of a page, without what is between its header and the text ``since``."""
    html = page.read_text(encoding="utf-8")
    begin = html.index("<main>") + len("<main>")
    page.write_text(html[:begin] + html[html.index(since, begin) :], encoding="utf-8")
    browser = next(filter(None, map(shutil.which, BROWSERS)), str(MAC) if MAC.exists() else None)
    if browser is not None:
        with tempfile.TemporaryDirectory() as profile:
            options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
            options += [
                f"--user-data-dir={profile}",
                f"--window-size={WIDTH},{height}",
                f"--screenshot={target}",
            ]
            subprocess.run([browser, *options, page.as_uri()], check=True, capture_output=True, timeout=120)
    elif importlib.util.find_spec("playwright") is not None:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as started:
            tab = started.chromium.launch().new_page(viewport={"width": WIDTH, "height": height})
            tab.goto(page.as_uri())
            tab.screenshot(path=target)
    else:
        sys.exit(
            f"No browser is found. Install one of {', '.join(BROWSERS)}, or playwright with its chromium."
        )
    print(target.relative_to(ROOT))


def page_of(result: EvaluationResult, folder: Path) -> Path:
    """Write the pages of an evaluation; return that of its first rollout."""
    reward_kit("view", result.eval_id, "--output-dir", result.folder, "--out", folder)
    first = result.outcomes[0]
    return folder / first.row_id / f"roll_{first.id}.html"


def reward_kit(*arguments: object) -> None:
    """Run a command."""
    line = [sys.executable, "-m", "reward_kit", *map(str, arguments)]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common: dict[str, Any] = {"output_dir": folder / "runs", "n_rollouts": 1}
        bundle = ROOT / "examples" / "flight_task"
        booked = evaluate(
            bundle,
            agent="pictures:Clerk",
            user="pictures:Alice",
            task_ids="flight.booking.001",
            eval_id="desk",
            **common,
        )
        screenshot(
            page_of(booked, folder / "booked"),
            IMAGES / "conversation.png",
            960,
            since='<div class="timeline',
        )
        failed = evaluate(
            ROOT / "tau_retail_task",
            agent="pictures:Forgetful",
            no_sim_user=True,
            max_tasks=1,
            eval_id="items",
            **common,
        )
        screenshot(page_of(failed, folder / "failed"), IMAGES / "rollout.png", 1400)
    subprocess.run([sys.executable, ROOT / "docs" / "house.py", "--draw"], check=True)


if __name__ == "__main__":
    main()
