"""What the pages list and count is what there is in the code."""

import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from flight_bundle import GOLD, Bundle
from http_stub_agent import opened, serving
from pages import ROOT, blocks, files
from pages import table as table_of
from small_task import seeded, small_task
from stored_rollouts import edit, query

import reward_kit
import reward_kit.agent
from reward_kit.agent import agent_eval
from reward_kit.agent.base import network
from reward_kit.agent.bundles.files import PLACEHOLDERS
from reward_kit.agent.checks.findings import KINDS, Kind
from reward_kit.agent.config import OPTIONS, EvaluationConfig, flag_of
from reward_kit.agent.evaluation import telemetry
from reward_kit.agent.models import limiter, limits
from reward_kit.agent.models.local import backends, server
from reward_kit.agent.players.agents.fastworkflow import preflight
from reward_kit.agent.players.agents.http_agent import FAREWELL, LAST_WORDS, MAX_ANSWER, PROTOCOL
from reward_kit.agent.players.names import AGENTS, USERS
from reward_kit.agent.rollout.orchestrator import run_rollout_async
from reward_kit.agent.scoring.failures.classify import FAILURE_KINDS, Failure
from reward_kit.agent.scoring.user_faults import UserFaultKind
from reward_kit.agent.servers.endpoint import MAX_BODY
from reward_kit.cli.fastworkflow import fastworkflow

DOCS = ROOT / "docs"
FLAGS = {part for option in OPTIONS.values() for flag in option.flags for part in flag.split("/")}
THEIRS = (
    "--env --model --model-provider --user-model --user-model-provider --agent-strategy --user-strategy "
    "--temperature --task-split --start-index --end-index --task-ids --log-dir --max-concurrency --seed "
    "--shuffle --num-trials --few-shot-displays-path"
)
"""The flags of tau-bench's run.py."""


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def flat(name: str) -> str:
    return " ".join(page(name).split())


def numbers(name: str, heading: str) -> list[float]:
    """The second column of the first table from a heading on."""
    return [float(row[1]) for row in table(name, heading)]


def table(name: str, heading: str) -> list[list[str]]:
    """The cells of the first table from a heading or a header on, without its header."""
    return table_of(page(name).split(heading, 1)[1])


def test_agents_and_users() -> None:
    listed = re.findall(r"^\| `([\w-]+)(?::PATH)?` \| (?:yes|no|its own) \|", page("agents"), re.MULTILINE)
    assert set(AGENTS) <= set(listed)
    users = [row[0].strip("`") for row in table("users", "# Simulated users")]
    assert users == [*USERS, "replay:PATH"]
    rows = table("users", "## Prompts")
    prompts = {row[0].strip("`"): tuple(re.findall(r"\{(\w+)\}", row[2])) for row in rows}
    assert prompts == {f"{name}.txt": needed for name, needed in PLACEHOLDERS.items()}
    faults = [row[0].strip("`") for row in table("users", "## Faults of a user")]
    assert faults == list(get_args(UserFaultKind))


