"""The life of a model's server: it starts, is waited for, is shared, and ends, whatever it does itself."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_server import all_gone, starts
from stub_server import StubServer

from reward_kit.agent.base.types import Completion
from reward_kit.agent.models.local.backends import LocalFile
from reward_kit.agent.models.local.model import LocalModel
from reward_kit.agent.models.local.server import ModelServer, shown_on
from reward_kit.errors import ModelSetupError

Install = Callable[..., Path]
HELLO = [{"role": "user", "content": "Hi"}]


def model_at(path: Path, **options: Any) -> LocalModel:
    return LocalModel(ModelServer(LocalFile.find(str(path))), **options)


async def ask(path: Path, **options: Any) -> Completion:
    """Start, ask once, stop."""
    model = model_at(path, **options)
    try:
        await model.open()
        return await model.complete(HELLO)
    finally:
        await model.close()


def kept_logs(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("reward-kit-model-*"))


async def test_a_model_answers_and_its_server_ends(folder: Path, installed: Install, tmp_path: Path) -> None:
    record = installed("vllm", delay=0.5, child=True)
    answer = await ask(folder)
    assert answer.message["content"] == "Hello."
    assert all_gone(record)
    assert len(starts(record)) == 1
    assert not kept_logs(tmp_path)


async def test_local_answers_are_free_and_named_after_the_folder(folder: Path, installed: Install) -> None:
    installed("vllm")
    answer = await ask(folder)
    assert answer.model == "tiny-chat"
    assert (answer.usage.calls, answer.usage.input_tokens, answer.usage.output_tokens) == (1, 100, 10)
    assert (answer.usage.cost, answer.usage.unpriced_calls) == (0.0, 0)


async def test_a_server_that_ends_at_once_is_quoted(folder: Path, installed: Install, tmp_path: Path) -> None:
    record = installed("vllm", dies="ValueError: no kernel image is available for sk-abcdefghij")
    with pytest.raises(ModelSetupError) as caught:
        await ask(folder)
    said = str(caught.value)
    (log,) = kept_logs(tmp_path)
    assert "model tiny-chat (vllm): its server has exited (exit code 1). The last lines of" in said
    last_words = "100%\n  ValueError: no kernel image is available for [hidden]"
    assert said.endswith(f"{log}/server.log:\n  {last_words}")
    assert all_gone(record)


async def test_a_server_that_is_never_ready_ends(folder: Path, installed: Install, monkeypatch: Any) -> None:
    record = installed("vllm", never=True, child=True)
    monkeypatch.setenv("REWARD_KIT_LOCAL_MODEL_TIMEOUT", "1.5")
    with pytest.raises(ModelSetupError) as caught:
        await ask(folder)
    said = "its server is not ready after 1.5 s (more time: REWARD_KIT_LOCAL_MODEL_TIMEOUT"
    assert said in str(caught.value)
    assert len(starts(record)) == 1
    assert all_gone(record)


async def test_a_server_that_ignores_being_asked_to_end_is_killed(folder: Path, installed: Install) -> None:
    record = installed("vllm", stubborn=True)
    await ask(folder)
    assert all_gone(record)


async def test_a_server_that_cannot_answer_is_found_out_at_once(folder: Path, installed: Install) -> None:
    record = installed("vllm", answers=[{"status": 500, "error": "template wants another role"}])
    with pytest.raises(ModelSetupError) as caught:
        await ask(folder)
    assert "its server cannot answer: HTTP 500: " in str(caught.value)
    assert "template wants another role" in str(caught.value)
    assert "(log: " in str(caught.value)
    assert all_gone(record)


async def test_vllm_without_a_parser_for_tool_calls_is_explained(folder: Path, installed: Install) -> None:
    fault = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    refusal = {"status": 400, "error": fault}
    record = installed("vllm", answers=["Hello.", refusal])
    model = model_at(folder)
    await model.open()
    try:
        conversation = [*HELLO, {"role": "assistant", "content": "Hello."}, *HELLO]
        # The stub counts the answers of a conversation that it has seen the beginning of.
        await model.complete(HELLO)
        with pytest.raises(ModelSetupError, match="--tool-call-parser NAME"):
            await model.complete(conversation)
    finally:
        await model.close()
    assert all_gone(record)


async def test_no_other_server_is_asked(folder: Path, installed: Install, stub_llm: StubServer) -> None:
    installed("vllm")
    await ask(folder)
    assert not stub_llm.requests, "the environment's server is another one"


async def test_a_tool_call_as_text_is_pointed_out_once(folder: Path, installed: Install, capsys: Any) -> None:
    installed("vllm", answers=['<tool_call>\n{"name": "ping"}\n</tool_call>'])
    tools = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}]
    model = model_at(folder)
    with shown_on(sys.stderr):
        await model.open()
        try:
            await model.complete(HELLO)
            assert "warning" not in capsys.readouterr().err, "who has no tools may write what it likes"
            await model.complete(HELLO, tools=tools)
            await model.complete(HELLO, tools=tools)
        finally:
            await model.close()
    said = capsys.readouterr().err
    assert said.count("warning: an answer of tiny-chat contains <tool_call> as text") == 1


async def test_a_vain_temperature_is_pointed_out(folder: Path, installed: Install, capsys: Any) -> None:
    installed("transformers")
    with shown_on(sys.stderr):
        await ask(folder, temperature=0.7)
        assert "ignores the temperature" in capsys.readouterr().err
        (folder / "generation_config.json").write_text('{"do_sample": true}')
        await ask(folder, temperature=0.7)
        assert "warning" not in capsys.readouterr().err


async def test_a_proxy_is_not_asked(folder: Path, installed: Install, monkeypatch: Any) -> None:
    installed("vllm")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "intranet")
    monkeypatch.setenv("no_proxy", "intranet")
    assert (await ask(folder)).message["content"] == "Hello."
    assert os.environ["NO_PROXY"].startswith("intranet,127.0.0.1")


def test_other_weights_or_settings_differ(folder: Path, installed: Install, monkeypatch: Any) -> None:
    installed("vllm")
    installed("transformers")
    first = model_at(folder).identity()
    assert model_at(folder).identity() == first
    assert model_at(folder, temperature=0.5).identity() != first
    assert model_at(folder, model_args={"top_p": 0.9}).identity() != first
    for name, value in (("ARGS", "--seed 3"), ("SERVER", "transformers")):
        with monkeypatch.context() as other:
            other.setenv(f"REWARD_KIT_LOCAL_MODEL_{name}", value)
            assert model_at(folder).identity() != first
    (folder / "model.safetensors").write_bytes(b"other weights")
    assert model_at(folder).identity() != first
