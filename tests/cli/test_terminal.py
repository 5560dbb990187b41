"""Commands on a terminal: no line is wider than it, the last screen fits, and a pipe gets plain text."""

import json
import os
import re
from pathlib import Path

import pytest
from command import run_command, run_on_terminal
from flight_bundle import GOLD, Bundle

from reward_kit.agent.base.printing import warn

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
AGENT = """
class Agent:
    async def respond(self, rollout):
        if rollout.index == 0:
            return "All flights are full, so I can do nothing for you today."
        await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice Miller " * 9})
        await rollout.call_tool("search", "{no json")
        return "Done."
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with evaluations of forty rows: all fail, all pass, all fail."""
    from flight_bundle import flight_bundle

    bundle = flight_bundle(tmp_path_factory.mktemp("terminal"))
    prompt = "\n".join(f"Rule {number} of a long policy." for number in range(40))
    fields = {"actions": GOLD, "sim_user_prompt": None, "n_rollouts": 2, "system_prompt": prompt}
    bundle.rows(*({"id": f"flight.booking.{number:03}", **fields} for number in range(40)))
    bundle.write("own.py", AGENT)
    for name, agent in (("one", "own:Agent"), ("two", "gold"), ("three", "own:Agent")):
        given = ("-d", "task.jsonl", "--agent", agent, "--eval-id", name, "--quiet")
        assert run_command("agent-eval", *given, cwd=bundle.folder).code == 0
    return bundle.folder


def on_terminal(folder: Path, columns: int, *arguments: str, **variables: str) -> tuple[str, list[str]]:
    """What a command wrote, and its lines as they stand on the terminal at the end."""
    env = {**{name: it for name, it in os.environ.items() if name != "NO_COLOR"}, **variables}
    written = run_on_terminal(*arguments, columns=columns, cwd=folder, env=env)
    lines = [line.rpartition("\r")[2] for line in ESCAPE.sub("", written).replace("\r\n", "\n").split("\n")]
    assert [line for line in lines if len(line) > columns] == []
    return written, lines


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("agent", ["own:Agent", "gold"])
def test_an_evaluation_ends_with_one_screen(folder: Path, columns: int, agent: str) -> None:
    options = ("-d", "task.jsonl", "--agent", agent, "--eval-id", f"{agent[:3]}{columns}")
    written, lines = on_terminal(folder, columns, "agent-eval", *options)
    (title,) = [at for at, line in enumerate(lines) if " judged rollouts passed, 40 rows" in line]
    report = lines[title:]
    assert len(report) <= (24 if agent == "own:Agent" else 13)
    assert "\x1b[1m" in written
    assert report[-2].startswith("browse        reward-kit view ")
    assert report[-6 if agent == "own:Agent" else -5].startswith(f"| {agent} | ")
    if agent == "own:Agent":
        assert "\x1b[31mwrong_arguments\x1b[0m" in written or "\x1b[31mpartially_completed\x1b[0m" in written
        (command,) = re.findall(r'reward-kit show ("[^"]+")', "\n".join(report))
        assert "failed, reward 0" in run_command("show", command.strip('"'), cwd=folder).out


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("what", [(), ("one",), ("one flight.booking.007#2",), ("flight.booking.007",)])
def test_what_show_prints_fits(folder: Path, columns: int, what: tuple[str, ...]) -> None:
    _, lines = on_terminal(folder, columns, "show", *what)
    if "#" in "".join(what):
        assert lines[0] == "one flight.booking.007#2: failed, reward 0"
        assert lines[2] == "SYSTEM  40 lines; --full shows them"
        assert any(line.startswith("  * bookings #") for line in lines)
        assert "  Rule 7 of a long policy." in on_terminal(folder, columns, "show", *what, "--full")[1]


