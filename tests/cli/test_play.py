"""``reward-kit play --browser``: a rollout played by forms, over HTTP."""

import re
import signal
import subprocess
import time
from contextlib import AbstractContextManager

import httpx
from command import serving
from flight_bundle import Bundle

from reward_kit.agent import load_evaluation


def playing(bundle: Bundle, *options: str) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    """A running command, and the address that it printed."""
    return serving("play", str(bundle.folder), "0", "--browser", *options, stdin=subprocess.DEVNULL)


def page(address: str, wanted: str) -> str:
    """The page once it shows ``wanted``."""
    end = time.monotonic() + 30
    while wanted not in (html := httpx.get(address).text):
        assert time.monotonic() < end, html
        time.sleep(0.02)
    return html


def send(address: str, html: str, **fields: str) -> None:
    """Send a form of the page."""
    form = {"turn": re.findall(r'name="turn" value="(\d+)"', html)[0], **fields}
    answer = httpx.post(address, data=form, headers={"Origin": address.removesuffix("/play")})
    assert (answer.status_code, answer.headers["location"]) == (303, "/play")


def test_a_rollout_is_played_and_its_reward_shown(bundle: Bundle) -> None:
    bundle.rows({"sim_user_prompt": None, "n_rollouts": 1, "system_prompt": "Be kind."})
    with playing(bundle) as (process, address):
        html = page(address, "What do you say?")
        assert "user: Book me a flight" in html
        assert ">flight.booking.001, rollout 1: you are the agent<" in html
        assert "System prompt, 8 characters" in html
        assert httpx.get(address).headers["Referrer-Policy"] == "same-origin"  # or browsers send no origin
        form = {"turn": "99", "text": "said before"}
        assert httpx.post(address, data=form, headers={"Origin": "http://evil.example"}).status_code == 403
        assert httpx.get(address, headers={"Host": "evil.example"}).status_code == 400
        assert httpx.post(address, data=form).status_code == 303  # a form of before
        fields = {"argument flight_id": "1", "argument passenger": "<Alice  B>"}
        assert fields.keys() <= set(re.findall(r'name="([^"]*)"', html))
        send(address, html, tool="create_booking", **fields)
        html = page(address, "booking_id")
        assert "agent calls create_booking {&#34;flight_id&#34;: 1, " in html
        send(address, html, tool="create_booking", arguments='{"flight_id": 1,\n "passenger": "<Alice>"}')
        html = page(address, "&lt;Alice&gt;")
        assert "said before" not in html
        send(address, html, text="")  # nothing is said
        send(address, page(address, "What do you say?"), leave="1")
        html = page(address, "The rollout</a>")
        assert "failed (" in html
        (link,) = re.findall(r'href="(\S+/roll_\S+)"', html)
        assert "&lt;Alice&gt;" in httpx.get(address.replace("play", link)).text
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in errors) == (0, False)
    assert re.search(r" failed \(.*\nhttp://127.0.0.1:\d+/\S+/roll_\S+\.html", out)
    assert load_evaluation("latest").outcomes[0].steps == 2


def test_both_sides_on_one_page(bundle: Bundle) -> None:
    bundle.rows({"initial_messages": [], "sim_user_prompt": "You are <Alice>.", "n_rollouts": 1})
    with playing(bundle, "--as", "both") as (process, address):
        html = page(address, "You are the user. What do you say?")
        assert "You are &lt;Alice&gt;." in html
        assert "<option>" not in html
        send(address, html, text="Hello")
        html = page(address, "You are the agent. What do you say?")
        assert "user: Hello" in html
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
