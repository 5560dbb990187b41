"""Speaks the lines of ``reward_kit/agent/players/agents/fastworkflow/worker.py`` without FastWorkflow.

What it does is said by the user: the first word of a line is one of the methods below, the rest its argument.
Any other line is said back.
"""

import json
import os
import sys
import threading
import urllib.request
from typing import Any

Line = dict[str, Any]

LACKING = os.environ.get("FAKE_LACKING")
"""JSON of what ``describe`` reports as missing variables."""


class Session:
    def __init__(self, message: Line) -> None:
        self.opened = message
        self.turns = 0
        self.over = threading.Event()

    def turn(self, text: str) -> Line:
        self.turns += 1
        name, _, rest = text.partition(" ")
        method = getattr(self, f"do_{name}", None)
        return completed(text) if method is None else method(rest)

    def do_say(self, text: str) -> Line:
        """Say it, after a model call with a price and one without."""
        rollout = self.opened["rollout"]
        model_call(rollout, "openai/gpt-4o-mini", cost=0.25, cached_tokens=30, reasoning_tokens=2)
        model_call(rollout, "hosted_vllm/mine", cost=None)
        return completed(text)

    def do_ask(self, text: str) -> Line:
        return {**completed(text), "status": "awaiting_user"}

    def do_count(self, _: str) -> Line:
        return completed(f"turn {self.turns} in process {os.getpid()}")

    def do_use(self, text: str) -> Line:
        """Call tools: JSON of [name, arguments]."""
        answers = [self._call(*call) for call in json.loads(text)]
        if any(answer["stopped"] for answer in answers):
            return {"status": "stopped"}
        return completed("; ".join(answer["result"] for answer in answers))

    def do_exhausted(self, text: str) -> Line:
        return {**completed(text), "status": "failed", "reason": "max_iters_exhausted"}

    def do_think(self, text: str) -> Line:
        return {**completed("Thought about it."), "thoughts": text}

    def do_fail(self, text: str) -> Line:
        kind, name, status = text.split()
        fault = {"kind": kind, "name": name, "status": int(status) or None}
        return {"error": {**fault, "text": "no sk-0123456789ab"}}

    def do_tell(self, name: str) -> Line:
        """What it was opened with, or a variable of its environment."""
        return completed(json.dumps(self.opened.get(name, os.environ.get(name))))

    def do_wait(self, _: str) -> Line:
        """Until it is called off."""
        self.over.wait()
        return {"status": "stopped"}

    def do_hang(self, _: str) -> Line:
        """For ever, also after it was called off."""
        threading.Event().wait()
        return {}

    def do_die(self, _: str) -> Line:
        sys.stderr.write(f"out of memory, key {os.environ.get('OPENAI_API_KEY')}\n")
        sys.stderr.flush()
        os._exit(3)

    def _call(self, name: str, arguments: Line) -> Line:
        headers = {"Authorization": f"Bearer {self.opened['token']}", "Content-Type": "application/json"}
        url = f"{self.opened['tools']}/{name}"
        request = urllib.request.Request(url, data=json.dumps(arguments).encode(), headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def completed(text: str) -> Line:
    return {"status": "completed", "reason": None, "text": text, "thoughts": ""}


def model_call(rollout: str, model: str, *, cost: float | None, **more: int) -> None:
    price = {"cost": cost or 0.0, "unpriced_calls": int(cost is None)}
    usage = {"calls": 1, "input_tokens": 100, "output_tokens": 10, **price, **more}
    call = {"model": model, "finish_reason": "stop", "started": 1.0, "seconds": 0.5}
    send({"event": "model_call", "rollout": rollout, "usage": usage, "call": call})


LOCK = threading.Lock()


def send(line: Line) -> None:
    with LOCK:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def answer(sessions: dict[str, Session], message: Line) -> None:
    rollout = message.get("rollout")
    answered: Line = {}
    if message["op"] == "describe":
        lacking = json.loads(LACKING or "{}")
        trained = "FAKE_UNTRAINED" not in os.environ
        answered = {"trained": trained, "untrained": [] if trained else ["*"], "lacking": lacking}
    elif message["op"] == "open":
        sessions[rollout] = Session(message)
    elif message["op"] == "turn":
        answered = sessions[rollout].turn(message["text"])
    elif message["op"] == "close":
        sessions.pop(rollout).over.set()
    send({"id": message["id"], **answered})


def main() -> None:
    if "FAKE_BROKEN" in os.environ:
        sys.exit("ModuleNotFoundError: No module named 'torch'")
    sessions: dict[str, Session] = {}
    for line in sys.stdin:
        threading.Thread(target=answer, args=(sessions, json.loads(line)), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main()
