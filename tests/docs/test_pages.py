"""Every page with commands, followed word by word in a folder of its own."""

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command import WITH_LITELLM
from pages import ROOT, follow
from small_tau2 import write_checkout
from stub_server import StubServer, call
from vllm_stub import vllm

# fake_server and model_files are importable from here as well.
sys.path.insert(0, str(ROOT / "tests" / "agent" / "local_models"))

from fake_server import Behaviour, all_gone, install, starts
from model_files import model_folder

from reward_kit.agent import Database, TaskBundle, compare
from reward_kit.agent.after.export import COLUMNS
from reward_kit.agent.players.agents.tool_calling import read_displays

DOCS = ROOT / "docs"
TAKE_SEAT = {"number": 2, "passenger": "Alice"}
Environment = dict[str, str]
Script = Callable[[dict[str, Any], int], Any]


def copy_bundle(place: str) -> Callable[[Path], Path]:
    """Put a bundle of the repository into the reader's folder."""
    return lambda folder: shutil.copytree(
        ROOT / place, folder / Path(place).name, ignore=shutil.ignore_patterns("__pycache__")
    )


def retail_and_agents(folder: Path) -> None:
    RETAIL(folder)
    shutil.copy(ROOT / "examples" / "some_agents.py", folder)


FLIGHT, SEATS = copy_bundle("examples/flight_task"), copy_bundle("examples/seat_task")
RETAIL = copy_bundle("tau_retail_task")


def seat_model(request: dict[str, Any], place: int) -> Any:
    """Plans where it is given no tools, else takes seat 2 and says so."""
    if not request.get("tools"):
        return "I am going to take the seat."
    return call("take_seat", **TAKE_SEAT) if place == 0 else "You have seat 2."


def retail_agent_or_user(request: dict[str, Any], place: int) -> str:
    if "# Available tools" in request["messages"][0]["content"]:
        return 'Thought:\nNo.\nAction:\n{"name": "respond", "arguments": {"content": "I cannot help."}}'
    return ["Hello, something is wrong with my order.", "###STOP###"][min(place, 1)]


def by_seed(right: Script, wrong: Script) -> Script:
    """An agent that plays its first two rollouts right and the others wrong."""
    seeds: list[Any] = []

    def answer(request: dict[str, Any], place: int) -> Any:
        if request.get("seed") not in seeds:
            seeds.append(request.get("seed"))
        return (right if seeds.index(request.get("seed")) < 2 else wrong)(request, place)

    return answer


def first_seat(request: dict[str, Any], place: int) -> Any:
    return call("take_seat", number=1, passenger="Alice") if place == 0 else "You have a seat."


def seat_with_tokens(_request: dict[str, Any], place: int) -> Any:
    return "You have seat 2." if place else ("take_seat", {"number": 2, "passenger": "Alice"})


def books(request: dict[str, Any], place: int) -> Any:
    results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    if not results:
        return call("search_flights", origin="SFO", dest="JFK", date="2025-05-20")
    if len(results) == 1:
        return call("create_booking", flight_id=json.loads(results[0])[0]["id"], passenger="Alice")
    if len(results) == 2:
        return call("pay_booking", booking_id=json.loads(results[1])["booking_id"])
    return "It is booked and paid: you leave at 06:30."


def finds(request: dict[str, Any], _place: int) -> str:
    """A judge that finds every criterion met but the wish."""
    listed = request["messages"][1]["content"].partition("</criteria>")[0].splitlines()[1:]
    verdicts = [{"reason": "It does not.", "met": "wishes" not in line} for line in listed if line]
    return json.dumps({"verdicts": verdicts})


KEYBOARDS, THERMOSTATS = "1656367028", "4896585277"


