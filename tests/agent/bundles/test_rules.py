"""Rules of procedure: the file, and what becomes of a violation in rewards, reports and stored rollouts."""

import json
from pathlib import Path

import pytest
from command import run_command
from flight_bundle import GOLD, Bundle
from small_task import InProcessModel, wants
from stored_rollouts import query

from reward_kit.agent import TaskBundle, agent_eval, load_evaluation, load_rollout, rescore
from reward_kit.agent.bundles.rules import RULES, read_rules, violations_of
from reward_kit.errors import BundleError, RewardError

PAID_LAST = """
-- Everything about payment.
-- rule: paid_last: Nothing follows the payment.
SELECT later.position, later.name FROM calls JOIN calls AS later ON later.position > calls.position
WHERE calls.name = 'pay_booking';
-- rule: no_search
SELECT position FROM calls WHERE name = 'search_flights'
"""
SEARCH = {"name": "search_flights", "arguments": {"origin": "SFO", "dest": "JFK", "date": "2025-05-20"}}
KEEPING = """
from reward_kit.agent.rewards import all_of, rules_kept

def evaluate(messages, *, rollout, **kwargs):
    return all_of({"rules": rules_kept(rollout)})
"""


@pytest.fixture
def bundle(bundle: Bundle) -> Bundle:
    """Row ``a`` keeps the rules, the gold actions of row ``b`` break the first twice."""
    bundle.write("rules.sql", PAID_LAST.replace("no_search", "booked_first").replace("search_flights", "x"))
    late = [*GOLD, SEARCH, SEARCH]
    bundle.rows(*({"id": it, "actions": calls, "n_rollouts": 2} for it, calls in (("a", GOLD), ("b", late))))
    return bundle


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("", 1, "holds no rule"),
        ("SELECT 1", 1, "the rule has no name"),
        ("\n-- rule:\nSELECT 1", 2, "the rule has no name"),
        ("-- rule: a/b c\nSELECT 1", 1, "the rule 'a/b' is no name"),
        ("-- rule: a\nSELECT 1\n-- rule: a\nSELECT 2", 3, "the name 'a' is that of the rule in line 1"),
        ("-- rule: a\nSELECT 1\n\n-- rule: b\nSELECT x FROM calls", 4, "rule 'b': no such column: x"),
        ("-- rule: a\nSELECT 1; SELECT 2", 1, "rule 'a' has several statements"),
        ("-- rule: a\n-- later", 1, "rule 'a' has no SELECT"),
        ("-- rule: a\nDELETE FROM calls", 1, "rule 'a': attempt to write a readonly database"),
        (
            "-- rule: a\nATTACH 'written' AS other",
            1,
            "rule 'a': ATTACH is not allowed here; write one SELECT",
        ),
        ("-- rule: a\nVACUUM INTO 'written'", 1, "rule 'a': VACUUM is not allowed here; write one SELECT"),
        ("-- rule: a\nPRAGMA user_version", 1, "rule 'a': PRAGMA is not allowed here; write one SELECT"),
        (
            "-- rule: a\nSELECT load_extension('x')",
            1,
            "rule 'a': not authorized to use function: load_extension",
        ),
        ("-- rule: a\nSELECT hex(zeroblob(450000000))", 1, "rule 'a': string or blob too big"),
        ("-- rule: a\nSELECT 'x' REGEXP '('", 1, "rule 'a': REGEXP: missing ), unterminated subpattern"),
        (
            "-- rule: a\nSELECT 1 FROM messages WHERE content REGEXP '(?idamn'",
            1,
            "rule 'a': REGEXP: unknown flag",
        ),
    ],
)
def test_a_faulty_file_is_an_error_with_its_line(bundle: Bundle, text: str, line: int, fault: str) -> None:
    path = bundle.write("rules.sql", text)
    with pytest.raises(BundleError) as raised:
        TaskBundle.load(bundle.dataset)
    assert str(raised.value).startswith(f"{path.resolve()}:{line}: {fault}")
    assert not Path("written").exists()


