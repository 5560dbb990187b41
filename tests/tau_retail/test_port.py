"""``python -m tau_port``: the bundle that it writes from a source, and its errors."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import BUNDLE, ROOT
from small_sources import (
    HOME,
    INFOS,
    LICENCE,
    POLICY,
    RETAIL,
    SCENARIO_TEXT,
    TASKS_TEST,
    put,
    small_shop,
    tau2_task,
    write_tau2_bench,
    write_tau_bench,
    write_wheel,
)

from reward_kit.agent import TaskBundle, agent_eval, validate
from tau_port import port
from tau_port.build_seed import SourceError
from tau_port.command import main
from tau_port.inspect_evals import Wheel
from tau_port.seed import make_seed

TAU2 = "data/tau2/domains/retail"
CANCEL = {"order_id": "#W0000001", "reason": "no longer needed"}
CANCELLED = {"name": "cancel_pending_order", "arguments": CANCEL}


@pytest.fixture
def tau_bench(tmp_path: Path) -> Path:
    """A small checkout of tau-bench."""
    return write_tau_bench(tmp_path / "tau-bench")


@pytest.fixture
def tau2_bench(tmp_path: Path) -> Path:
    """A small checkout of tau2-bench."""
    return write_tau2_bench(tmp_path / "tau2-bench")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where the bundle goes: a folder of its own, to see what is left beside it."""
    return tmp_path / "written" / "small_retail"


