"""``reward-kit port tau-bench``: the bundle that it writes from a checkout, and its errors."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import run_command
from places import BUNDLE
from small_sources import (
    HOME,
    INFOS,
    RETAIL,
    TASKS_TEST,
    put,
    small_shop,
    write_tau_bench,
)

from reward_kit.agent import TaskBundle, agent_eval, validate
from reward_kit.agent.tau.source import SourceError
from reward_kit.agent.tau.tau_bench import bundle
from reward_kit.agent.tau.tau_bench.bundle import make_seed, port

CANCEL = {"order_id": "#W0000001", "reason": "no longer needed"}
CANCELLED = {"name": "cancel_pending_order", "arguments": CANCEL}


@pytest.fixture
def tau_bench(tmp_path: Path) -> Path:
    """A small checkout of tau-bench."""
    return write_tau_bench(tmp_path / "tau-bench")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where the bundle goes: a folder of its own, to see what is left beside it."""
    return tmp_path / "written" / "small_retail"


@pytest.fixture
def refused(out: Path) -> Callable[..., str]:
    """``refused(source)``: the error; nothing is written."""

    def refuse(source: str | Path) -> str:
        with pytest.raises(SourceError) as raised:
            port(source, out)
        assert not out.parent.exists()
        said = str(raised.value)
        assert "\n" not in said
        return said

    return refuse


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_rows_have_the_instructions_gold_and_outputs_of_the_source(tau_bench: Path, out: Path) -> None:
    port(tau_bench, out)
    first, second = rows_of(out / "task.jsonl")
    assert first == {
        "id": "retail.test.000",
        "toolset": "small_retail.tools",
        "system_prompt": "file:policy.md",
        "sim_user_prompt": "You are Ada (ada.quill@example.com). Cancel the pens: \u201cwrong colour\u201d.",
        "actions": [
            {"name": "find_user_id_by_email", "arguments": {"email": "ada.quill@example.com"}},
            CANCELLED,
        ],
        "outputs": ["3.5"],
        "metadata": {"split": "test", "index": 0, "user_id": "ada_quill_0001"},
    }
    assert (second["id"], second["actions"], second["outputs"]) == ("retail.test.001", [], [])
    assert [row["id"] for row in rows_of(out / "task_dev.jsonl")] == ["retail.dev.000"]
    assert not (out / "task_train.jsonl").exists()  # the small source has none


def test_gold_calls_that_the_tools_refuse_are_marked(tau_bench: Path, out: Path) -> None:
    tasks = tau_bench / "tau_bench" / "envs" / "retail" / "tasks_test.py"
    edit(tasks, '{"email": "ada.quill@example.com"}', '{"email": "nobody@example.com"}')
    port(tau_bench, out)
    found, cancelled = rows_of(out / "task.jsonl")[0]["actions"]
    assert (found["refused"], "refused" in cancelled) == (True, False)
    with TaskBundle.load(out) as bundle:
        report = validate(bundle)
    assert not [finding for finding in report.errors if finding.kind == "refused-gold"]


def test_tools_are_offered_with_the_descriptions_of_the_source(tau_bench: Path, out: Path) -> None:
    port(tau_bench, out)
    with TaskBundle.load(out) as bundle:
        registry = bundle.tasks[0].registry
        assert json.dumps(registry.get_openai_tools()) == json.dumps(list(INFOS.values()))
        terminal = [name for name, tool in registry.tools.items() if tool.terminal]
    assert terminal == ["transfer_to_human_agents"]


def test_gold_is_paid(tau_bench: Path, out: Path, tmp_path: Path) -> None:
    port(tau_bench, out)
    result = agent_eval(str(out), agent="gold", output_dir=str(tmp_path / "runs"))
    assert (len(result.rows), result.score) == (2, 1.0)


def test_data_with_known_hashes_give_the_seed_of_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = small_shop()
    texts = {f"{name}.json": json.dumps(content) for name, content in shop.items()}
    known = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    monkeypatch.setattr(bundle, "FINGERPRINTS", known)
    sql, told = make_seed(shop)
    assert sql == (BUNDLE / "seed.sql").read_text(encoding="utf-8")
    assert "checked by hash" in told
    shop["users"]["ada_quill_0001"]["payment_methods"]["gift_card_0000001"]["balance"] = 7.0
    assert make_seed(shop)[0] != sql


