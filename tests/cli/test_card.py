"""``export --format card`` (``card``): a file that says what a score claims, and whether it was altered."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import Command, run_command
from flight_bundle import GOLD, flight_bundle
from stored_rollouts import edit

from reward_kit.agent import agent_eval, compare, load_evaluation
from reward_kit.agent.comparison.card import differences_from, faults_of, noise_floor

Change = Callable[[dict[str, Any]], Any]
EVALUATION = Path("runs/evals/main.db")
AGENTS = """
from reward_kit.agent import Usage

class Agent:
    async def respond(self, rollout):
        rollout.count_usage(Usage(input_tokens=10, output_tokens=2, cost=0.25), model="m")
        if rollout.row_id == "c":
            raise RuntimeError("broken")
        if (rollout.index + int(rollout.row_id == "b")) % {every}:
            booking = await rollout.call_tool("create_booking", {{"flight_id": 1, "passenger": "Alice"}})
            await rollout.call_tool("pay_booking", {{"booking_id": booking[16:24]}})
        return "Done."
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the evaluations ``main`` and ``other``, and a card of each."""
    folder = tmp_path_factory.mktemp("cards")
    bundle = flight_bundle(folder)
    bundle.write("rules.sql", "-- rule: booked\nSELECT 1 WHERE NOT EXISTS (SELECT 1 FROM calls)\n")
    bundle.rows(*({"id": name, "actions": GOLD, "sim_user_prompt": None} for name in "abc"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, every in (("main", 3), ("other", 4)):
            Path(f"{name}_agents.py").write_text(AGENTS.format(every=every))
            agent_eval(bundle.dataset, agent=f"{name}_agents:Agent", eval_id=name, seed=1)
            assert run_command("export", name, "--format", "card", "--out", f"{name}.card.json").code == 0
    return folder


@pytest.fixture
def card(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The card of ``main`` in the working directory, a copy of ``made``; it passes 2, 3 and 0 times of 4."""
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return Path("main.card.json")


def altered(card: Path, change: Change, *, hashed: bool) -> dict[str, Any]:
    """An altered card; with ``hashed`` its hash is altered to fit."""
    plain: dict[str, Any] = json.loads(card.read_text())
    change(plain)
    if hashed:
        del plain["hash"]
        text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
        plain["hash"] = hashlib.sha256(text.encode()).hexdigest()
    return plain


def test_a_card_holds_what_the_results_hold(card: Path, command: Command) -> None:
    plain, results = json.loads(card.read_text()), json.loads(Path("runs/evals/main.json").read_text())
    for name in ("score", "pass_power", "pass_at", "failures", "versions"):
        assert plain[name] == results[name]
    counts = {"rows": 3, "planned": 12, "finished": 12, "judged": 12, "unjudged": {}}
    assert plain["denominators"] == {**counts, "successes": results["successes"]}
    assert plain["reward"] == results["averages"]["reward"]
    assert plain["rules"]["broken"] == results["rules"]["broken"]
    counted = [(row["judged"], row["successes"]) for row in results["rows"]]
    assert [(row["n"], row["c"]) for row in plain["rows"]] == counted
    assert plain["costs"]["agent"]["cost"] == plain["costs"]["total"]["cost"] == 3.0
    assert plain["settings"]["agent"] == "main_agents:Agent"
    assert plain["code"]["flight_task/rules.sql"]
    assert plain["audit"] is None
    done = command("--verify", card)
    assert (done.code, done.out) == (0, f"{card}: nothing differs\n")


def pass_power(card: dict[str, Any]) -> None:
    card["pass_power"]["1"]["value"] += 0.1


