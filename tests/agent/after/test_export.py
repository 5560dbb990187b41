"""The rollouts of a stored evaluation as lines of a dataset."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import run_command
from flight_bundle import TOOLS, Bundle
from planned_agent import change_log, evaluate, rows_of
from stored_rollouts import change_trajectory, edit, query

from reward_kit.agent import TaskBundle, agent_eval, export, load_rollout
from reward_kit.agent.after.export import COLUMNS, write_lines
from reward_kit.errors import BundleError, UsageError

PLAN = {"b": [1, 0, 1], "a": [0, 1, 1]}


def offered(bundle: Bundle) -> list[dict[str, Any]]:
    with TaskBundle.load(bundle.dataset) as opened:
        return opened.tasks[0].registry.get_openai_tools()


class TestLines:
    def test_a_line_has_what_is_known_of_its_rollout(self, bundle: Bundle) -> None:
        usage = {"calls": 2, "input_tokens": 30, "output_tokens": 4, "cost": 0.5}
        result = evaluate(bundle, "first", PLAN, usage=usage)
        lines = list(export("first"))
        assert [list(line) for line in lines] == [list(COLUMNS)] * 6
        for line in lines:
            record = load_rollout(result.folder / line["file"])
            assert line["messages"] == record.messages
            assert line["tools"] == offered(bundle)
            assert (line["reward"], line["id"], line["seed"]) == (record.reward, record.id, record.seed)
            assert (line["agent"], line["user"], line["model"]) == ("planned_agent:Planned", "none", None)
            assert line["metrics"] == {"task_complete": record.reward}
            assert record.result is not None
            assert line["reason"] == record.result["reason"]
            assert line["usage"]["agent"]["input_tokens"] == 30
            assert (line["stop_reason"], line["turns"], line["opening"]) == ("agent_done", 1, 1)
            assert (line["eval_id"], line["parallel_tool_calls"]) == ("first", True)
            assert (line["model_seconds"], line["waited_seconds"]) == (0.0, 0.0)

    def test_groups_are_the_lines_of_a_row_by_their_number(self, bundle: Bundle) -> None:
        evaluate(bundle, "first", PLAN)
        lines = list(export("first"))
        assert [(line["row_id"], line["rollout"], line["reward"]) for line in lines] == [
            (row_id, number, float(reward)) for row_id in PLAN for number, reward in enumerate(PLAN[row_id])
        ]
        assert all(line["row_rewards"] == PLAN[line["row_id"]] for line in lines)

    def test_what_is_asked_for_is_given_and_the_rest_counted(self, bundle: Bundle) -> None:
        evaluate(bundle, "first", PLAN)
        good = export("first", min_reward=1, rows="a")
        assert list(export("first", min_reward=1, rows=1)) == list(good)
        assert [(line["rollout"], line["row_rewards"]) for line in good] == [(1, [0, 1, 1]), (2, [0, 1, 1])]
        assert dict(good.left_out) == {"row": 3, "reward": 1}
        bad = export("first", max_reward=0.5, rows=["a", "b"], columns="reward, row_id")
        assert list(bad) == [{"reward": 0.0, "row_id": "b"}, {"reward": 0.0, "row_id": "a"}]

    def test_rollouts_without_a_verdict_are_in_it_only_if_asked_for(self, bundle: Bundle) -> None:
        result = evaluate(bundle, "first", PLAN)
        change_log(result, "a", reward=None, error="raised RuntimeError")
        found = export("first", min_reward=0)
        assert {line["row_id"] for line in found} == {"b"}
        assert dict(found.left_out) == {"not judged": 3}
        whole = list(export("first", unjudged=True, columns=["row_id", "reward", "error", "row_rewards"]))
        assert whole[3] == {"row_id": "a", "reward": None, "error": "raised RuntimeError", "row_rewards": []}

    def test_openai_gets_only_the_columns_that_it_takes(self, bundle: Bundle) -> None:
        evaluate(bundle, "first", PLAN)
        assert [list(line) for line in export("first", format="openai", rows="b")] == [
            ["messages", "tools", "parallel_tool_calls"]
        ] * 3
        with pytest.raises(UsageError, match="no column 'reward' in the format openai"):
            export("first", format="openai", columns=["reward"])

    @pytest.mark.parametrize("damage", [
        {"messages": [1]}, {"messages": None}, {"messages": [{}]}, {"models": []},
        {"messages": [{"role": "user"}, {"role": "assistant", "tool_calls": [{"id": 1}]}]},
    ])  # fmt: skip
    def test_a_damaged_trajectory_is_told_and_left_out(
        self, bundle: Bundle, damage: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        result = evaluate(bundle, "first", {"b": [1, 1]})
        path = result.folder / result.outcomes[0].file
        change_trajectory(path, lambda plain: plain.update(damage))
        found = export("first", format="trl")
        assert len(list(found)) == 1
        assert [error.place for error in found.damaged] == [str(path)]
        assert f"a rollout is left out: {path}: is a damaged trace of a rollout" in caplog.text

    def test_so_are_a_lost_one_and_one_whose_bytes_have_changed(self, bundle: Bundle) -> None:
        result = evaluate(bundle, "first", {"b": [1, 1, 1]})
        edit(result.log_path, "UPDATE traces SET json = replace(json, 'Book', 'Look') WHERE rowid = 1")
        edit(result.log_path, "DELETE FROM traces WHERE rowid = 2")
        done = run_command("export", "first", "folder", "--format", "rollouts")
        assert (done.code, len(list(Path("folder").iterdir()))) == (0, 1)
        assert "1 rollout of 1 row exported to folder; left out: 2 that cannot be read" in done.err
        assert done.err.count("warning: a rollout is left out: ") == 2
        assert " is damaged: its checksum differs" in done.err

    def test_wrong_arguments_are_told_at_once(self, bundle: Bundle) -> None:
        evaluate(bundle, "first", PLAN)
        faults: list[tuple[Any, dict[str, Any], str]] = [
            ("first", {"rows": ["aa"]}, r"first: --rows: there is no row 'aa' \(did you mean 'a'\?\)"),
            ("first", {"columns": "rewards"}, r"no column 'rewards' .*\(did you mean 'reward'\?\)"),
            ("first", {"columns": []}, "no column is named"),
            ("first", {"format": "sft"}, "no format 'sft'"),
            ("first", {"min_reward": "1"}, "rewards are numbers, not '1'"),
            ("first", {"max_reward": float("nan")}, "rewards are numbers"),
            ("second", {}, "no evaluation 'second'"),
            (5, {}, "no evaluation is named by 5"),
        ]
        for source, options, told in faults:
            with pytest.raises((UsageError, BundleError), match=told):
                export(source, **options)


class TestTools:
    def test_they_are_in_the_log_once_for_each_toolset(self, bundle: Bundle) -> None:
        bundle.write(
            "more.py", f"{TOOLS}\n@R.tool\ndef ping() -> str:\n    '''Nothing.'''\n    return 'pong'\n"
        )
        rows = rows_of(PLAN)
        rows[0]["toolset"] = "flight_task.more"
        result = evaluate(bundle, "first", PLAN, rows=rows)
        (stored,) = query(result.log_path, "SELECT toolsets FROM evaluation")
        assert len(json.loads(stored["toolsets"])) == 2
        names = {line["row_id"]: [it["function"]["name"] for it in line["tools"]] for line in export("first")}
        assert names["b"] == [*names["a"], "ping"]

    def test_they_are_those_of_the_run_where_the_bundle_has_changed_since(self, bundle: Bundle) -> None:
        evaluate(bundle, "first", PLAN)
        before = offered(bundle)
        bundle.write("tools.py", TOOLS.replace("List", "Enumerate").replace("Search", "Look for"))
        assert next(iter(export("first")))["tools"] == before

    @pytest.mark.parametrize("where", ["option", "registry"])
    def test_whether_several_calls_at_once_were_wanted(self, bundle: Bundle, where: str) -> None:
        if where == "registry":
            bundle.write("tools.py", f"{TOOLS}\nR.parallel_tool_calls = False\n")
        bundle.rows(*rows_of({"a": [1]}))
        parallel = {"parallel_tool_calls": where != "option"}
        agent_eval(bundle.dataset, agent="gold", user="none", eval_id="first", **parallel)
        assert [line["parallel_tool_calls"] for line in export("first")] == [False]


class TestWriting:
    def test_numbers_that_json_does_not_know_are_null(self, tmp_path: Path) -> None:
        path = tmp_path / "lines.jsonl"
        assert write_lines([{"logprob": float("-inf"), "text": "größe\n"}, {"half": "\ud83d"}], path) == 2
        first, second = path.read_bytes().splitlines()
        assert first == '{"logprob":null,"text":"größe\\n"}'.encode()
        assert json.loads(second) == {"half": "?"}

    def test_a_file_is_whole_or_as_it_was(self, tmp_path: Path) -> None:
        path = tmp_path / "lines.jsonl"
        path.write_text("before\n")
        with pytest.raises(ZeroDivisionError):
            write_lines(({"a": 1 // number} for number in (1, 0)), path)
        assert path.read_text() == "before\n"
        assert list(tmp_path.iterdir()) == [path]
