"""The integrations with the real packages, each where it is installed, on the rows of a new bundle.

``make test-integrations`` installs them, in several environments.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from reward_kit.agent import evaluate, export
from reward_kit.errors import UsageError

NUMBERS = itertools.count()
LEND = {"name": "lend_book", "arguments": {"book_id": 3, "member": "Ada"}}
TO_BO = {"name": "lend_book", "arguments": {"book_id": 1, "member": "Bo"}}


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a new bundle in the working directory; each test has another."""
    monkeypatch.chdir(tmp_path)
    name = f"library_{next(NUMBERS)}"
    subprocess.run([sys.executable, "-m", "reward_kit", "init", name], check=True, capture_output=True)
    return name


def bo(messages: list[Any]) -> str:
    """The model of the user of lend.2: it asks for a book, hears the answer and leaves."""
    return "I am Bo. Middlemarch, please." if len(messages) == 2 else "Thanks! ###STOP###"


def leaves(messages: list[Any]) -> str:
    """A user at fault: it leaves instead of answering."""
    return "I want Middlemarch. Can you lend it to me?" if len(messages) == 2 else "###STOP###"


def fails(_messages: list[Any]) -> str:
    raise RuntimeError("the model of the user is down")


def only(bundle: str, row: str) -> None:
    """Keep one row of the bundle."""
    lines = Path(bundle, "task.jsonl").read_text().partition("\n")[2]
    rows = {
        "lend.1": {"id": "lend.1", "initial_messages": [{"role": "user", "content": "I am Ada: Kindred."}]},
        "lend.2": {"id": "lend.2", "sim_user_prompt": "You are Bo and want Middlemarch."},
    }
    assert row in lines
    actions = [LEND if row == "lend.1" else TO_BO]
    kept = {"toolset": ".tools", "system_prompt": "file:policy.md", "actions": actions, **rows[row]}
    Path(bundle, "task.jsonl").write_text(json.dumps(kept) + "\n")


def test_gymnasium(bundle: str) -> None:
    pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    from reward_kit.integrations.gymnasium import BundleEnv

    solo = {
        "id": "s",
        "toolset": ".tools",
        "ticket": "Lend 3.",
        "sim_user_prompt": "Ada",
        "actions": [],
    }
    Path(bundle, "solo.jsonl").write_text(json.dumps(solo))
    BundleEnv(f"{bundle}/solo.jsonl", mode="solo").close()
    env = BundleEnv(bundle, row="lend.1")
    check_env(env, skip_render_check=True)
    text, info = env.reset(seed=1)
    assert "borrow Kindred" in text
    assert [tool["function"]["name"] for tool in info["tools"]] == ["find_books", "lend_book"]
    assert env.step(json.dumps(LEND)) == ("lent", 0.0, False, False, {})
    assert env.step("Here you are.")[1:4] == (1.0, True, False)
    env.reset(seed=1)
    for faulty in ('{"name": "lend_book"}', '{"name": "lend_book", "arguments": [3]}', '{"arguments": {}}'):
        observation, *_, terminated, truncated, _ = env.step(faulty)
        assert observation.startswith("Error: ")
        assert (terminated, truncated) == (False, False)
    assert env.step("No.")[1:4] == (0.0, True, False)
    env.close()
    with pytest.raises(UsageError, match="simulated user.* no model"):
        BundleEnv(bundle, row="lend.2")


def test_gymnasium_with_a_user(bundle: str) -> None:
    pytest.importorskip("gymnasium")
    from reward_kit.integrations.gymnasium import BundleEnv

    env = BundleEnv(bundle, row="lend.2", models={"user": bo})
    text, _ = env.reset(seed=1)
    assert text == "I am Bo. Middlemarch, please."
    env.step(json.dumps(TO_BO))
    assert env.step("It is yours.")[1:4] == (1.0, True, False)
    env.close()
    for model, reason in ((leaves, "user_error: stopped_early"), (fails, "infrastructure_error")):
        env = BundleEnv(bundle, row="lend.2", models={"user": model})
        env.reset(seed=1)
        *_, reward, terminated, truncated, info = env.step("Shall I look for it?")
        assert (reward, terminated, truncated, info["reward"]) == (0.0, False, True, None)
        assert info["reason"].startswith(reason)
        env.close()