def exchanges(right: Callable[[dict[str, Any], str], bool]) -> Script:
    """Exchanges a keyboard and a thermostat; if it is not ``right``, the keyboard is one with white light."""

    def answer(request: dict[str, Any], _place: int) -> Any:
        results = [one["content"] for one in request["messages"] if one["role"] == "tool"]
        own = [one.get("content") for one in request["messages"] if one["role"] == "assistant"]
        said = [text for text in own if text]
        if not said:
            return "Gladly. What is your name, and your zip code?"
        if not results:
            return call("find_user_id_by_name_zip", first_name="Yusuf", last_name="Rossi", zip="19122")
        if len(results) == 1:
            return call("get_order_details", order_id="#W2378156")
        if len(results) <= 3:
            return call("get_product_details", product_id=[KEYBOARDS, THERMOSTATS][len(results) - 2])
        if len(results) == 4 and len(said) == 1:
            one = "7706410293, without a backlight" if right(request, results[2]) else "6342039236, clicky"
            return f"I can send you keyboard {one}, and thermostat 7747408585. Do you confirm?"
        if len(results) == 4:
            items = {"item_ids": ["1151293680", "4983901480"], "payment_method_id": "credit_card_9513926"}
            new = re.findall(r"\d{10}", said[-1])
            return call("exchange_delivered_order_items", order_id="#W2378156", new_item_ids=new, **items)
        return "It is done: you get an email on how to return the items."

    return answer


def one_in_four() -> Callable[[dict[str, Any], str], bool]:
    """A model that reads the list right in one rollout of four, and whenever the list is short."""
    seeds: list[Any] = []

    def is_right(request: dict[str, Any], keyboards: str) -> bool:
        if request["seed"] not in seeds:
            seeds.append(request["seed"])
        return seeds.index(request["seed"]) % 4 == 3 or len(keyboards) < 400

    return is_right


def yusuf(request: dict[str, Any], _place: int) -> str:
    heard = request["messages"][-1]["content"]
    if "name" in heard:
        return "Yusuf Rossi, 19122."
    if "confirm" in heard:
        return "Yes, please."
    return "Thank you. ###STOP###" if "done" in heard else "Hello, I want to exchange a keyboard."


JUDGED = {"author": "agent", "fault": "wrong_arguments", "sentence": "It booked for Alice Miller."}
PAGES: dict[str, tuple[Callable[[Path], Any] | None, dict[str, Any]]] = {
    "branch": (
        RETAIL,
        {
            "gpt-4o-mini": exchanges(one_in_four()),
            "gpt-4o": exchanges(lambda *_: True),
            "gpt-3.5-turbo": yusuf,
        },
    ),
    "card": (retail_and_agents, {}),
    "compare": (RETAIL, {}),
    "compatibility": (lambda folder: (folder / "metric").mkdir(), {}),
    "export": (SEATS, {"my-model": vllm(seat_with_tokens)}),
    "failures": (FLIGHT, {"gpt-4o": [json.dumps(JUDGED)]}),
    "from-json": (None, {}),
    "gate": (RETAIL, {}),
    "http-agent": (FLIGHT, {}),
    "mcp": (FLIGHT, {}),
    "observability": (FLIGHT, {}),
    "own-agents": (SEATS, {"gpt-4o-mini": [call("take_seat", **TAKE_SEAT), "You have seat 2."]}),
    "python": (SEATS, {"gpt-4o-mini": seat_model, "gpt-4o": ["You have seat 2."]}),
    "reproducibility": (SEATS, {"gpt-4o-mini": by_seed(seat_model, first_seat)}),
    "results-files": (copy_bundle("examples/phone_task"), {}),
    "retail": (RETAIL, {}),
    "rewards": (SEATS, {"gpt-4o-mini": seat_model, "gpt-4o": finds}),
    "rules": (FLIGHT, {}),
    "serve": (SEATS, {}),
    "tau2": (lambda folder: write_checkout(folder / "tau2-bench"), {}),
    "train": (SEATS, {}),
    "troubleshooting": (SEATS, {}),
    "tau-bench": (RETAIL, {"gpt-4o": retail_agent_or_user}),
    "two-sides": (
        copy_bundle("examples/phone_task"),
        {
            "gpt-4o-mini": [
                call("find_line", customer="Ana"),
                call("resume_line", number="555-0101"),
                "Your line is active again. Please restart your phone.",
            ],
            "gpt-4o": [
                "My phone has had no signal since this morning.",
                call("restart"),
                "It works again, thank you. ###STOP###",
            ],
        },
    ),
    "tutorial": (
        None,
        {
            "gpt-4o-mini": by_seed(books, lambda request, place: "I found no flight."),
            "gpt-3.5-turbo": ["Thank you. ###STOP###"],
        },
    ),
    "validate": (FLIGHT, {}),
    "view": (RETAIL, {}),
}
"""Of each page: what is in the reader's folder, and what the models say."""
PACKAGES = {"mcp": ["mcp"], "own-agents": ["agents", "langgraph", "langchain_openai"]}
"""Packages that a page needs beside this one."""
LITELLM = ("python", "troubleshooting")
"""Pages with a command that imports it."""