ALTERED: dict[str, Change] = {
    "pass_power.1.value": pass_power,
    "pass_power.2.low": lambda card: card["pass_power"]["2"].update(low=0.9),
    "pass_at.4.value": lambda card: card["pass_at"]["4"].update(value=1.0),
    "score": lambda card: card.update(score=1.0),
    "reward.value": lambda card: card["reward"].update(value=0.99),
    "noise_floor": lambda card: card.update(noise_floor=0.001),
    "denominators.planned": lambda card: card["denominators"].update(planned=9),
    "denominators.unjudged.user_error": lambda card: card["denominators"]["unjudged"].update(user_error=2),
    "failures.other": lambda card: card["failures"].update(other=7),
    "rules.kept": lambda card: card["rules"].update(kept=12),
    "costs.total.cost": lambda card: card["costs"]["total"].update(cost=0.5),
    "task": lambda card: card.update(task="0" * 16),
    "row a: its counts cannot be": lambda card: card["rows"][0].update(c=9),
    "denominators.rows": lambda card: card["rows"].pop(),
    "is damaged: KeyError: 'versions'": lambda card: card.pop("versions"),
    "is damaged: KeyError: 'rows'": lambda card: card.pop("rows"),
    "is damaged: AttributeError": lambda card: card.update(costs=[]),
    "is damaged: TypeError": lambda card: card["rows"].append(None),
    "is damaged: ValueError: a row has more judged": lambda card: card["rows"][0].update(n=10**20),
    "is damaged: ValueError: a row is there twice": lambda card: card["rows"].append(card["rows"][0]),
}
"""Alterations that a card shows without its evaluation, by the beginning of the line that says so."""
HIDDEN: dict[str, Change] = {
    "settings.agent": lambda card: card["settings"].update(agent="tool-calling"),
    "settings.sim_model": lambda card: card["settings"].update(sim_model="openai/gpt-4o"),
    "versions.python": lambda card: card["versions"].update(python="3.99"),
    "code.flight_task/reward.py": lambda card: card["code"].pop("flight_task/reward.py"),
    "prompts.initial_messages": lambda card: card["prompts"].update(initial_messages="1"),
    "tools.": lambda card: card.update(tools={next(iter(card["tools"])): 9}),
    "costs.agent.cost": lambda card: [card["costs"][role].update(cost=1.0) for role in ("agent", "total")],
    "status": lambda card: card.update(status="interrupted"),
    "created": lambda card: card.update(created=1.0),
    "rows.a.fingerprints.seed": lambda card: card["rows"][0]["fingerprints"].update(seed="1"),
    "further": lambda card: card.update(further=1),
}
"""Alterations that only the evaluation shows."""


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("line", [*ALTERED, *HIDDEN])
def test_an_altered_card_says_so(made: Path, line: str, hashed: bool) -> None:
    change = {**ALTERED, **HIDDEN}[line]
    card = altered(made / "main.card.json", change, hashed=hashed)
    alone = faults_of(card)
    assert ("hash: the card was altered after it was written" in alone) != hashed
    shown = differences_from(card, load_evaluation(made / "runs/evals/main.db"))
    shown = shown if line in HIDDEN else alone
    assert any(found.startswith(line) for found in shown), shown
    assert bool(alone) == (not hashed or line in ALTERED or "fingerprints" in line)


def test_the_last_digits_of_numbers_are_those_of_the_machine(made: Path) -> None:
    power = json.loads((made / "main.card.json").read_text())["pass_power"]["1"]["these_tasks"]
    change = {"low": power["low"] * (1 + 1e-11)}
    card = altered(
        made / "main.card.json",
        lambda card: card["pass_power"]["1"]["these_tasks"].update(change),
        hashed=True,
    )
    assert faults_of(card) == []


@pytest.mark.parametrize("hashed", [False, True])
def test_commands_refuse_an_altered_card(card: Path, command: Command, hashed: bool) -> None:
    card.write_text(json.dumps(altered(card, ALTERED["score"], hashed=hashed)))
    done = command("--verify", card)
    assert done.code == 1
    assert "score: the card says 1.0, its rows give 0." in done.out
    assert "score: the card says 1.0, the evaluation gives 0." in done.out
    alone = command("--verify", card, "--output-dir", "elsewhere")
    assert (alone.code, "warning: only the card itself was checked" in alone.err) == (1, True)
    refused = run_command("compare", card, "other")
    assert (refused.code, refused.out) == (2, "")
    assert f"Error: {card}: {alone.out.splitlines()[0]}" in refused.err