def test_trl_parts(bundle: str) -> None:
    pytest.importorskip("transformers")
    from transformers.utils import get_json_schema

    from reward_kit.integrations.trl import BundleParts

    with pytest.raises(UsageError, match="simulated user.* no model"):
        BundleParts(bundle)
    parts = BundleParts(bundle, models={"user": bo})
    assert [row["row_id"] for row in parts.rows] == ["lend.1", "ask.1", "lend.2"]
    assert parts.rows[2]["prompt"][-1] == {"role": "user", "content": ""}
    solved, idle, talk = (parts.environment() for _ in range(3))
    schema = get_json_schema(solved.lend_book)["function"]
    assert schema["parameters"]["properties"]["book_id"]["type"] == "integer"
    assert schema["parameters"]["required"] == ["book_id", "member"]
    assert get_json_schema(talk.say_to_user)["function"]["parameters"]["required"] == ["text"]
    assert [solved.reset(row_id="lend.1"), idle.reset(row_id="lend.1")] == [None, None]
    assert talk.reset(row_id="lend.2") == "I am Bo. Middlemarch, please."
    assert solved.lend_book(**LEND["arguments"]) == talk.lend_book(**TO_BO["arguments"]) == "lent"
    assert talk.say_to_user("It is yours.") == talk.say_to_user("Hello?") == "The conversation is over."
    said = [{"role": "assistant", "content": "Done."}]
    assert parts.reward([said] * 3, [solved, idle, talk]) == [1.0, 0.0, 1.0]
    assert not hasattr(talk, "get_reward")


def test_trl_masks_what_the_user_spoilt(bundle: str) -> None:
    pytest.importorskip("transformers")
    from reward_kit.integrations.trl import BundleParts

    only(bundle, "lend.2")
    for model, reward in ((bo, 0.0), (leaves, None), (fails, None)):
        environment = BundleParts(bundle, models={"user": model}).environment()
        environment.reset(row_id="lend.2")
        environment.say_to_user("I cannot do that." if model is bo else "Shall I look for it?")
        assert environment.get_reward() == reward


def test_trl_trainer(bundle: str) -> None:
    pytest.importorskip("trl")
    done: Any = subprocess.run(
        [sys.executable, Path(__file__).with_name("play_trl.py"), bundle], capture_output=True, text=True
    )
    assert "rewards [1.0, 0.5, None]" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("model", [bo, leaves, fails])
def test_inspect(bundle: str, model: Any) -> None:
    pytest.importorskip("inspect_ai")
    from inspect_ai import eval as run_eval
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from reward_kit.integrations.inspect_ai import bundle_task

    def answer(messages: Any, tools: Any, *_: Any) -> Any:
        assert {tool.name for tool in tools} == {"find_books", "lend_book"}
        made = TO_BO if any("Bo" in message.text for message in messages) else LEND
        if (model is not bo and made is TO_BO) or messages[-1].role == "tool":
            output = ModelOutput.from_content("mockllm", "Shall I look for it?")
        elif "Solaris" in str(messages[-1].text) and made is LEND:
            output = ModelOutput.from_content("mockllm", "I do not know.")
        else:
            output = ModelOutput.for_tool_call("mockllm", made["name"], made["arguments"])
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    with pytest.raises(UsageError, match="simulated user.* no model"):
        bundle_task(bundle)
    task = bundle_task(bundle, models={"user": model}, epochs=2)
    agent = get_model("mockllm/model", custom_outputs=answer)
    (log,) = run_eval(task, model=agent, max_samples=1, display="none", log_dir="logs")
    assert log.status == "success", log.error
    scores = {(one.id, one.epoch): next(iter(one.scores.values())) for one in log.samples}
    assert len(scores) == 6
    values = {key: score.value for key, score in scores.items()}
    assert [values["lend.1", 1], values["lend.1", 2], values["ask.1", 1]] == [1.0, 1.0, 0.0]
    masked = scores["lend.2", 2]
    if model is bo:
        assert masked.value == 1.0
    else:
        assert masked.value != masked.value  # NaN: unscored
        assert masked.explanation.startswith("user_error" if model is leaves else "infrastructure_error")
    assert [one.name for one in log.results.scores] == ["reward"]
    mean = log.results.scores[0].metrics["mean"].value
    assert mean == pytest.approx(2 / 3 if model is bo else 0.5)