@pytest.fixture
def refused(out: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``refused(source, *options)``: the one line that is printed where nothing is written."""

    def refuse(source: str | Path, *options: str) -> str:
        assert main(["--from", str(source), "--out", str(out), *options]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert not out.parent.exists()
        assert said.err.startswith("Error: ")
        assert said.err.count("\n") == 1
        return said.err

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


@pytest.mark.parametrize(("write", "tasks"), [(write_tau_bench, 2), (write_tau2_bench, 3)])
def test_gold_is_paid(write: Callable[[Path], Path], tasks: int, out: Path, tmp_path: Path) -> None:
    port(write(tmp_path / "checkout"), out)
    result = agent_eval(str(out), agent="gold", output_dir=str(tmp_path / "runs"))
    assert (len(result.rows), result.score) == (tasks, 1.0)


def test_data_with_known_hashes_give_the_seed_of_this_package() -> None:
    shop = small_shop()
    texts = {f"{name}.json": json.dumps(content) for name, content in shop.items()}
    known = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    sql, told = make_seed(shop, known)
    assert sql == (BUNDLE / "seed.sql").read_text(encoding="utf-8")
    assert "checked by hash" in told
    shop["users"]["ada_quill_0001"]["payment_methods"]["gift_card_0000001"]["balance"] = 7.0
    assert make_seed(shop, known)[0] != sql


def test_code_of_a_checkout_is_not_run(tau_bench: Path, out: Path, tmp_path: Path) -> None:
    trap = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).write_text('!')\nraise SystemExit(3)\n"
    put(tau_bench, "tau_bench/__init__.py", trap)
    put(tau_bench, f"{RETAIL}/__init__.py", trap)
    put(tau_bench, f"{RETAIL}/data/__init__.py", trap)
    put(tau_bench, "sitecustomize.py", trap)
    for name in ("tasks_test.py", "tools/__init__.py", "tools/cancel_pending_order.py"):
        file = tau_bench / RETAIL / name
        file.write_text(trap + file.read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, "-m", "tau_port", "--from", str(tau_bench), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "ran").exists()
    assert len(rows_of(out / "task.jsonl")) == 2


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
    assert f"has neither {RETAIL} nor {TAU2}" in refused(tmp_path)
    assert "does not exist" in refused(tmp_path / "nowhere")


def test_folder_with_something_in_it_is_kept_unless_forced(tau_bench: Path, out: Path, capsys: Any) -> None:
    put(out, "notes.txt", "mine")
    assert main(["--from", str(tau_bench), "--out", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [file.name for file in out.iterdir()] == ["notes.txt"]
    assert main(["--from", str(tau_bench), "--out", str(out), "--force"]) == 0
    assert not (out / "notes.txt").exists()
    assert (out / "task.jsonl").exists()
    assert [file.name for file in out.parent.iterdir()] == ["small_retail"]


def test_force_does_not_remove_the_source_or_a_checkout_or_this_package(tmp_path: Path) -> None:
    source = write_tau_bench(tmp_path / "holder" / "tau_bench_checkout")
    with pytest.raises(SourceError, match="is not replaced"):
        port(source, source.parent, force=True)
    with pytest.raises(SourceError, match="is not replaced"):
        port(source, BUNDLE, force=True)
    put(tmp_path, "project/.git/HEAD", "ref: refs/heads/main\n")
    with pytest.raises(SourceError, match="is a checkout"):
        port(source, tmp_path / "project", force=True)
    assert (source / "LICENSE").exists()
    assert (BUNDLE / "reward.py").exists()


def test_tau2_rows_have_the_scenario_as_its_user_sees_it(tau2_bench: Path, out: Path) -> None:
    port(tau2_bench, out)
    rows = rows_of(out / "task.jsonl")
    assert [row["id"] for row in rows] == ["retail.tau2.000", "retail.tau2.001", "retail.tau2.002"]
    assert rows[0]["sim_user_prompt"] == SCENARIO_TEXT
    assert rows[0]["actions"][1] == CANCELLED
    assert [row["id"] for row in rows_of(out / "task_train.jsonl")] == ["retail.tau2.000", "retail.tau2.002"]
    assert [row["id"] for row in rows_of(out / "task_test.jsonl")] == ["retail.tau2.001"]


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


def test_prompts_are_those_of_tau2_bench_and_its_agent_greets(tau2_bench: Path, out: Path) -> None:
    port(tau2_bench, out)
    assert prompts_of(out) == {
        "user": "Be a {customer}.\n<scenario>{instruction}</scenario>",
        "stop": "###STOP###\n###TRANSFER###\n###OUT_OF_SCOPE###",
    }
    greeting = [{"role": "assistant", "content": "Good day!"}]
    assert all(row["initial_messages"] == greeting for row in rows_of(out / "task.jsonl"))
    with TaskBundle.load(out) as bundle:
        assert bundle.tasks[0].registry.parallel_tool_calls
    assert "--user-model-arg temperature=0" in (out / "README.md").read_text(encoding="utf-8")


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


def test_tau2_tools_are_described_as_its_models_see_them(tau2_bench: Path, out: Path) -> None:
    written = port(tau2_bench, out)
    with TaskBundle.load(out) as bundle:
        registry = bundle.tasks[0].registry
        cancel, item = (tool["function"] for tool in registry.get_openai_tools())
        assert not any(tool.terminal for tool in registry.tools.values())
    assert cancel["description"] == "Undo an order\n\nthat is pending, every bit of it."
    assert cancel["parameters"] == {
        "properties": {
            "order_id": {
                "description": "With a hash in front: '#W1'.",
                "title": "Order Id",
                "type": "string",
            },
            "reason": {"description": "Why. There are\ntwo reasons.", "title": "Reason", "type": "string"},
        },
        "required": ["order_id", "reason"],
        "title": "parameters",
        "type": "object",
    }
    assert (item["name"], item["description"]) == ("get_item_details", "Look at one pen.")
    assert written.warnings == ("These tools have no code here and are left out: guess_item.",)


@pytest.mark.parametrize(
    ("tasks", "fault"),
    [
        ([{**tau2_task("0"), "initial_state": {"message_history": []}}], "has an initial state"),
        ([tau2_task("0"), tau2_task("0")], "has the id '0' of an earlier task"),
        (
            [tau2_task("0", actions=[{"name": "x", "arguments": {}, "requestor": "user"}])],
            "an action of the user",
        ),
        ([], "has no tasks"),
        ([tau2_task("0")], "the split 'base' names the task '1'"),
    ],
)
def test_tau2_task_that_a_row_cannot_say_is_refused(
    tau2_bench: Path, refused: Callable[..., str], tasks: list[Any], fault: str
) -> None:
    put(tau2_bench, f"{TAU2}/tasks.json", json.dumps(tasks))
    assert fault in refused(tau2_bench)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index."""
    pytest.importorskip("pip")
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_inspect_evals_is_fetched_once_with_words_and_licence(index: Path, out: Path, tmp_path: Path) -> None:
    wheel, cache = Wheel("0.0.1", write_wheel(index)), tmp_path / "kept"
    fetched = port("inspect-evals", out.with_name("first"), wheel=wheel, cache=cache)
    assert [file.name for file in cache.iterdir()] == [wheel.file_name]
    (index / wheel.file_name).unlink()  # it was kept
    assert port("inspect-evals", out, wheel=wheel, cache=cache).source.rows == fetched.source.rows
    assert wheel.sha256 in (out / "README.md").read_text(encoding="utf-8")
    assert (out / "LICENSE").read_text(encoding="utf-8") == LICENCE
    assert (out / "NOTICE").exists()
    with TaskBundle.load(out) as bundle:
        prompt = bundle.tasks[0].system_prompt
        cancel, _ = (tool["function"] for tool in bundle.tasks[0].registry.get_openai_tools())
    expected = f"    Serve the customer.\n    </instructions>\n    <policy>\n{POLICY}\n</policy>\n    "
    assert prompt == f"<instructions>\n{expected}"
    assert cancel["description"] == "Undo an order\nthat is pending, every bit of it."
    reason = {"type": "string", "description": "Why. There are\ntwo reasons."}
    assert cancel["parameters"]["properties"]["reason"] == reason
    result = agent_eval(str(out), agent="gold", output_dir=str(tmp_path / "runs"))
    assert (len(result.rows), result.score) == (3, 1.0)
    user = "Be a customer.\n\n<scenario>{instruction}\n"
    assert prompts_of(out) == {"user": user, "greeting": "Begin.", "stop": "###STOP###\n###TRANSFER###"}