@pytest.mark.parametrize("columns", [80, 120])
def test_comparisons_begin_with_the_verdict_and_fit(folder: Path, columns: int) -> None:
    _, lines = on_terminal(folder, columns, "compare", "two", "one")
    assert lines[0].startswith("B is worse on these tasks: -100.0 points (95 %: ")
    assert sum(line.startswith('  read one: reward-kit show "one flight.booking.000#') for line in lines) == 1
    _, lines = on_terminal(folder, columns, "compare", "two", "one", "three")
    assert lines[2].startswith("C is worse on these tasks: -100.0 points (95 %: ")
    assert sum(line.startswith("C  three ") for line in lines) == 1


def test_colour_is_for_terminals_and_can_be_switched_off(folder: Path) -> None:
    assert "\x1b" not in run_command("show", "one", cwd=folder).out
    assert "\x1b" in on_terminal(folder, 80, "show", "one")[0]
    assert "\x1b" not in on_terminal(folder, 80, "show", "one", NO_COLOR="1")[0]


def test_a_warning_is_called_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    warn("warning: row 'a': its gold is refused")
    warn("the disk is nearly full")
    assert (
        capsys.readouterr().err == "warning: row 'a': its gold is refused\nwarning: the disk is nearly full\n"
    )


def test_a_run_without_a_call_or_a_reply_is_told(bundle: Bundle) -> None:
    bundle.write("broken.py", "def answer(message):\n    return message.no\n")
    bundle.rows({"sim_user_prompt": None})
    given = ("-d", "task.jsonl", "--agent", "broken:answer")
    ran = run_command("agent-eval", *given, cwd=bundle.folder)
    said = "4 of 4 rollouts ended with broken.py:2: AttributeError: "
    assert (ran.code, f"warning {said}" in " ".join(ran.out.split())) == (1, True)
    assert "No rollout got as far as a call or a reply." in ran.error
    quiet = run_command("agent-eval", *given, "--quiet", cwd=bundle.folder)
    assert quiet.code == 1
    assert quiet.err.startswith(f"warning: {said}")


PLAYERS = """
class Agent:
    async def respond(self, rollout):
        for _ in range(3):
            await rollout.call_tool("pay_booking", "{booking_id: 1")
        return "Done."


class Unknown(Agent):
    async def respond(self, rollout):
        await rollout.call_tool("pay", {"booking_id": 1})
        return "Done."


class Loop(Agent):
    async def respond(self, rollout):
        while True:
            await rollout.call_tool("pay_booking", {"booking_id": "x"})


class Polite(Agent):
    async def respond(self, rollout):
        return "What else can I do?"


class User:
    async def respond(self, rollout):
        return "Nothing."
"""


@pytest.mark.parametrize(
    ("agent", "kind", "text"),
    [
        ("Agent", "invalid_json", "12 calls in 4 of 4 rollouts were not valid JSON: pay_booking({booking_id"),
        ("Unknown", "unknown_tool", "4 calls in 4 of 4 rollouts named a tool that does not exist: pay"),
        ("Loop", "repeated_call", "4 of 4 rollouts made one call again and again, up to 30 times: pay_book"),
        ("Polite", "endless_user", "4 of 4 rollouts reached a limit because the user never ended the con"),
    ],
)
def test_an_agent_that_fails_everywhere_is_told(bundle: Bundle, agent: str, kind: str, text: str) -> None:
    bundle.write("players.py", PLAYERS)
    given = ("-d", "task.jsonl", "--agent", f"players:{agent}", "--user", "players:User", "--eval-id", "e")
    if agent in ("Agent", "Unknown"):
        given = (*given[:4], "--no-sim-user", *given[-2:])
    ran = run_command("agent-eval", *given, cwd=bundle.folder)
    assert (ran.code, f"warning {text}" in " ".join(ran.out.split())) == (0, True), ran.out
    plain = json.loads((bundle.folder / "runs" / "evals" / "e.json").read_text())
    (fact,) = plain["facts"]
    assert (fact["kind"], fact["rollouts"], fact["of"]) == (kind, 4, 4)
    assert fact["text"].startswith(text)