@pytest.mark.parametrize("calls", [2, 1])
def test_inspect_hands_on_each_answer_as_it_is(bundle: str, calls: int) -> None:
    """The episode gets text beside calls and calls that are refused, and several calls if the tools allow."""
    pytest.importorskip("inspect_ai")
    from inspect_ai import eval as run_eval
    from inspect_ai.model import ChatMessageAssistant, ModelOutput, ModelUsage, get_model
    from inspect_ai.tool import ToolCall

    from reward_kit.integrations.inspect_ai import bundle_task

    only(bundle, "lend.1")
    tools = Path(bundle, "tools.py").read_text()
    if calls == 1:
        tools = tools.replace("ToolRegistry(", "ToolRegistry(parallel_tool_calls=False, name=")
    Path(bundle, "tools.py").write_text(tools)
    asked = [("steal", {}), ("lend_book", {"book_id": "three"})]

    def answer(messages: Any, *_: Any) -> Any:
        if sum(one.role == "tool" for one in messages) == 2 * calls:
            output = ModelOutput.from_content("mockllm", "Done.")
        else:  # twice, with the same ids
            made = [ToolCall(id=name, function=name, arguments=given) for name, given in asked]
            output = ModelOutput.from_message(ChatMessageAssistant(content="I look.", tool_calls=made))
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    agent = get_model("mockllm/model", custom_outputs=answer)
    (log,) = run_eval(bundle_task(bundle), model=agent, display="none", log_dir="logs")
    assert log.status == "success", log.error
    *turns, done = log.samples[0].messages[2:]
    ids = []
    for said, *results in (turns[: calls + 1], turns[calls + 1 :]):
        ids.append([one.id for one in said.tool_calls])
        assert (said.text, [one.tool_call_id for one in results]) == ("I look.", ids[-1])
        assert all(one.text.startswith("Error: ") for one in results)
    assert (done.text, ids[0]) == ("Done.", ["steal", "lend_book"][:calls])
    assert not {*ids[0]} & {*ids[1]}


DRAW = """

@R.tool
async def draw(db):
    \"\"\"Draw lots.\"\"\"
    return await db.fetch_val("SELECT abs(random()) % 3")
"""


def test_pass_k_of_inspect_is_ours(bundle: str) -> None:
    """The same agent decides by what a tool draws, which depends on the seed of the rollout."""
    pytest.importorskip("inspect_ai")
    from inspect_ai import Epochs
    from inspect_ai import eval as run_eval
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from reward_kit.agent import evaluate
    from reward_kit.integrations.inspect_ai import bundle_task

    with Path(bundle, "tools.py").open("a") as tools:
        tools.write(DRAW)
    row = {
        "toolset": ".tools",
        "actions": [LEND],
        "initial_messages": [{"role": "user", "content": "I am Ada."}],
    }
    rows = [json.dumps({**row, "id": f"r{number}"}) for number in range(6)]
    Path(bundle, "task.jsonl").write_text("\n".join(rows))

    def decide(results: list[str]) -> dict[str, Any] | str:
        if not results:
            return {"name": "draw", "arguments": {}}
        return LEND if len(results) == 1 and results[0] != "0" else "Done."

    def policy(messages: list[Any]) -> Any:
        made = decide([one["content"] for one in messages if one["role"] == "tool"])
        return made if isinstance(made, str) else {"tool_calls": [{"function": made}]}

    def answer(messages: Any, *_: Any) -> Any:
        made = decide([one.text for one in messages if one.role == "tool"])
        if isinstance(made, str):
            output = ModelOutput.from_content("mockllm", made)
        else:
            output = ModelOutput.for_tool_call("mockllm", made["name"], made["arguments"])
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    ours = evaluate(bundle, models={"agent": policy}, n_rollouts=4, seed=7, quiet=True)
    assert 0.0 < ours.pass_power[4].value < ours.pass_power[1].value < 1.0
    task = bundle_task(bundle, epochs=Epochs(4, [f"pass_k_{k}" for k in (1, 2, 4)]), seed=7)
    agent = get_model("mockllm/model", custom_outputs=answer)
    (log,) = run_eval(task, model=agent, display="none", log_dir="logs")
    assert log.status == "success", log.error
    theirs = {
        int(one.reducer.removeprefix("pass_k_")): one.metrics["mean"].value for one in log.results.scores
    }
    assert theirs == {k: pytest.approx(ours.pass_power[k].value) for k in (1, 2, 4)}