def test_code_of_a_checkout_is_not_run(tau_bench: Path, out: Path, tmp_path: Path) -> None:
    trap = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).write_text('!')\nraise SystemExit(3)\n"
    put(tau_bench, "tau_bench/__init__.py", trap)
    put(tau_bench, f"{RETAIL}/__init__.py", trap)
    put(tau_bench, f"{RETAIL}/data/__init__.py", trap)
    put(tau_bench, "sitecustomize.py", trap)
    for name in ("tasks_test.py", "tools/__init__.py", "tools/cancel_pending_order.py"):
        file = tau_bench / RETAIL / name
        file.write_text(trap + file.read_text(encoding="utf-8"), encoding="utf-8")
    done = run_command("port", "tau-bench", str(out), "--source", str(tau_bench), cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert not (tmp_path / "ran").exists()
    assert len(rows_of(out / "tau_bench_retail" / "task.jsonl")) == 2


def test_readme_names_source_commit_hash_and_paper(tau_bench: Path, out: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    put(tau_bench, ".git/HEAD", "ref: refs/heads/main\n")
    put(tau_bench, ".git/refs/heads/main", f"{commit}\n")
    port(tau_bench, out)
    readme = (out / "README.md").read_text(encoding="utf-8")
    assert f"Version: commit {commit}" in readme
    assert "https://github.com/sierra-research/tau-bench" in readme
    assert "arxiv.org/abs/2406.12045" in readme
    listing = [line.split("`")[1::2] for line in readme.splitlines() if line.startswith("| `tau_bench/")]
    assert f"{RETAIL}/wiki.md" in [path for path, _ in listing]
    assert all(len(digest) == 64 for _, digest in listing)


@pytest.mark.parametrize("path", ["LICENSE", f"{RETAIL}/tasks_test.py", f"{RETAIL}/data/orders.json"])
def test_missing_file_is_named_with_what_was_expected(tau_bench: Path, path: str, refused: Any) -> None:
    (tau_bench / path).unlink()
    said = refused(tau_bench)
    assert f"{tau_bench}/{path} is missing. Expected there: " in said


@pytest.mark.parametrize(
    ("old", "new", "line", "found"),
    [
        ('outputs=["3.5"]', "outputs=sorted(['3.5'])", 16, "sorted(['3.5'])"),
        ('"You are Ben. Ask for a job."', 'f"You are {1 + 1}."', 18, "You are {1 + 1}."),
        ('kwargs={"email": "ada.quill@example.com"}', 'kwargs={"email": {"a", "b"}}', 10, "{'a', 'b'}"),
        ("outputs=[]),\n]", "outputs=[]),\n]\nTASKS_TEST += more()", 20, "TASKS_TEST += more()"),
    ],
)
def test_anything_but_plain_values_in_a_task_file_is_shown_with_its_line(
    tau_bench: Path, refused: Callable[..., str], old: str, new: str, line: int, found: str
) -> None:
    assert old in TASKS_TEST
    edit(tau_bench / RETAIL / "tasks_test.py", old, new)
    said = refused(tau_bench)
    assert f"{tau_bench}/{RETAIL}/tasks_test.py:{line}: found `" in said
    assert found in said
    assert "Expected there: " in said


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda shop: shop["orders"]["#W0000002"]["items"][0].update(price=3.25), "order #W0000002"),
        (lambda shop: shop["orders"]["#W0000001"].update(gift_wrap=True), "gift_wrap nothing instead of"),
        (lambda shop: shop["users"]["ben_stone_0002"].update(address={**HOME, "floor": 2}), "ben_stone_0002"),
        (lambda shop: shop["orders"]["#W0000001"].update(status="lost"), "CHECK constraint failed"),
        (lambda shop: shop["products"].clear(), "no products"),
    ],
)
def test_data_that_fit_no_table_are_explained(tau_bench: Path, refused: Any, change: Any, told: str) -> None:
    shop = small_shop()
    change(shop)
    for name, content in shop.items():
        put(tau_bench, f"{RETAIL}/data/{name}.json", json.dumps(content))
    assert told in refused(tau_bench)


def test_folder_that_is_no_checkout_is_refused_with_what_would_be_one(tmp_path: Path, refused: Any) -> None:
    assert f"has no {RETAIL}" in refused(tmp_path)
    assert "does not exist" in refused(tmp_path / "nowhere")
    put(tmp_path, "src/tau2/__init__.py", "")
    assert "use port tau2" in refused(tmp_path)


def test_folder_that_is_there_is_kept(tau_bench: Path, out: Path) -> None:
    put(out, "notes.txt", "mine")
    with pytest.raises(SourceError, match="exists"):
        port(tau_bench, out)
    assert [file.name for file in out.iterdir()] == ["notes.txt"]


def prompts_of(bundle: Path) -> dict[str, str]:
    """The prompts as they are used: without the final line break of the file."""
    files = (bundle / "prompts").glob("*.txt")
    return {path.stem: path.read_text(encoding="utf-8").removesuffix("\n") for path in files}


def test_prompts_are_those_of_tau_bench(tau_bench: Path, out: Path) -> None:
    port(tau_bench, out)
    opening = "{policy}\n#Available tools\n{tools}"
    assert prompts_of(out) == {
        "user": "Be a user.\n\nInstruction: {instruction}\nDo not {tell}.",
        "user_react": "Think.\n\nInstruction: {instruction}\nDo not {tell}.",
        "user_verify": "verify: {messages} / {line}?",
        "user_reflect": "reflect: {messages} / {line}?",
        "greeting": "Good day!",
        "act": f"{opening}\nUse content.\n",
        "react": f'{opening}\nThink, then {{"name": respond}}.\n',
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{instruction_display}", "{display}", "found `{display}`"),
        ('"Good day!"', "greeting()", "found `greeting()`"),
        ('"\\n\\nInstruction: "', '"Do: "', "a function with '\\n\\nInstruction: '"),
        ("def reflect", "def think", "has no reflect()"),
    ],
)
def test_prompt_that_is_written_in_another_way_is_refused(
    tau_bench: Path, refused: Callable[..., str], old: str, new: str, said: str
) -> None:
    edit(tau_bench / "tau_bench/envs/user.py", old, new)
    assert said in refused(tau_bench)
