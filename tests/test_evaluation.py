"""Preview: the user's evaluate is really run, and what fails is reported."""

import json
import sys
import types

import pytest
from reward_kit.evaluation import Evaluator, preview_evaluation

from reward_kit import RewardKitError

WORDS = """
def evaluate(messages, ground_truth=None, tools=None, **kwargs):
    words = len(messages[-1]["content"].split())
    return {"score": words / 4, "reason": f"{words} words", "extra": sorted(kwargs)}
"""


@pytest.fixture
def metric(tmp_path):
    """``metric(name, main.py, other.py=...)`` makes a metric folder and gives ``name=path``."""

    def make(name, main, **others):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "main.py").write_text(main)
        for module, text in others.items():
            (folder / f"{module}.py").write_text(text)
        return f"{name}={folder}"

    return make


def test_metric_folders_may_be_loaded_again(metric):
    evaluator, pair = Evaluator(), metric("words", WORDS)
    evaluator.load_metric_folders([pair])
    evaluator.load_metric_folders([pair])
    assert list(evaluator.metric_folders) == ["words"]


@pytest.fixture
def samples(tmp_path):
    """Two samples (an answer of four words, one of two), a line that is no JSON, an empty one."""
    file = tmp_path / "samples.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": text}], "weight": 2}
        for text in ("one two three four", "one two")
    ]
    file.write_text("\n".join([json.dumps(rows[0]), "no json", "", json.dumps(rows[1])]))
    return str(file)


def test_every_sample_is_judged_by_the_folder_s_own_code(metric, samples):
    result = preview_evaluation(metric_folders=[metric("words", WORDS)], sample_file=samples)
    assert result.total_samples == 2
    assert result.total_runtime_ms >= 0
    assert [(one.index, one.success, one.score) for one in result.results] == [(0, True, 1.0), (1, True, 0.5)]
    assert result.results[1].per_metric_evals == {"words": {"score": 0.5, "reason": "2 words"}}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise LookupError('mine')", "LookupError: mine"),
        ("return 'good'", "ValidationError"),
        ("return None", "ValidationError"),
    ],
)
def test_what_fails_has_no_score_and_says_why(metric, samples, body, error):
    pair = metric("broken", f"def evaluate(messages, **kwargs):\n    {body}\n")
    result = preview_evaluation(metric_folders=[pair, metric("words", WORDS)], sample_file=samples)
    assert [(one.success, one.score) for one in result.results] == [(False, None)] * 2
    assert f"broken: {error}" in result.results[0].error
    assert result.results[0].per_metric_evals["words"]["score"] == 1.0


def test_the_faults_of_all_metrics_are_told(metric, samples):
    pairs = [metric(name, f"def evaluate(**kwargs):\n    raise KeyError('{name}')\n") for name in ("a", "b")]
    result = preview_evaluation(metric_folders=pairs, sample_file=samples)
    assert "  Error: a: KeyError: 'a'; b: KeyError: 'b'" in str(result).splitlines()


def test_one_folder_may_give_all_metrics(metric, samples):
    main = """
from reward_kit import reward_function, RewardOutput
@reward_function
async def evaluate(messages, **kwargs):
    return RewardOutput(score=0.5, metrics={"quality": {"score": 0.25, "reason": "meh"}})
"""
    folder = metric("all", main).partition("=")[2]
    result = preview_evaluation(multi_metrics=True, folder=folder, sample_file=samples)
    assert result.results[0].score == 0.5
    assert result.results[0].per_metric_evals == {"quality": {"score": 0.25, "reason": "meh"}}


@pytest.mark.parametrize("parameters", ["entry", "messages", "messages, weight"])
def test_older_forms_of_evaluate(metric, samples, parameters):
    messages = "entry['messages']" if parameters == "entry" else "messages"
    main = f"def evaluate({parameters}):\n    return {{'score': len({messages})}}\n"
    assert preview_evaluation(metric_folders=[metric("m", main)], sample_file=samples).results[0].score == 2.0


async def test_an_async_reward_is_awaited_also_where_a_loop_runs(metric, samples):
    main = "async def evaluate(messages, **kwargs):\n    return {'score': 0.5, 'reason': 'fine'}\n"
    result = preview_evaluation(metric_folders=[metric("m", main)], sample_file=samples)
    assert {one.score for one in result.results} == {0.5}


class TestFaults:
    def test_what_the_arguments_must_say(self, metric, samples, tmp_path):
        pair = metric("words", WORDS)
        for arguments, fault in [
            ({"sample_file": samples}, "At least one metric_folder must be specified"),
            ({"metric_folders": ["nameless"], "sample_file": samples}, "Invalid metric-folder format: name"),
            ({"multi_metrics": True, "sample_file": samples}, "`folder` must be specified"),
            ({"metric_folders": [pair]}, "Either sample_file or huggingface_dataset must be specified"),
            ({"metric_folders": [pair], "sample_file": "missing.jsonl"}, "Sample file does not exist"),
            ({"python_code_to_evaluate": WORDS, "folder": "x"}, "Cannot use python_code_to_evaluate"),
            ({"metric_folders": [pair], "sample_file": samples, "reward_function_mode": "batch"}, "point"),
        ]:
            with pytest.raises(ValueError, match=fault):
                preview_evaluation(**arguments)

    def test_what_a_metric_folder_must_be(self, tmp_path, metric):
        (tmp_path / "file").write_text("")
        (tmp_path / "empty").mkdir()
        silent = metric("silent", "x = 1").partition("=")[2]
        for path, fault in [
            (tmp_path / "nowhere", "Folder does not exist"),
            (tmp_path / "file", "Not a directory"),
            (tmp_path / "empty", "main.py is required"),
            (silent, "must contain an evaluate function"),
        ]:
            with pytest.raises(ValueError, match=fault):
                Evaluator().load_metric_folder("m", path)

    @pytest.mark.parametrize(
        "main", ["import no_such_module  # evaluate", "evaluate(", "exit(3)  # evaluate", "# evaluate"]
    )
    def test_a_metric_that_cannot_be_imported_is_named(self, metric, samples, main):
        with pytest.raises(RewardKitError, match=r"words/main\.py: cannot be imported: "):
            preview_evaluation(metric_folders=[metric("words", main)], sample_file=samples)


class TestHuggingFace:
    def test_rows_become_dialogues(self, metric, monkeypatch):
        rows = [
            {"prompt": "hi", "response": "one two", "label": "a", "weight": 1},
            {"prompt": "hi", "response": None, "label": "b"},
            {"prompt": "hi", "response": "one two three four", "label": "c", "weight": 1},
        ]
        module = types.ModuleType("datasets")
        module.load_dataset = lambda name, split, streaming: iter(rows)
        monkeypatch.setitem(sys.modules, "datasets", module)
        answer = "{'score': 1, 'reason': str(sorted(kwargs.items()))}"
        main = f"def evaluate(messages, **kwargs):\n    return {answer}\n"
        keys = {"label": "ground_truth"}
        source = {"huggingface_dataset": "users/set", "huggingface_message_key_map": keys}
        result = preview_evaluation(metric_folders=[metric("m", main)], **source)
        assert [one.per_metric_evals["m"]["reason"] for one in result.results] == [
            "[('ground_truth', 'a'), ('weight', 1)]",
            "[('ground_truth', 'c'), ('weight', 1)]",
        ]

    def test_without_the_library_it_says_what_to_install(self, metric, monkeypatch):
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(ImportError, match="pip install datasets"):
            preview_evaluation(metric_folders=[metric("words", WORDS)], huggingface_dataset="users/set")
