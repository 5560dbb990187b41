"""A ported bundle in play: answers, states and verdicts are those of the benchmark's rules."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_tau2 import write_checkout
from stub_server import StubServer

from reward_kit.agent import TaskBundle, agent_eval
from reward_kit.agent.tau.tau2.knowledge import BM25, Grep
from reward_kit.agent.tau.tau2.port.bundle import port_domain
from reward_kit.agent.tau.tau2.port.source import open_source

LEND = ("lend", {"name": "moby"})
PACK = ("put", {"thing": "moby"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = write_checkout(tmp_path_factory.mktemp("tau2-bench"))
    with open_source(source) as opened:
        return port_domain(opened, "mock", tmp_path_factory.mktemp("bundles"))[0]


@pytest.fixture
def bundle(folder: Path) -> Iterator[TaskBundle]:
    with TaskBundle.load(folder) as opened:
        yield opened


@pytest.fixture
def episode(bundle: TaskBundle) -> Iterator[Any]:
    with bundle.episode("lend") as opened:
        yield opened


def said(episode: Any, tool: str, by: str = "agent", /, **arguments: Any) -> str:
    return episode.call_sync(tool, arguments, by=by).content


def stored(episode: Any, kind: str, key: str) -> Any:
    found = episode.database.sync.fetch_val("SELECT json FROM objects WHERE kind = ? AND id = ?", [kind, key])
    return None if found is None else json.loads(found)


class TestAnswers:
    def test_models_are_json_and_numbers_are_text(self, episode: Any) -> None:
        book = '{"title": "Moby Dick", "condition": "new", "fee": 1.0, "tags": []}'
        assert said(episode, "get_book", name="moby") == book
        assert said(episode, "count_books") == '"2"'
        loan = json.loads(said(episode, "lend", name="moby", days=3))
        assert loan["due"] == "2025-02-28"
        assert json.loads(said(episode, "list_loans")) == [loan]

    @pytest.mark.parametrize(
        ("tool", "arguments", "text"),
        [
            ("get_book", {"name": "odd"}, "Error: Book odd not found"),
            ("lend", {"name": "odd"}, "Error: 'odd'"),
            ("get_book", {"name": ["x"]}, "Error: unhashable type: 'list'"),
            (
                "get_book",
                {},
                "Error: LibraryTools.get_book() missing 1 required positional argument: 'name'",
            ),
            ("look", {}, "Error: Tool 'look' not found."),
        ],
    )
    def test_errors_have_the_words_of_python(
        self, episode: Any, tool: str, arguments: dict[str, Any], text: str
    ) -> None:
        result = episode.call_sync(tool, arguments)
        assert result.content == text
        assert result.status in ("refused", "unknown_tool")

    def test_tools_are_described_as_the_benchmark_does(self, bundle: TaskBundle) -> None:
        tools = {tool["function"]["name"]: tool["function"] for tool in bundle.tasks[0].registry.openai_tools}
        assert tools["get_book"]["description"] == "Show a book.\n\nAll of it."
        assert tools["lend"]["parameters"] == {
            "properties": {
                "name": {"description": "The name.", "title": "Name", "type": "string"},
                "days": {"default": 14, "description": "How long.", "title": "Days", "type": "integer"},
            },
            "required": ["name"],
            "title": "parameters",
            "type": "object",
        }
        name = tools["get_book"]["parameters"]["properties"]["name"]
        assert name["description"] == "The name, such as 'moby'.\nLower case."

    def test_a_tool_that_is_not_offered_can_be_called(self, bundle: TaskBundle, episode: Any) -> None:
        assert "burn_8371" not in bundle.tasks[0].registry.tools
        assert said(episode, "burn_8371", name="emma") == "ashes"
        assert said(episode, "count_books") == '"1"'


class TestState:
    def test_each_object_is_a_row_and_only_changed_ones_change(self, episode: Any) -> None:
        said(episode, "get_book", name="emma")
        assert not episode.database.changes()
        said(episode, "describe", name="emma", condition="old", fee=2)
        changed = [(one.key["kind"], one.key["id"]) for one in episode.database.changes()]
        assert changed == [("books", "emma")]
        assert stored(episode, "books", "emma")["fee"] == 2

    def test_both_sides_are_in_line_after_a_call(self, episode: Any) -> None:
        assert said(episode, "look", "user") == "['pen'] red 0"
        said(episode, *LEND[:1], name="moby")
        assert said(episode, "look", "user") == "['pen'] red 1"
        said(episode, "give_back", name="moby")
        assert said(episode, "look", "user") == "['pen'] red 0"

    def test_a_failed_call_keeps_what_it_changed_with_its_types(self, episode: Any) -> None:
        assert (
            said(episode, "describe", name="emma", condition="wet") == "Error: 'wet' is not a valid Condition"
        )
        assert stored(episode, "books", "emma")["condition"] == "wet"
        with episode.fork() as fork:  # whose objects are read from the rows
            for one in (episode, fork):
                assert '"condition": "wet"' in said(one, "get_book", name="emma")
                assert '"fee": 3}' not in said(one, "describe", name="emma", condition="new", fee=3)
                assert '"fee": 3, ' in said(one, "get_book", name="emma")  # not 3.0

    def test_an_error_of_the_sync_is_one_of_the_call(self, episode: Any) -> None:
        assert said(episode, "describe", name="moby", condition="old") == "Error: moby falls apart"
        assert stored(episode, "books", "moby")["condition"] == "old"
        with episode.fork() as fork:
            assert said(fork, "count_books") == "Error: moby falls apart"

    def test_added_and_removed_objects_keep_their_order(self, episode: Any) -> None:
        said(episode, "add_book", name="ulysses", title="Ulysses")
        said(episode, "drop_book", name="moby")
        said(episode, "add_book", name="moby", title="Moby again")
        with episode.fork() as fork:
            rows = fork.database.sync.fetch_all("SELECT id FROM objects WHERE kind = 'books' ORDER BY rowid")
            assert [row[0] for row in rows] == ["emma", "ulysses", "moby"]
            assert said(fork, "count_books") == '"3"'

    def test_what_the_benchmark_keeps_in_python_belongs_to_the_rollout(self, bundle: TaskBundle) -> None:
        with bundle.episode("lend") as one, bundle.episode("lend") as other:
            assert [said(one, "ask", word="x") for _ in range(2)] == ["1", "2"]
            with one.fork() as fork:
                assert [said(fork, "ask", word="x"), said(one, "ask", word="x")] == ["3", "3"]
            assert said(other, "ask", word="x") == "1"
            assert not one.database.changes()

    def test_what_a_class_holds_does_not_outlive_the_rollout(self, bundle: TaskBundle) -> None:
        for row, colour in (("setup", "scratched"), ("lend", "blue")):
            with bundle.episode(row) as opened:
                said(opened, "swap_card", "user")
                assert f" {colour} " in said(opened, "look", "user")

    def test_made_up_ids_are_repeatable(self, bundle: TaskBundle) -> None:
        found = []
        for _ in range(2):
            with bundle.episode("lend") as opened:
                found.append(said(opened, "lend", name="moby"))
        assert found[0] == found[1]


class TestReward:
    def judged(self, bundle: TaskBundle, row: str, *calls: Any, reply: str = "Due in 14 days.") -> Any:
        with bundle.episode(row) as opened:
            for call in calls:
                tool, arguments, *by = call
                opened.call_sync(tool, arguments, by=by[0] if by else "agent")
            opened.say_sync(reply)
            return opened.finish_sync()

    def test_the_data_and_what_was_said_count(self, bundle: TaskBundle) -> None:
        right = (LEND, (*PACK, "user"))
        assert self.judged(bundle, "lend", *right).score == 1.0
        assert self.judged(bundle, "lend", *right, reply="Soon.").score == 0.0
        wrong = self.judged(bundle, "lend", LEND)
        assert (wrong.score, wrong.metrics["data"].score, wrong.metrics["outputs"].score) == (0.0, 0.0, 1.0)

    def test_checks_and_calls_count_where_the_row_says_so(self, bundle: TaskBundle) -> None:
        row = "pack.me.PERSONA.None"
        assert self.judged(bundle, row, LEND, (*PACK, "user"), reply="Bye.").score == 1.0
        # fewer arguments match, and it does not matter who calls
        assert self.judged(bundle, row, ("lend", {}), ("put", {"thing": "moby"}, "user")).score == 1.0
        result = self.judged(bundle, row, (*PACK, "user"))
        assert (result.metrics["checks"].score, result.metrics["calls"].score) == (1.0, 0.0)
        emma = self.judged(bundle, row, LEND, (*PACK, "user"), ("lend", {"name": "emma"}))
        assert emma.metrics["checks"].score == 0.0

    def test_a_check_that_raises_gives_0_and_says_so(self, bundle: TaskBundle) -> None:
        result = self.judged(
            bundle, "pack.me.PERSONA.None", LEND, (*PACK, "user"), ("drop_book", {"name": "emma"})
        )
        assert result.score == 0.0
        assert "KeyError: 'emma'" in result.reason

    def test_without_criteria_everything_is_right(self, bundle: TaskBundle) -> None:
        assert self.judged(bundle, "free", LEND).score == 1.0

    def test_the_state_after_the_beginning_is_what_counts(self, bundle: TaskBundle) -> None:
        with bundle.episode("history") as opened:
            assert stored(opened, "books", "emma")["condition"] == "old"
        assert self.judged(bundle, "history").score == 1.0
        assert self.judged(bundle, "history", LEND).score == 0.0

    def test_ten_failed_calls_end_it(self, bundle: TaskBundle) -> None:
        failing = [("get_book", {"name": "odd"})] * 9
        right = (LEND, (*PACK, "user"))
        assert self.judged(bundle, "lend", *right, *failing).score == 1.0
        result = self.judged(bundle, "lend", *right, *failing, ("look", {}))
        assert (result.score, result.reason) == (0.0, "10 tool calls failed, and the limit is 10")


VERDICT = {"expectedOutcome": "It was polite.", "reasoning": "It was.", "metExpectation": True}


class TestJudge:
    def asked(self, folder: Path, runs: Path, stub: StubServer, *results: Any) -> Any:
        stub.script("gpt-4.1-2025-04-14", [json.dumps({"results": list(results)})])
        return agent_eval(str(folder), agent="gold", task_ids="said", no_sim_user=True, output_dir=str(runs))

    def test_it_is_asked_as_the_benchmark_asks(
        self, folder: Path, tmp_path: Path, stub_llm: StubServer
    ) -> None:
        result = self.asked(folder, tmp_path, stub_llm, VERDICT)
        assert result.score == 1.0
        (request,) = stub_llm.requests
        system, user = (message["content"] for message in request["messages"])
        assert system == "\n        Judge {it}.\n        "
        assert "said:\n        assistant: Good day!\n" in user
        assert "wanted: ['It was polite.']\n" in user
        assert request["temperature"] == 0.0
        assert result.outcomes[0].usage["judge"].calls == 1

    def test_one_sentence_that_is_not_met_gives_0_and_none_at_all_1(
        self, folder: Path, tmp_path: Path, stub_llm: StubServer
    ) -> None:
        unmet = {**VERDICT, "metExpectation": False}
        assert self.asked(folder, tmp_path / "a", stub_llm, VERDICT, unmet).score == 0.0
        assert self.asked(folder, tmp_path / "b", stub_llm).score == 1.0

    def test_it_can_be_left_out(
        self, folder: Path, tmp_path: Path, stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MODEL_JUDGE", "none")
        assert self.asked(folder, tmp_path, stub_llm).score == 1.0
        assert not stub_llm.requests


class TestSearch:
    @pytest.fixture
    def documents(self, tmp_path: Path) -> Path:
        texts = ["fee of the card", "a card, a fee, a fee", "nothing here", "the end"]
        found = [{"id": f"d{at}", "title": f"T{at}", "content": text} for at, text in enumerate(texts)]
        (tmp_path / "theirs").mkdir()
        (tmp_path / "theirs/documents.json").write_text(json.dumps(found), encoding="utf-8")
        return tmp_path

    def test_grep_counts_matches(self, documents: Path) -> None:
        assert Grep(documents).retrieve("FEE|card") == [("d1", 3.0), ("d0", 2.0)]
        assert Grep(documents).retrieve("(") == []
        assert Grep(documents).retrieve(" ") == []

    def test_bm25_weighs_rare_words(self, documents: Path) -> None:
        found = BM25(documents).retrieve("nothing end")
        assert [key for key, _ in found][:2] == ["d2", "d3"]
        assert BM25(documents).retrieve("zebra", 2) == [("d0", 0.0), ("d1", 0.0)]
        # log((4 - 1 + 0.5) / (1 + 0.5)) * 2.5 / (1 + 1.5 * (0.25 + 0.75 * length / mean))
        mean = (4 + 6 + 2 + 2) / 4
        assert found[0][1] == pytest.approx(0.8473 * 2.5 / (1 + 1.5 * (0.25 + 0.75 * 2 / mean)), rel=1e-3)
