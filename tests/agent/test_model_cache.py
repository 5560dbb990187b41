"""Answers of models that are kept, and come back when the same evaluation runs again."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command import run_command
from flight_bundle import Bundle
from small_task import InProcessModel
from stored_rollouts import edit
from stub_server import Answer, StubServer, call

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.base.types import Completion
from reward_kit.agent.models.cache import AnswerStore, cached_models, public_identity
from reward_kit.agent.models.litellm import LiteLLMModel

ROWS = [{"id": "a", "n_rollouts": 3}, {"id": "b", "n_rollouts": 3}]
MODELS: dict[str, Any] = {"model": "openai/gpt-4o-mini", "sim_model": "openai/gpt-3.5-turbo"}


@pytest.fixture
def never_the_same(stub_llm: StubServer) -> StubServer:
    """A model that numbers its answers, and a user who hears them and leaves."""
    numbers = itertools.count(1)

    def answer(request: dict[str, Any], place: int) -> Any:
        number = next(numbers)
        if place == 0:
            return call("create_booking", flight_id=1, passenger=f"Passenger {number}")
        return f"Answer {number}"

    stub_llm.script("gpt-4o-mini", answer)
    stub_llm.script("gpt-3.5-turbo", lambda request, place: f"Thanks {next(numbers)} ###STOP###")
    return stub_llm


def run(bundle: Bundle, **options: Any) -> EvaluationResult:
    return agent_eval(bundle.dataset, **{**MODELS, "cache": True, **options})


def conversations(result: EvaluationResult) -> dict[tuple[str, int], Any]:
    return {(record.row_id, record.index): record.messages for record in result.records()}


def test_an_evaluation_that_runs_again_asks_no_model(bundle: Bundle, never_the_same: StubServer) -> None:
    first = run(bundle)
    asked = len(never_the_same.requests)
    assert asked == 6 * 3
    again = run(bundle)
    assert len(never_the_same.requests) == asked
    assert again.eval_id != first.eval_id
    assert json.dumps(list(conversations(again).items())) == json.dumps(list(conversations(first).items()))
    assert [outcome.reward for outcome in again.outcomes] == [outcome.reward for outcome in first.outcomes]


def test_rollouts_of_a_row_share_no_answer(bundle: Bundle, never_the_same: StubServer) -> None:
    for _ in range(2):
        result = run(bundle, n_rollouts=3)
        said = [message["content"] for messages in conversations(result).values() for message in messages]
        answers = [text for text in said if str(text).startswith(("Answer", "Thanks"))]
        assert len(set(answers)) == len(answers) == 12


def test_without_the_option_nothing_is_kept_or_used(bundle: Bundle, never_the_same: StubServer) -> None:
    run(bundle, cache=False)
    assert not (bundle.folder.parent / "runs" / ".cache").exists()
    asked = len(never_the_same.requests)
    run(bundle)
    run(bundle, cache=False)
    assert len(never_the_same.requests) == 3 * asked


@pytest.mark.parametrize("change", [{"temperature": 0.5}, {"model_args": {"top_p": 0.5}}, {"seed": 11}])
def test_another_setting_asks_the_model_anew(bundle: Bundle, never_the_same: StubServer, change: Any) -> None:
    run(bundle)
    asked = len(never_the_same.requests_for("gpt-4o-mini"))
    run(bundle, **change)
    assert len(never_the_same.requests_for("gpt-4o-mini")) == 2 * asked


def test_another_prompt_or_tool_asks_the_model_again(bundle: Bundle, never_the_same: StubServer) -> None:
    run(bundle, task_ids="a")
    asked = len(never_the_same.requests)
    bundle.rows({"id": "a", "n_rollouts": 3, "system_prompt": "Be kind"})
    run(bundle)
    assert len(never_the_same.requests) == 2 * asked
    tools = (bundle.folder / "tools.py").read_text()
    bundle.write("tools.py", tools.replace('description="Reserve seat"', 'description="Reserve one seat"'))
    run(bundle)
    # the last question to the user's model is another since the agent's answers are
    assert len(never_the_same.requests) == 3 * asked


def test_clearing_forgets_all(bundle: Bundle, never_the_same: StubServer) -> None:
    run(bundle)
    asked = len(never_the_same.requests)
    run(bundle, clear_cache=True)
    assert len(never_the_same.requests) == 2 * asked
    run(bundle, cache=False, clear_cache=True)
    assert len(never_the_same.requests) == 3 * asked
    run(bundle)
    assert len(never_the_same.requests) == 4 * asked


def test_kept_answers_have_a_price_and_are_not_paid_again(bundle: Bundle, never_the_same: StubServer) -> None:
    first = run(bundle)
    again = run(bundle, max_cost=1e-9)  # as much as nothing: the first answer that has to be paid ends it
    assert again.status == "complete"
    for role in ("agent", "user"):
        assert again.usage[role].cost == first.usage[role].cost > 0
        assert again.usage[role].input_tokens == first.usage[role].input_tokens
        assert (first.usage[role].reused_calls, first.usage[role].paid) == (0, first.usage[role].cost)
        assert (again.usage[role].reused_calls, again.usage[role].paid) == (again.usage[role].calls, 0.0)
    calls = again.record(again.outcomes[0]).model_calls
    assert [made.cached for made in calls] == [True] * len(calls)
    assert all(made.seconds > 0 for made in calls)
    assert first.averages.waiting == again.averages.waiting == 0.0


def test_the_report_says_what_came_from_the_cache(bundle: Bundle, never_the_same: StubServer) -> None:
    command = ["agent-eval", "-d", "flight_task", "--cache"]
    command += ["--model", MODELS["model"], "--sim-model", MODELS["sim_model"]]
    first, again = (run_command(*command) for _ in range(2))
    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert "from the cache" not in first.out
    assert " answers from the cache: $" in " ".join(again.out.split())
    assert "12 answers from the cache: $" in run_command("show", "latest").out


def test_errors_are_not_kept(bundle: Bundle, never_the_same: StubServer) -> None:
    bundle.rows({"id": "a", "n_rollouts": 1})
    never_the_same.fail("gpt-4o-mini", Answer(status=400, error="no", code="context_length_exceeded"))
    failed = run(bundle)
    assert failed.outcomes[0].stop_reason == "agent_error"
    assert run(bundle).outcomes[0].stop_reason == "user_stop"


def test_a_damaged_cache_is_not_used(bundle: Bundle, never_the_same: StubServer, caplog: Any) -> None:
    run(bundle)
    asked = len(never_the_same.requests)
    for path in (bundle.folder.parent / "runs" / ".cache").iterdir():
        path.write_bytes(b"noise" * 4000)
    run(bundle)
    assert len(never_the_same.requests) == 2 * asked
    assert caplog.text.count("the answer cache cannot be used") == 1


def test_clearing_removes_a_damaged_cache(
    bundle: Bundle, never_the_same: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    run(bundle)
    folder = bundle.folder.parent / "runs" / ".cache"
    for name in ("answers.db", "gold.db"):
        for end in ("", "-wal", "-shm"):
            (folder / f"{name}{end}").write_bytes(b"noise" * 4000)
    run(bundle, cache=False, clear_cache=True)
    assert not [path for path in folder.iterdir() if path.read_bytes().startswith(b"noise")]
    run(bundle, clear_cache=True)
    assert "cache" not in caplog.text
    asked = len(never_the_same.requests)
    run(bundle)
    assert len(never_the_same.requests) == asked


def test_an_answer_that_is_cut_short_is_asked_for_anew(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    store.add("key", Completion({"role": "assistant", "content": "Hi"}))
    edit(store.path, "UPDATE answers SET answer = substr(answer, 1, 9)")
    assert store.get("key") is None


def test_no_key_gets_into_any_file(bundle: Bundle, never_the_same: StubServer, monkeypatch: Any) -> None:
    canary = "sk-CANARY-7f3a9d"
    monkeypatch.setenv("OPENAI_API_KEY", f"{canary}-env")
    secrets = {"api_key": f"{canary}-arg", "extra_headers": {"Authorization": f"Bearer {canary}-header"}}
    run(bundle, model_args=secrets, user_model_args={"extra_headers": {"X-Api-Key": f"{canary}-x"}})
    assert canary in json.dumps(never_the_same.request_headers)
    files = [path for path in (bundle.folder.parent / "runs").rglob("*") if path.is_file()]
    assert any(".cache" in path.parts for path in files)
    assert [path for path in files if canary.encode() in path.read_bytes()] == []


def test_what_is_secret_is_not_part_of_a_model_s_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_BASE", "https://me:hush@models.example/v1?key=hush")
    arguments = {
        "api_key": "hush", "aws_secret_access_key": "hush", "aws_access_key_id": "hush", "top_p": 0.5,
        "extra_headers": {"Cookie": "hush", "X-Auth-Token": "hush", "X-Version": "2"}, "max_tokens": 9,
    }  # fmt: skip
    identity = public_identity(LiteLLMModel("openai/gpt-4o", model_args=arguments).identity())
    assert "hush" not in json.dumps(identity)
    assert identity["server"]["OPENAI_BASE_URL"] == "https://models.example/v1"
    assert identity["model_args"] == {"top_p": 0.5, "max_tokens": 9, "extra_headers": {"X-Version": "2"}}


def test_what_a_model_is_told_is_part_of_its_identity() -> None:
    schema = {"type": "object", "properties": {"key": {"type": "string"}}}
    told = {
        "response_format": {"json_schema": {"schema": schema}},
        "stop": ["https://a.example/?x=1", "http://[x"],
    }
    assert public_identity({"model_args": told})["model_args"] == told


def test_several_may_read_write_and_clear_at_once(tmp_path: Path) -> None:
    told: list[str] = []

    def work(me: int) -> None:
        store = AnswerStore(tmp_path, warn=told.append)
        for number in range(200):
            key = f"{number % 20:064}"
            kept = store.get(key) or store.add(key, Completion({"role": "assistant", "content": key}))
            assert kept.message["content"] == key
            if me == 0 and number % 10 == 0:
                store.clear()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert told == []


def test_a_model_that_does_not_tell_what_it_is_is_not_cached(tmp_path: Path) -> None:
    told: list[str] = []
    model = InProcessModel(["One"])
    assert cached_models({"agent": model}, tmp_path, warn=told.append) == {"agent": model}
    assert "in-process" in told[0]