def test_failures() -> None:
    classes = page("failures").split("## The classes")[1].split("## The first wrong step")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", classes, re.MULTILINE)) == sorted(FAILURE_KINDS)
    cells = page("failures").split("## Fields")[1].split("## Columns that")[0]
    cells = re.findall(r"^\| (`.+?`) \|", cells, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(field.name for field in fields(Failure))


def test_fastworkflow() -> None:
    typed = [block.text for block in blocks(DOCS / "fastworkflow.md") if block.language in ("bash", "sh")]
    for name in fastworkflow.commands:
        assert f"reward-kit fastworkflow {name}" in "\n".join(typed)
    text = flat("fastworkflow")
    options = ("model", "temperature", "model_args", "retries")
    for option in ("fastworkflow_workers", "fastworkflow_policy", *options):
        assert f"`{OPTIONS[option].flags[0]}" in text
    for choice in OPTIONS["fastworkflow_policy"].choices:
        assert f"`{choice}`:" in text
    for role in (*preflight.ROLES, preflight.TRAINING_ROLE):
        assert f"| `LLM_{role}` |" in text


async def test_requests_to_an_agent_behind_http(tmp_path: Path) -> None:
    async def script(turn: dict[str, Any], door: Any) -> dict[str, Any]:
        return {"reply": "Hello"}

    async with serving(script) as stub, opened(stub.url) as agents:
        await run_rollout_async(small_task(tmp_path), 0, base=seeded(tmp_path), agent=agents())
    nested = ("rollout", "door")
    sent = {name for name in stub.turns[0] if name not in nested}
    sent |= {f"{part}.{name}" for part in nested for name in stub.turns[0][part]}
    rows = table("http-agent", "## Requests to your agent")
    assert {name for row in rows for name in re.findall(r"`([\w.]+)`", row[0])} == sent
    expected = [MAX_ANSWER / 2**20, MAX_BODY / 2**20, FAREWELL, LAST_WORDS]
    assert numbers("http-agent", "### Sizes and times") == expected
    assert f'`"{PROTOCOL}"`' in page("http-agent")


def test_limits_of_models() -> None:
    text = flat("limits")
    said = {
        "begins with 50 calls at a time": limits.START == 50,
        "the number shrinks by a quarter": limits.DECREASE == 0.75,
        "(the first time by half)": limits.FIRST_DECREASE == 0.5,
        "grows again, by up to a tenth": limits.INCREASE == 0.1,
        "more than a tenth of the calls were refused": limits.TOLERATED == 0.1,
        "twice as long each further time, up to 10 seconds": limits.LONGEST_PAUSE == 10,
        "has shrunk by more than half in quick steps": limits.FELL == 0.5,
        "goes back up and does not shrink for a minute": limits.BY_CHANCE == 60,
        "tolerates refusals for about a minute": limiter.TRUST == 65,
        "The first two failures of a call are repeated at once": limiter.FREE == 2,
        "at least eight other calls were answered": limiter.OTHERS == 8,
        "Three are enough for a single call; each other call in flight adds one, up to 20": (
            (limits.FAILURES, limits.MOST_MORE) == (3, 20)
        ),
        "for a minute a refused call waits alone": limits.ALONE == 60,
        "| `--patience SECONDS` | 900 |": EvaluationConfig().patience == 900,
    }
    assert [words for words, holds in said.items() if not holds or words not in text] == []
    for name in (name for remaining, reset, _ in network.QUOTAS for name in (remaining, reset)):
        assert f"`{name}`" in text or f"`{name.partition('ratelimit-')[0]}ratelimit-" in text


def test_local_models() -> None:
    rows = [line for line in page("local-models").splitlines() if line.startswith("| a ")]
    for row, backend in zip(rows, backends.BACKENDS, strict=True):
        assert f"| `{backend.name}` | " in row
        assert backend.install in row
        assert row.startswith("| a folder" if backend.kind == "folder" else "| a `.gguf` file")
    variables = re.findall(r"^\| `(REWARD_KIT_\w+)` \|", page("local-models"), re.MULTILINE)
    assert variables == [backends.SERVER, backends.ARGUMENTS, server.TIMEOUT]
    parsers = re.findall(r"`(\S+)`:\s+`(\w+)`", page("local-models").split("**vLLM**")[1].split("\n- ")[0])
    assert dict(parsers) == dict(backends.TOOL_CALLS_IN_TEMPLATE)


def test_kinds_of_findings() -> None:
    found = {}
    for is_deep, text in enumerate(page("validate").split("## What --deep adds")):
        rows = re.findall(r"^\| `([\w-]+)` \| ([a-z, ]+) \| .* \| (.*) \|$", text, re.MULTILINE)
        found |= {kind: Kind(grades.split(", ")[0], remedy, bool(is_deep)) for kind, grades, remedy in rows}
    assert found == KINDS


def test_attributes_of_spans() -> None:
    source = Path(telemetry.__file__).read_text()
    for name in set(re.findall(r'"((?:gen_ai|reward_kit)\.[\w.]+)"', source)):
        short = name.removeprefix("reward_kit").removeprefix("gen_ai.usage")
        known = {name, short, f".{name.rpartition('.')[2]}"}
        assert any(f"`{one}`" in page("observability") for one in known) or name.startswith(
            ("gen_ai.operation", "gen_ai.evaluation", "gen_ai.tool.call")
        ), name


@pytest.mark.parametrize("package", [reward_kit, reward_kit.agent], ids=lambda package: package.__name__)
def test_public_names(package: Any) -> None:
    core, agent = page("python").split("## All public names")[1].split("`reward_kit.agent`")
    listed = re.findall(r"`(\w+)`", agent if package is reward_kit.agent else core)
    assert sorted(listed) == sorted([*package.__all__, *(["reward_kit"] if package is reward_kit else [])])


def test_options_have_the_names_of_their_long_flags() -> None:
    others = {name for name in OPTIONS if flag_of(name) != f"--{name.replace('_', '-')}"}
    named = page("python").split("Four have other names:")[1].split(". ")[0]
    assert set(re.findall(r"`([\w-]+)`", named)) == others | {flag_of(name) for name in others}
    assert len(others) == 4


def test_flags_and_strategies_of_tau_bench() -> None:
    text = page("tau-bench")
    rows = table_of(text[text.index("| τ-bench | here |") :])
    assert {flag for row in rows for flag in re.findall(r"`(--[\w-]+)", row[0])} == set(THEIRS.split())
    for cell in (*(row[1] for row in rows), text.partition("## What is not")[2]):
        assert set(re.findall(r"`(--[\w-]+)", cell)) <= FLAGS, cell
    named = {row[1]: set(re.findall(r"`([a-z-]+)`", row[2])) for row in rows if "strategy" in row[0]}
    agents, users = named.values()
    assert agents <= set(AGENTS)
    assert users <= set(USERS)


def test_files_of_examples_are_shown_as_they_are() -> None:
    examples = (ROOT / "examples" / "own_agents").glob("*.py")
    assert files(DOCS / "own-agents.md") == {path.name: path.read_text() for path in examples}
    shown = {**files(ROOT / "README.md"), **files(DOCS / "compare.md")}
    for title in [one for one in shown if one.startswith("seat_task/")] + ["some_agents.py"]:
        assert shown[title] == (ROOT / "examples" / title).read_text()
    written = files(DOCS / "tutorial.md")
    for name in ("tools.py", "reward.py"):
        first, _, rest = (ROOT / "examples" / "flight_task" / name).read_text().partition("\n")
        assert first == f"# {name}"
        assert written[f"flight_task/{name}"].replace("flight_task.tools:app", "my_task.tools:app") == rest


def test_levels_of_rooms() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [
        re.findall(r"(\w+)(?= |$)", layer.replace("reward_kit.__main__ : ", ""))
        for layer in contracts[0]["layers"]
    ]
    shown = page("architecture").split("## Levels")[1].split("```")[1].split("\n")
    assert [line.split() for line in shown if line] == layers


def test_fields_of_results(bundle: Bundle) -> None:
    bundle.rows({"id": "a", "actions": GOLD})
    result = agent_eval(bundle.dataset, agent="gold", n_rollouts=1)
    cells = [row[0] for row in table("runs", "## evals/NAME.json")]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    optional = {"agreement", "broken_off", "compared_with", "decision", "explanations"}
    assert listed - optional == set(result.to_json()) - optional
    assert optional <= listed


def test_queries_about_runs(bundle: Bundle) -> None:
    bundle.rows({"id": "a", "actions": GOLD}, {"id": "b", "actions": GOLD[:1]})
    result = agent_eval(bundle.dataset, agent="gold", n_rollouts=2)
    queries = re.findall(r"```sql\n(.*?)\n```", page("runs"), re.DOTALL)
    answers = [query(result.log_path, sql) for sql in queries]
    assert len(answers) == 10
    assert answers[0] == [{"row_id": "a", "passed": 1.0, "n": 2}, {"row_id": "b", "passed": 0.0, "n": 2}]
    assert answers[-1] == [{"done": 4, "planned": 4}]
    assert all(answers[index] for index in (1, 2, 3, 5, 6, 7, 8))
    used = {role: {"cost": 0.5, "reused_cost": 0.5 * (role == "user")} for role in ("agent", "user")}
    edit(result.log_path, "UPDATE rollouts SET cost = 1.0, usage = ? WHERE idx = 0", json.dumps(used))
    assert [[*row.values()] for row in query(result.log_path, queries[3])] == [[1.0]], "for two rows"