def test_parts_of_patterns_and_comments_are_no_patterns(bundle: Bundle) -> None:
    bundle.write(
        "rules.sql",
        "-- rule: a\nSELECT 1 FROM lines, calls WHERE text REGEXP '(' || calls.name || ')'\n"
        "-- rule: b\n-- was: text REGEXP '(open'\nSELECT 1 FROM lines WHERE text REGEXP 'size{s}'",
    )
    with TaskBundle.load(bundle.dataset) as loaded:
        said = [{"role": "user", "content": "Do (search_flights), size{s} or size"}]
        found = violations_of(loaded.rules, {}, said, [])
        assert found is not None
        assert [len(rows) for rows in found.values()] == [0, 1]


def test_all_faults_of_a_file_are_told(bundle: Bundle) -> None:
    bundle.write("rules.sql", "-- rule: a\nSELECT x\n-- rule:\nSELECT 1\n")
    done = run_command("validate", bundle.folder)
    assert done.code == 2
    assert "rules.sql:1: rule 'a'" in done.err
    assert "rules.sql:3: the rule has no name" in done.err


def test_a_file_gives_names_descriptions_and_places(bundle: Bundle) -> None:
    path = bundle.write("rules.sql", PAID_LAST)
    rules = [(rule.name, rule.description, rule.place) for rule in read_rules(bundle.folder / RULES)]
    paid_last = ("paid_last", "Nothing follows the payment.", f"{path}:3")
    assert rules == [paid_last, ("no_search", "", f"{path}:6")]


def test_the_tables_have_the_conversation_in_its_order(bundle: Bundle) -> None:
    bundle.write(
        "rules.sql",
        "-- rule: lines\nSELECT position, speaker, text FROM lines\n"
        "-- rule: calls\nSELECT position, turn, name, arguments ->> 'seat' AS seat, status FROM calls\n"
        "-- rule: changes\nSELECT position, table_name, op, after ->> 'passenger' AS passenger FROM changes\n"
        "-- rule: row\nSELECT fields ->> 'id' AS id FROM row WHERE 'it is Row' REGEXP '\\bRow$'\n",
    )
    asked = ("create_booking", {"flight_id": 1, "passenger": "Ann"})
    model = InProcessModel([wants(asked, ("nothing", {"seat": 4}), content="Aside"), "Done."])
    agent_eval(bundle.dataset, models={"agent": model}, user="none", task_ids="a", eval_id="e")
    found = load_rollout("e a#1").violations
    assert found is not None
    assert found["lines"] == [
        {"position": 0, "speaker": "user", "text": "Book me a flight from SFO to JFK for tomorrow morning"},
        {"position": 4, "speaker": "agent", "text": "Done."},
    ]
    called = [(2, 1, "create_booking", None, "ok"), (3, 1, "nothing", 4, "unknown_tool")]
    assert [tuple(one.values()) for one in found["calls"]] == called
    assert found["changes"] == [{"position": 2, "table_name": "bookings", "op": "insert", "passenger": "Ann"}]
    assert found["row"] == [{"id": "a"}]
    path = Path("runs/evals/e.db")
    views = {name: query(path, f"SELECT * FROM {name}") for name in ("calls", "changes", "lines")}
    assert {name: len(rows) for name, rows in views.items()} == {"calls": 2, "changes": 1, "lines": 4}
    assert views["lines"][1]["text"] == "Done."


@pytest.mark.parametrize("workers", [None, 1])
def test_violations_are_counted_beside_pass_k_and_shown(bundle: Bundle, workers: int | None) -> None:
    result = agent_eval(bundle.dataset, agent="gold", user="none", eval_id="e", workers=workers)
    assert (result.passed, result.rules_kept) == (4, 2)
    plain = json.loads(result.results_path.read_text())
    assert plain["rules"]["broken"] == {"paid_last": 2, "booked_first": 0}
    assert plain["rules"]["checked"] == 4
    assert {k: one["value"] for k, one in plain["rules"]["pass_power"].items()} == {"1": 0.5, "2": 0.5}
    assert [row["rules_kept"] for row in plain["rows"]] == [2, 0]
    assert [len(rows) for rows in plain["rows"][1]["rollouts"][0]["violations"].values()] == [2, 0]
    assert load_evaluation("e").broken_rules == result.broken_rules
    report, shown = run_command("show", "e").out, run_command("show", "e b#1").out
    assert "passed and all kept: Pass^1 0.500" in report
    assert "paid_last: broken in 2 of 4 rollouts, first b #1" in report
    assert shown.count("broken rule: paid_last: position") == 2
    assert "name 'search_flights'" in shown