def test_openenv(bundle: str) -> None:
    harness = pytest.importorskip("openenv.core.harness")
    client = pytest.importorskip("openenv.core.llm_client")
    if not hasattr(harness.ResourceSessionFactory, "__class_getitem__"):
        with pytest.raises(ImportError, match=r"pip install 'openenv>=0\.10'"):
            import_module("reward_kit.integrations.openenv")
        pytest.skip("openenv is older than 0.10: make test-integrations")
    from reward_kit.integrations.openenv import BundleSessions, TalkingHarness

    def step(messages: Any, tools: Any, sampling: Any) -> Any:
        assert {tool.name for tool in tools} == {"find_books", "lend_book"}
        made = TO_BO if any("Bo" in str(message["content"]) for message in messages) else LEND
        if messages[-1]["role"] == "tool":
            return harness.ModelStepResult(client.LLMResponse("Shall I look for more?"))
        call = client.ToolCall("call_1", made["name"], made["arguments"])
        return harness.ModelStepResult(client.LLMResponse("", [call]))

    def idle(*_: Any) -> Any:
        return harness.ModelStepResult(client.LLMResponse("Shall I look for it?"))

    with pytest.raises(UsageError, match="simulated user.* no model"):
        BundleSessions(bundle)
    played = []
    cases = [("lend.1", bo, step), ("lend.2", bo, step), ("lend.2", leaves, idle), ("lend.2", fails, idle)]
    for row, model, agent in cases:
        session = BundleSessions(bundle, models={"user": model}).create(row, seed=1)
        result = TalkingHarness().run_white_box(agent, session)
        verified = session.verify(result.messages)
        played.append((verified.env_reward, len(result.tool_trace)))
        session.close()
    assert played == [(1.0, 1), (1.0, 1), (None, 0), (None, 0)]
    cases = [({"max_turns": 1}, 1), ({"max_total_tool_calls": 0}, 0), ({"max_tool_calls_per_turn": 1}, 1)]
    cases.append(({"max_total_tool_calls": 1}, 1))
    for limits, calls in cases:
        session = BundleSessions(bundle, models={"user": bo}).create("lend.1", seed=1)
        result = TalkingHarness().run_white_box(step, session, harness.HarnessRunLimits(**limits))
        is_cut = limits not in ({"max_tool_calls_per_turn": 1}, {"max_total_tool_calls": 1})
        assert (result.done, result.metrics.get("truncated", False)) == (not is_cut, is_cut)
        assert len(result.tool_trace) == calls
        assert (session.play.episode.stop_reason == "max_steps") is is_cut
        session.verify(result.messages)
        session.close()


def test_tokens_are_training_turns(bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training = pytest.importorskip("openenv.core.harness.training")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tests" / "agent")
    stub, vllm = import_module("stub_server").StubServer(), import_module("vllm_stub").vllm

    def lends(request: Any, place: int) -> Any:
        is_bo = any("Bo" in str(one["content"]) for one in request["messages"])
        made = TO_BO if is_bo else LEND
        return "Shall I look for more?" if place else (made["name"], made["arguments"])

    stub.script("m", vllm(lends))
    given = {"model": "openai/m", "model_args": {"return_token_ids": True, "api_base": stub.url}}
    try:
        played = evaluate(bundle, task_ids="lend.2", models={"user": bo}, n_rollouts=2, **given)
    finally:
        stub.close()
    lines = list(export(played, format="tokens"))
    trace = training.TrainingTrace(turns=[training.TrainingTurn(**line) for line in lines])
    assert [one["metadata"]["reward"] for one in trace.to_trace_entries()] == [1.0] * 4
    assert all(any(turn.loss_mask) and turn.request["messages"] for turn in trace.turns)


def test_verifiers(bundle: str) -> None:
    pytest.importorskip("verifiers")
    done: Any = subprocess.run(
        [sys.executable, Path(__file__).with_name("play_verifiers.py"), bundle],
        capture_output=True,
        text=True,
    )
    shown = {*done.stdout.splitlines()}
    wanted = {"good lend.1 1.0", "good ask.1 0.0", "good lend.2 1.0", "leaves lend.1 1.0"}
    assert wanted <= shown, done.stdout + done.stderr
    assert any("leaves lend.2 error" in line and "stopped_early" in line for line in shown), done.stdout
