"""``reward-kit play --browser``: a rollout played by forms, over HTTP."""

import http.client
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode, urlsplit

from command import start
from flight_bundle import Bundle

from reward_kit.agent import load_evaluation


class Browser:
    """Reads the page of a running ``play``, and sends its forms."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, fields: dict[str, str] | None = None, path: str = "", **headers: str) -> tuple[int, str]:
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection(parts.netloc, timeout=30)
        body, method = (None, "GET") if fields is None else (urlencode(fields), "POST")
        connection.request(method, path or parts.path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def page(self, wanted: str) -> str:
        """The page once it shows ``wanted``."""
        end, html = time.monotonic() + 30, ""
        while wanted not in html:
            assert time.monotonic() < end, html
            time.sleep(0.02)
            html = self.ask()[1]
        return html

    def send(self, html: str, **fields: str) -> None:
        found = re.search(r'name="turn" value="(\d+)"', html)
        assert found is not None
        status, _ = self.ask({"turn": found[1], **fields}, Origin=self.address.removesuffix("/play"))
        assert status == 303


@contextmanager
def playing(bundle: Bundle, *options: str) -> Iterator[tuple[subprocess.Popen[str], Browser]]:
    command = ("play", str(bundle.folder), "0", "--browser", *options)
    process = start(*command, stdin=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        yield process, Browser(process.stdout.readline().split()[0])
    finally:
        process.kill()
        process.communicate()


def test_a_rollout_is_played_and_its_reward_shown(bundle: Bundle) -> None:
    bundle.rows({"sim_user_prompt": None, "n_rollouts": 1})
    with playing(bundle) as (process, browser):
        html = browser.page("What do you say?")
        assert "Book" in html
        assert "<option>create_booking</option>" in html
        browser.send(html, tool="create_booking", arguments='{"flight_id": 1,\n "passenger": "<Alice>"}')
        html = browser.page("booking_id")
        assert "&lt;Alice&gt;" in html
        browser.send(html, text="")  # nothing is said
        browser.send(browser.page("What do you say?"), text="Booked.")
        html = browser.page("The rollout</a>")
        assert "failed (" in html
        (link,) = re.findall(r'href="(\S+/roll_\S+)"', html)
        assert "&lt;Alice&gt;" in browser.ask(path=f"/{link}")[1]
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert re.search(r" failed \(.*\nhttp://127.0.0.1:\d+/\S+/roll_\S+\.html", out)
    assert load_evaluation("latest").outcomes[0].turns == 1


def test_both_sides_on_one_page(bundle: Bundle) -> None:
    bundle.rows({"initial_messages": [], "sim_user_prompt": "You are Alice.", "n_rollouts": 1})
    with playing(bundle, "--as", "both") as (_, browser):
        html = browser.page("You are the user. What do you say?")
        assert "You are Alice." in html
        assert "<option>" not in html
        browser.send(html, text="Hello")
        html = browser.page("You are the agent. What do you say?")
        assert "user: Hello" in html
        browser.send(html, leave="1")
        browser.page("The rollout</a>")


def test_other_sites_cannot_play(bundle: Bundle) -> None:
    bundle.rows({"sim_user_prompt": None, "n_rollouts": 1})
    with playing(bundle) as (process, browser):
        browser.page("What do you say?")
        assert browser.ask({"turn": "2", "text": "x"}, Origin="http://evil.example")[0] == 403
        assert browser.ask(Host="evil.example")[0] == 400
        assert browser.ask({"turn": "99", "text": "twice said"})[0] == 303  # a form that was sent twice
        assert "twice said" not in browser.page("What do you say?")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