def test_a_reward_reads_the_violations_also_when_it_judges_again(bundle: Bundle) -> None:
    bundle.write("reward.py", KEEPING)
    result = agent_eval(bundle.dataset, agent="gold", user="none", eval_id="e")
    assert [row.passed for row in result.rows] == [2, 0]
    judged = load_rollout("e b#1").result
    assert judged is not None
    assert judged["reason"] == "broke the rule paid_last"
    unpaid = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM calls WHERE name = 'x')"
    bundle.write("rules.sql", f"-- rule: unpaid\n{unpaid}")
    done = rescore("e", eval_id="again")
    assert [row.passed for row in done.now.rows] == [0, 0]
    assert load_evaluation("again").broken_rules == {"unpaid": 4}
    assert load_rollout("again a#1").violations == {"unpaid": [{"1": 1}]}
    assert load_evaluation("e").broken_rules == {"paid_last": 2, "booked_first": 0}


def test_a_rule_that_fails_on_a_rollout_leaves_it_unjudged(bundle: Bundle) -> None:
    bundle.write("rules.sql", "-- rule: a\nSELECT content -> 'x' FROM calls")
    waves = '@R.tool(description="Wave", parameters={})\ndef wave():\n    return "Hi."\n'
    bundle.write("tools.py", (bundle.folder / "tools.py").read_text() + waves)
    bundle.rows({"id": "a", "actions": [*GOLD, {"name": "wave", "arguments": {}}]})
    result = agent_eval(bundle.dataset, agent="gold", user="none", eval_id="e")
    assert result.unjudged == {"reward_error": 4}
    assert "rules.sql:1: rule 'a': malformed JSON" in str(result.outcomes[0].error)


def test_a_rollout_that_they_cannot_read_holds_up_no_other(bundle: Bundle) -> None:
    rules = read_rules(bundle.folder / RULES)
    huge = [{"role": "assistant", "content": "x" * 70_000_000}]
    with pytest.raises(RewardError, match="the rules cannot read the rollout: string or blob too big"):
        violations_of(rules, {}, huge, [])
    assert violations_of(rules, {}, [], []) == {"paid_last": [], "booked_first": []}


@pytest.mark.parametrize("pattern", ["(?:a|a)" * 30 + "b", "^(a|a)*$", r"^(\w|\w\w)+$"])
def test_a_pattern_without_end_is_stopped(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr("reward_kit.agent.bundles.rules.SECONDS", 0.05)
    text = f"-- rule: one\nSELECT 1\n-- rule: a\nSELECT text REGEXP '{pattern}' FROM lines"
    bundle.write("rules.sql", text)
    fault = r"rules.sql:3: rule 'a': took longer than 0.05 s in REGEXP: simplify its pattern"
    with pytest.raises(RewardError, match=fault):
        violations_of(
            read_rules(bundle.folder / RULES), {}, [{"role": "user", "content": "a" * 200 + "!"}], []
        )


def test_an_endless_rule_is_stopped(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reward_kit.agent.bundles.rules.SECONDS", 0.05)
    endless = "WITH n(i) AS (SELECT i FROM lines, (SELECT 1 AS i) UNION ALL SELECT i + 1 FROM n)"
    bundle.write("rules.sql", f"-- rule: a\n{endless} SELECT sum(i) AS i FROM n")
    with pytest.raises(RewardError, match=r"rules.sql:1: rule 'a': took longer than 0.05 s"):
        violations_of(read_rules(bundle.folder / RULES), {}, [{"role": "user", "content": "Hi"}], [])


def test_the_time_of_a_rule_does_not_end_the_next_rollout(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reward_kit.agent.bundles.rules.SECONDS", 0.0)
    bundle.write("rules.sql", "-- rule: a\nSELECT 1 AS one WHERE 0")
    rules = read_rules(bundle.folder / RULES)
    for lines in (1, 20_000):
        messages = [{"role": "user", "content": "Hi"}] * lines
        assert violations_of(rules, {}, messages, []) == {"a": []}


def test_gold_actions_that_break_a_rule_are_an_error(bundle: Bundle) -> None:
    done = run_command("validate", bundle.folder)
    assert done.code == 1
    assert "task.jsonl:2 b: the gold actions break the rule paid_last: position" in done.out
    assert "task.jsonl:1 a" not in done.out
