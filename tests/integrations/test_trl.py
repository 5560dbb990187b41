"""create_trl_adapter: dataset columns become arguments of the reward."""

from reward_kit.adapters.trl import create_trl_adapter

from reward_kit import EvaluateResult, RewardFunction, RewardOutput, reward_fn_to_scorer, reward_function


@reward_function
def judge(messages, tests=None, language=None, **kwargs):
    if tests == "broken":
        raise LookupError("mine")
    said = f"{messages[0].content}|{messages[1].content}|{tests}|{language}"
    return RewardOutput(score=float(said == "p|c|t|python"))


def test_columns_and_static_arguments():
    adapter = create_trl_adapter(judge, {"column": "tests"}, {"language": "python"})
    completions = ["c", [{"role": "assistant", "content": "c"}]]
    assert adapter(["p", "p"], completions, column=["t", "t"]) == [1.0, 1.0]
    assert adapter(["p", "p"], ["c", "other"], column=["t", "t"]) == [1.0, 0.0]


def test_an_async_reward_is_awaited():
    @reward_function
    async def good(messages, ground_truth=None, **kwargs):
        return RewardOutput(score=0.5)

    assert create_trl_adapter(good, {})(["p"], ["c"]) == [0.5]
    assert RewardFunction(func=good).get_trl_adapter()(["p"], ["c"]) == [0.5]
    assert reward_fn_to_scorer(good)("p", "c") == 0.5


def test_messages_of_ones_own():
    arguments = (judge, {"column": "tests"}, {"language": "python"})
    adapter = create_trl_adapter(*arguments, lambda prompt: prompt["text"], lambda reply: reply["out"])
    assert adapter([{"text": "p"}], [{"out": "c"}], column=["t"]) == [1.0]


def test_a_column_that_is_missing_or_short_is_none_and_logged(caplog):
    def missing(messages, tests):
        return EvaluateResult(score=float(tests is None))

    adapter = create_trl_adapter(missing, {"column": "tests"})
    assert adapter(["p", "p"], ["c", "c"]) == adapter(["p", "p"], ["c", "c"], column=["t"]) == [1.0, 1.0]
    assert "'column'" in caplog.text


def test_a_failing_sample_scores_zero_and_without_completions_the_reply_is_empty(caplog):
    adapter = create_trl_adapter(judge, {"column": "tests"})
    assert adapter(["p"], ["c"], column=["broken"]) == [0.0]
    assert "mine" in caplog.text
    silent = create_trl_adapter(lambda messages: {"score": float(messages[1].content == "")}, {})
    assert silent(["p"]) == [1.0]