def test_a_changed_evaluation_differs_field_by_field(card: Path, command: Command) -> None:
    edit(EVALUATION, "UPDATE rollouts SET reward = 1, failure = NULL WHERE row_id = 'c' AND idx = 0")
    done = command("--verify", card)
    assert done.code == 1
    assert "denominators.successes: the card says 5, the evaluation gives 6" in done.out
    assert "rows.c.c: the card says 0, the evaluation gives 1" in done.out
    assert command("--verify", card, "other").code == 1
    missing = command("--verify", card, "nothing")
    assert (missing.code, "there is no evaluation 'nothing'" in missing.err) == (2, True)


@pytest.mark.parametrize("sides", [("main.card.json", "other"), ("main", "other.card.json")])
def test_a_card_is_compared_like_its_evaluation(card: Path, command: Command, sides: tuple[str, str]) -> None:
    whole, cards = compare("main", "other"), compare(*sides)
    told = ("Pass^1", "Pass^2", "Pass^3", "Pass^4", "reward")
    of_both = [one.to_json() for one in whole.measures if one.name in told]
    assert [one.to_json() for one in cards.measures] == of_both
    assert cards.settings == whole.settings
    counts, expected = ([(row.row_id, row.a.c, row.b.c) for row in one.rows] for one in (cards, whole))
    assert counts == expected
    done = run_command("compare", *sides)
    assert done.code == 0
    assert done.out.count("3 rows, 12 of 12 rollouts") == 2
    assert "means per rollout" not in done.out


def test_rollouts_that_are_not_judged_count_as_in_the_evaluation(card: Path, command: Command) -> None:
    edit(EVALUATION, "UPDATE rollouts SET reward = NULL, failure = NULL WHERE row_id = 'b' AND idx = 0")
    assert command("main", "--output", "main.json").code == 0
    whole, cards = compare("main", "other"), compare("main.json", "other")
    assert cards.unjudged == whole.unjudged == (1, 0)
    assert [row.a.n for row in cards.rows] == [row.a.n for row in whole.rows] == [4, 3, 4]
    assert command("--verify", "main.json").code == 0


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("main", "--output", "missing/card.json"), "missing"),
        (("main", "--audit", "runs/evals/main.db"), "is not the JSON of validate --deep"),
        (("--verify", "nothing.json"), "nothing.json: cannot be read: No such file"),
        (("--verify", "runs/evals/main.json"), "is no card (reward-kit.card/1)"),
        ((), "Missing argument 'EVALUATION'"),
        (("main", "--min-reward", "1"), "--min-reward does not go with --format card"),
    ],
)
def test_wrong_use_is_one_clear_error(card: Path, command: Command, arguments: Any, fault: str) -> None:
    done = command(*arguments)
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert fault in " ".join(done.err.split())


def test_an_audit_is_kept_in_the_card(card: Path, command: Command) -> None:
    Path("audit.json").write_text('{"ok": true, "findings": []}')
    done = command("main", "--audit", "audit.json", "--output", "-")
    assert json.loads(done.out)["audit"] == {"ok": True, "findings": []}
    Path("with.json").write_text(done.out)
    assert command("--verify", "with.json").code == 0
    Path("with.json").write_text(json.dumps(altered(Path("with.json"), HIDDEN["status"], hashed=False)))
    assert command("--verify", "with.json").code == 1


@pytest.mark.parametrize(
    ("counts", "floor"),
    [
        ([], None),
        ([(0, 0)], None),
        ([(4, 2)], 0.692951),
        ([(4, 2), (4, 2), (0, 0)], 0.489990),
        ([(8, 8)], 0.224476),
    ],
)
def test_the_noise_floor_follows_its_formula(counts: list[tuple[int, int]], floor: float | None) -> None:
    found = noise_floor(counts)
    assert found is floor is None or found == pytest.approx(floor, abs=1e-5)
