"""Token ids and log-probabilities that a server returns: kept in the trace, exported for training."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import run_command
from flight_bundle import Bundle
from stub_server import StubServer
from vllm_stub import ids_of, prompt_of, vllm, written

from reward_kit.agent import Completion, Tokens, evaluate, export, load_rollout
from reward_kit.agent.after.export import TOKEN_COLUMNS

ASKED = {"return_token_ids": True}


def book(request: dict[str, Any], place: int) -> Any:
    if place == 0:
        return "create_booking", {"flight_id": 1, "passenger": "Alice"}
    if place == 1:
        return "pay_booking", {"booking_id": json.loads(request["messages"][-1]["content"])["booking_id"]}
    return "Booked and paid. Anything else?"


def played(bundle: Bundle, stub_llm: StubServer, choose: Any = book, **options: Any) -> Any:
    stub_llm.script("gpt-4o-mini", vllm(choose))
    given = {"model": "gpt-4o-mini", "user": "none", "model_args": ASKED, "n_rollouts": 1, **options}
    return evaluate(str(bundle.dataset), eval_id="first", **given)


def test_each_model_call_is_a_line(bundle: Bundle, stub_llm: StubServer) -> None:
    played(bundle, stub_llm)
    requests = stub_llm.requests_for("gpt-4o-mini")
    assert all(one["return_token_ids"] is one["logprobs"] is True for one in requests)
    lines = list(export("first", format="tokens"))
    assert len(lines) == len(requests) == 3
    record = load_rollout("first flight.booking.001#1")
    for number, (line, request) in enumerate(zip(lines, requests, strict=True)):
        assert list(line) == list(TOKEN_COLUMNS)
        prompt, completion = line["prompt_token_ids"], line["completion_token_ids"]
        answer = line["response"]["choices"][0]["message"]
        assert prompt == ids_of(prompt_of(request)) == ids_of(prompt_of(line["request"]))
        assert completion == ids_of(written(answer))
        assert line["per_token_logps"] == [-token / 8192 for token in completion]
        assert line["loss_mask"] == [0] * len(prompt) + [1] * len(completion)
        assert line["request"]["tools"] == request["tools"]
        assert line["node_id"] == f"{record.id}/{number}"
        about = {"eval_id": "first", "row_id": record.row_id, "rollout": 0, "model": "gpt-4o-mini"}
        assert line["metadata"] == {**about, "reward": 1.0, "reason": "Task completed successfully"}


def test_a_prompt_that_goes_on_is_stored_once(bundle: Bundle, stub_llm: StubServer) -> None:
    played(bundle, stub_llm)
    kept = [call.tokens for call in load_rollout("first flight.booking.001#1").model_calls]
    assert [one.shared > 0 for one in kept if one] == [False, True, True]
    last = export("first", format="tokens")
    (*_, line) = last
    stored = sum(len(one.prompt) + len(one.completion) for one in kept if one)
    assert stored == len(line["prompt_token_ids"]) + len(line["completion_token_ids"])


def test_a_prompt_that_was_rewritten_is_kept_as_it_was(bundle: Bundle, stub_llm: StubServer) -> None:
    rendered = iter(["<a>", "<a>b<c>", "<b>", "<b>"])

    class Model:
        name = "rewriting"

        async def complete(self, messages: Any, **_: Any) -> Completion:
            prompt = next(rendered)
            message = {"role": "assistant", "content": None, "tool_calls": []}
            if prompt != "<b>":
                function = {"name": "search_flights", "arguments": "{}"}
                message["tool_calls"] = [{"id": "c", "type": "function", "function": function}]
            else:
                message["content"] = "Done."
            return Completion(message, tokens=Tokens(ids_of(prompt), ids_of("b"), [-0.5]))

    evaluate(str(bundle.dataset), models={"agent": Model()}, user="none", eval_id="first", n_rollouts=1)
    lines = list(export("first", format="tokens"))
    assert [line["prompt_token_ids"] for line in lines] == [ids_of(one) for one in ("<a>", "<a>b<c>", "<b>")]


def test_the_cache_keeps_tokens(bundle: Bundle, stub_llm: StubServer) -> None:
    played(bundle, stub_llm, cache=True)
    first = [line["prompt_token_ids"] for line in export("first", format="tokens")]
    asked = len(stub_llm.requests)
    given: dict[str, Any] = {"model": "gpt-4o-mini", "user": "none", "model_args": ASKED, "n_rollouts": 1}
    evaluate(str(bundle.dataset), eval_id="again", cache=True, **given)
    assert len(stub_llm.requests) == asked
    assert [line["prompt_token_ids"] for line in export("again", format="tokens")] == first


def test_a_rollout_that_the_user_spoilt_has_no_reward(bundle: Bundle, stub_llm: StubServer) -> None:
    def leaves(rollout: Any) -> str:
        return "###STOP###" if rollout.lines else "A seat, please."

    played(bundle, stub_llm, lambda *_: "Which flight?", user=leaves)
    (line,) = export("first", format="tokens")
    assert line["metadata"]["reward"] is None
    assert line["metadata"]["reason"].startswith("user_error: stopped_early")
    assert sum(line["loss_mask"]) == len(line["completion_token_ids"])


def test_an_answer_that_was_asked_for_again(bundle: Bundle, stub_llm: StubServer) -> None:
    def answer(request: dict[str, Any], _: int) -> str:
        return "Sorry." if "empty" in str(request["messages"][-1]["content"]) else ""

    played(bundle, stub_llm, answer)
    first, second = export("first", format="tokens")
    assert first["request"]["messages"]
    assert [first["response"], second["request"], second["response"]] == [{}, {}, {}]
    assert second["completion_token_ids"] == ids_of("Sorry.</>")


@pytest.mark.parametrize("asked", [{}, {"return_token_ids": True, "logprobs": False}])
def test_rollouts_without_tokens_are_counted(
    bundle: Bundle, stub_llm: StubServer, tmp_path: Path, asked: dict[str, Any]
) -> None:
    played(bundle, stub_llm, model_args=asked, n_rollouts=2)
    Path("tokens.jsonl").write_text("an earlier export")
    done = run_command("export", "first", "--format", "tokens", "--out", "tokens.jsonl")
    assert done.code == 1
    assert Path("tokens.jsonl").read_text() == "an earlier export"
    assert "0 rollouts of 1 row exported (nothing was written to tokens.jsonl); left out: 2" in done.err
    assert "2 without the tokens of all their model calls" in done.err
    assert "--model-arg return_token_ids=true" in done.err
    assert '"tokens":null' in load_rollout("first flight.booking.001#1").encoded() or asked


def test_the_command_counts_calls(bundle: Bundle, stub_llm: StubServer) -> None:
    played(bundle, stub_llm, n_rollouts=2)
    done = run_command("export", "first", "--format", "tokens", "--out", "tokens.jsonl")
    assert done.code == 0
    assert "6 model calls of 2 rollouts of 1 row exported to tokens.jsonl" in done.err
    lines = [json.loads(line) for line in Path("tokens.jsonl").read_text().splitlines()]
    assert len({line["node_id"] for line in lines}) == 6


@pytest.mark.parametrize(
    "tokens", [Tokens([1], [2], [float("nan")]), Tokens([-1], [2], [-0.1]), Tokens([1.5], [2], [-0.1]), [1]]
)
def test_tokens_of_ones_own_model_are_checked(bundle: Bundle, tokens: Any) -> None:
    class Model:
        name = "mine"

        async def complete(self, messages: Any, **_: Any) -> Completion:
            return Completion({"role": "assistant", "content": "Hello"}, tokens=tokens)

    result = evaluate(
        str(bundle.dataset), models={"agent": Model()}, user="none", eval_id="first", n_rollouts=1, retries=0
    )
    assert "no Tokens of lists of whole and finite numbers" in str(result.outcomes[0].stop_detail)