def exported(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "mixed.jsonl").read_text().splitlines()]
    assert [tuple(line) for line in lines] == [COLUMNS] * 4
    for_openai = [json.loads(line) for line in (folder / "openai.jsonl").read_text().splitlines()]
    assert [set(line) for line in for_openai] == [{"messages", "tools", "parallel_tool_calls"}] * 2


def compared(folder: Path) -> None:
    plain = compare("hasty", "careful", output_dir=folder / "runs").to_json()
    section = (DOCS / "compare.md").read_text().split("`--json` writes everything")[1].split("\n## ")[0]
    assert set(plain) - {"format"} == set(re.findall(r"`(\w+)`", section))


def wrapped(folder: Path) -> None:
    with within(folder), TaskBundle.load("ticket_task") as bundle:
        asyncio.run(play_some_calls(bundle))


async def play_some_calls(bundle: TaskBundle) -> None:
    """The wrapped functions have their own schemas, and write nothing where they only look or refuse."""
    registry, seed = bundle.tasks[0].registry, bundle.tasks[0].seed
    schema = registry.tools["close_ticket"].schema
    assert list(schema["properties"]) == ["ticket_id", "resolution"]
    assert schema["properties"]["ticket_id"]["description"] == "such as T1"
    with Database.seed("tickets.db", seed.sql, script=seed.script) as base, base.fork() as db:
        found = await registry.call("find_tickets", {"word": "vpn"}, db=db)
        assert [ticket["subject"] for ticket in json.loads(found.content)] == ["VPN is slow"]
        assert not found.changes
        closed = {"ticket_id": "T1", "resolution": "Out."}
        statuses = [(await registry.call("close_ticket", closed, db=db)).status for _ in range(2)]
        assert statuses == ["ok", "refused"]
        assert len(db.changes().lines()) == 1


@contextmanager
def within(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


AFTERWARDS = {"compare": compared, "export": exported, "from-json": wrapped}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PAGES)
def test_every_example_does_what_the_page_says(
    name: str, tmp_path: Path, environment: Environment, stub_llm: StubServer
) -> None:
    for package in PACKAGES.get(name, []):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    page = DOCS / f"{name}.md"
    if "curl " in page.read_text(encoding="utf-8") and shutil.which("curl") is None:
        pytest.skip("the page uses curl")
    prepare, scripts = PAGES[name]
    if prepare is not None:
        prepare(tmp_path)
    for model, script in scripts.items():
        stub_llm.script(model, script)
    if name == "tutorial":
        del environment["OPENAI_API_KEY"]  # it comes from the tutorial's .env
    else:
        environment["OPENAI_BASE_URL"] = stub_llm.url
    if name in LITELLM:
        environment |= WITH_LITELLM
    if name == "reproducibility":
        environment["MODEL_AGENT"] = "openai/gpt-4o-mini"
    follow(page, tmp_path, environment)
    if name == "reproducibility":
        assert len(stub_llm.requests) == 8
    AFTERWARDS.get(name, lambda folder: None)(tmp_path)


