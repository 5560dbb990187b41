"""The pages in a real browser; ``REWARD_KIT_AXE=axe.min.js`` (of axe-core) and ``chromium`` must be there."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flight_bundle import flight_bundle
from planned_agent import evaluate
from stored_rollouts import begun, edit, played

from reward_kit.agent.base.network import LOOPBACK, listen
from reward_kit.agent.reports.pages.play_page import PlayPage
from reward_kit.agent.reports.pages.rendering import rollout_address
from reward_kit.agent.reports.pages.site import served

AXE = os.environ.get("REWARD_KIT_AXE")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    not (AXE and CHROMIUM), reason="needs axe-core and Chromium: make test-browser"
)
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --remote-debugging-pipe"


class Tab:
    """A tab, driven by the DevTools protocol over two pipes."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._buffer, self._number = write, read, b"", 0
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.send("Page.enable")

    def send(self, method: str, **params: Any) -> Any:
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        session = {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps({**command, **session}).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                self._buffer += os.read(self._read, 1 << 16)
            text, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def run(self, script: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, address: str) -> None:
        self.send("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def wait(self, condition: str) -> None:
        end = time.monotonic() + 20
        while not self.run(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.05)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, text=key if kind == "keyDown" else "")


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    ours, theirs, back, front = *os.pipe(), *os.pipe()
    script = f"exec {CHROMIUM} {FLAGS} --user-data-dir={tmp_path}/profile 3<&{ours} 4>&{front}"
    process = subprocess.Popen(["bash", "-c", script], pass_fds=(ours, front), stderr=subprocess.DEVNULL)
    yield Tab(theirs, back)
    process.kill()
    process.wait()


async def _two_turns(page: PlayPage, played: Any) -> None:
    for _ in range(2):
        await page.typed(played, "agent", begins=True)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The addresses of pages of a server, by their kind."""
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    usage = {"calls": 1, "input_tokens": 9, "cost": 0.5}
    result = evaluate(bundle, "first", {"a": [1, 1], "b": [1, 0], "c": [0, 0]}, usage=usage)
    evaluate(bundle, "second", {"a": [0, 1], "b": [1, 1], "c": [0, 1]}, usage=usage)
    addresses = {
        "list": "",
        "rows": "evals/first.html",
        "rollouts": "evals/first.html?by=rollouts&sort=-cost&result=failed",
        "rollout": rollout_address(next(one for one in result.outcomes if not one.success)),
        "compare": "compare/first/second",
        "beside": "compare/first/second/c",
        "fault": "evals/nothing.html",
        "live": "evals/live.html",
        "play": "play",
    }
    page = PlayPage()
    page.show("user: Hello")
    schema = {"properties": {"at": {"type": "string"}, "near": {"type": "boolean"}, "how": {}}}
    function = {"name": "look", "description": "Look.", "parameters": schema}
    played = SimpleNamespace(tools=[{"function": function}], system_prompt="Be kind.")
    threading.Thread(target=asyncio.run, args=(_two_turns(page, played),), daemon=True).start()
    with listen(LOOPBACK, 0) as listener, served(Path("runs"), listener, page.route("play")):
        root = f"http://{LOOPBACK}:{listener.getsockname()[1]}/"
        yield {kind: root + address for kind, address in addresses.items()}


def test_pages_are_accessible(site: dict[str, str], tab: Tab) -> None:
    axe = Path(AXE or "").read_text()
    faults = {}
    tab.send("Page.setBypassCSP", enabled=True)
    for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light")):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        tab.send("Emulation.setDeviceMetricsOverride", **size)
        tab.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for kind, address in site.items():
            tab.open(address)
            tab.run("document.querySelectorAll('details').forEach((one) => { one.open = true })")
            tab.run(f"{axe};0")
            found = json.loads(tab.run("axe.run().then((found) => JSON.stringify(found.violations))"))
            told = {one["id"]: [node["html"][:200] for node in one["nodes"]][:3] for one in found}
            if told or not tab.run("document.documentElement.scrollWidth <= innerWidth"):
                faults[f"{kind} {width} {scheme}"] = told
    assert not faults, json.dumps(faults, indent=1)


def test_keys_lead_through_pages(site: dict[str, str], tab: Tab) -> None:
    tab.open(site["rollouts"])
    for key in "jjk":
        tab.press(key)
    chosen = tab.run("document.activeElement.href")
    assert chosen == tab.run("document.querySelector('.item').href")
    tab.press("/")
    assert tab.run("document.activeElement.name") == "text"
    tab.press("j")
    assert tab.run("document.activeElement.value") == "j"
    tab.open(chosen)
    tab.press("?")
    assert tab.run("document.getElementById('help').open")
    tab.press("?")
    tab.press("n")
    tab.wait(f"location.href !== {json.dumps(chosen)} && document.readyState === 'complete'")
    assert "2 of 3 selected" in tab.run("document.body.innerText")
    tab.press("u")
    tab.wait("location.pathname === '/evals/first.html' && document.readyState === 'complete'")
    assert tab.run("location.search").startswith("?by=rollouts")
    tab.run("document.getElementById('keys').click()")
    tab.press("/")
    assert tab.run("document.activeElement.name") != "text"


def test_a_form_calls_a_tool(site: dict[str, str], tab: Tab) -> None:
    tab.open(site["play"])
    tab.run("document.querySelector('[name=\"argument at\"]').value = 'the sea'")
    tab.run("document.querySelector('.fields button').click()")
    tab.wait("document.readyState === 'complete' && document.body.innerText.includes('agent calls look')")
    assert 'look {"at": "the sea"}' in tab.run("document.body.innerText")


def test_filters_and_ticks_need_no_button(site: dict[str, str], tab: Tab) -> None:
    tab.open(site["rows"])
    assert not tab.run("document.querySelector('.filters button').offsetParent")
    tab.run("const by = document.querySelector('[name=by]'); by.value = 'rollouts'")
    tab.run("by.dispatchEvent(new Event('change', { bubbles: true }))")
    tab.wait("location.search.includes('by=rollouts') && document.readyState === 'complete'")
    tab.open(site["list"])
    assert tab.run("document.querySelector('[data-pick] button').disabled")
    tab.run("document.querySelectorAll('[name=pick]').forEach((one) => one.click())")
    tab.run("document.querySelector('[data-pick] button').click()")
    tab.wait("location.pathname === '/compare/first/second'")


def test_the_first_screens_show_failures_and_the_conversation(site: dict[str, str], tab: Tab) -> None:
    tab.send("Emulation.setDeviceMetricsOverride", width=1280, height=960, deviceScaleFactor=1, mobile=False)
    for kind, first in (("rows", "tr.never"), ("rollout", ".message.user")):
        tab.open(site[kind])
        assert tab.run(f"document.querySelector('{first}').getBoundingClientRect().bottom") < 960


def test_a_running_evaluation_is_brought_up_to_date_in_place(site: dict[str, str], tab: Tab) -> None:
    with begun(Path("runs/evals/live.db")) as store:
        edit(store.path, """UPDATE evaluation SET configuration = '{"dataset": "d", "agent": "x"}'""")
        store.add([played(0)])
        tab.open(site["live"])
        assert "1 of 1 judged rollout passed" in tab.run("document.body.innerText")
        tab.run("window.isSame = true; document.querySelector('.item').focus()")
        store.add([played(1, reward=0.0), played(2)])
        tab.wait("document.body.innerText.includes('2 of 3 judged rollouts passed')")
        assert tab.run("window.isSame && document.activeElement.className.includes('item')")
        store.end_run("complete", None, seconds=1.0)
        tab.wait("!document.body.innerText.includes('still running')")