def looks_up(request: dict[str, Any], place: int) -> Any:
    """One look at the flights in whatever form is asked for, then an answer."""
    if place > 0:
        return "It leaves at 06:40."
    arguments = {"origin": "SFO", "dest": "BOS", "date": "2025-05-20"}
    if "tools" in request:
        return call("search_flights", **arguments)
    return f"Thought: I look.\nAction: {json.dumps({'name': 'search_flights', 'arguments': arguments})}"


@pytest.mark.timeout(300)
def test_the_page_about_agents(tmp_path: Path, environment: Environment, stub_llm: StubServer) -> None:
    stub_llm.script("gpt-4o-mini", looks_up)
    stub_llm.script("gpt-3.5-turbo", ["Thank you ###STOP###"])
    FLIGHT(tmp_path)
    page = tmp_path / "page.md"
    text = (DOCS / "agents.md").read_text(encoding="utf-8")
    page.write_text(text.partition("\n## Your own agent")[0], encoding="utf-8")
    models = {"MODEL_AGENT": "openai/gpt-4o-mini", "MODEL_SIM": "openai/gpt-3.5-turbo"}
    follow(page, tmp_path, {**environment, **models})
    evals = tmp_path / "runs" / "evals"
    for name in ("thinking", "shown"):
        assert json.loads((evals / f"{name}.json").read_text())["status"] == "complete"
    assert len(read_displays(tmp_path / "displays.jsonl")) == 5
    prompts = [request["messages"][0]["content"] for request in stub_llm.requests if "tools" in request]
    assert all("Example 5:\nUser: " in prompt for prompt in prompts)


def alice(request: dict[str, Any], _place: int) -> str:
    """Says what the page says, with a thought where it is asked for one."""
    system, heard = (request["messages"][place]["content"] for place in (0, -1))
    line = "Hello, I would like seat 2."
    if "yours" in heard:
        line = "###STOP###"
    elif "Who is it" in heard:
        line = "Alice, A1234."
    return f"Thought:\nI begin with the seat.\nUser Response:\n{line}" if "User Response" in system else line


def hasty(request: dict[str, Any], _place: int) -> str:
    """Confirms and leaves at once, unless it was sent back."""
    heard = request["messages"][-1]["content"]
    if "was not sent" in heard:
        return "Yes, I confirm."
    return (
        "Yes, please. ###STOP###" if "confirm" in heard else "Seat 2!" if "Hello" in heard else "###STOP###"
    )


@pytest.mark.timeout(300)
def test_the_page_about_users(tmp_path: Path, environment: Environment, stub_llm: StubServer) -> None:
    stub_llm.script("gpt-4o-mini", ["Who is it for?", call("take_seat", **TAKE_SEAT), "It is yours."])
    stub_llm.script("gpt-4o", alice)
    stub_llm.script("gpt-4o-hasty", hasty)
    SEATS(tmp_path)
    (tmp_path / "seat_task" / "prompts").mkdir()
    follow(DOCS / "users.md", tmp_path, environment)
    systems = [request["messages"][0]["content"] for request in stub_llm.requests_for("gpt-4o")]
    beginning = "You are a passenger at a counter. You are Alice, customer"
    assert any(text.startswith(beginning) for text in systems)


@pytest.mark.timeout(300)
def test_the_page_about_local_models(tmp_path: Path, environment: Environment) -> None:
    SEATS(tmp_path)
    model_folder(tmp_path / "models" / "Qwen3-0.6B")
    answers = [{"tool_calls": [{"name": "take_seat", "arguments": TAKE_SEAT}]}, "Alice has seat 2."]
    record = install(tmp_path / "bin", "vllm", Behaviour(answers=answers))
    places = [Path(sys.executable).parent, tmp_path / "bin", "/usr/bin", "/bin"]
    follow(DOCS / "local-models.md", tmp_path, {**environment, "PATH": os.pathsep.join(map(str, places))})
    assert len(starts(record)) == 1
    assert all_gone(record)
