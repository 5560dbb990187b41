"""Which program serves a model, how it is called, and what is said where there is none."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from model_files import PLAIN_TEMPLATE, TEMPLATE, model_folder

from reward_kit.agent.models.local.backends import (
    BACKENDS,
    LocalFile,
    check_tools,
    find_backend,
    tool_call_parser,
)
from reward_kit.errors import ModelSetupError

Install = Callable[..., Path]


def command(path: Path) -> list[str]:
    """The command line without the program's folder."""
    file = LocalFile.find(str(path))
    backend, program = find_backend(file)
    line = backend.command(program, file, Path("/link"), 4321)
    return [Path(line[0]).name, *line[1:]]


ADDRESS = ["--host", "127.0.0.1", "--port", "4321"]


@pytest.mark.parametrize(
    ("programs", "kind", "expected"),
    [
        (["vllm", "transformers"], "folder", "vllm serve {} --served-model-name local-model"),
        (["transformers", "llama-server"], "folder", "transformers serve /link"),
        (["vllm", "llama-server"], "gguf", "llama-server --model {} --alias local-model --jinja"),
    ],
)
def test_the_first_installed_program_for_its_kind_serves_a_model(
    folder: Path, gguf: Path, installed: Install, programs: list[str], kind: str, expected: str
) -> None:
    for program in programs:
        installed(program)
    path = folder if kind == "folder" else gguf
    assert command(path) == [*expected.format(path).split(), *ADDRESS]


def test_further_arguments_come_last(folder: Path, installed: Install, monkeypatch: Any) -> None:
    installed("vllm")
    monkeypatch.setenv("REWARD_KIT_LOCAL_MODEL_ARGS", "--max-model-len 8192 --dtype 'bfloat16'")
    assert command(folder)[-4:] == ["--max-model-len", "8192", "--dtype", "bfloat16"]
    monkeypatch.setenv("REWARD_KIT_LOCAL_MODEL_ARGS", "--dtype 'half")
    with pytest.raises(ModelSetupError, match=r"REWARD_KIT_LOCAL_MODEL_ARGS=.* cannot be split"):
        command(folder)


@pytest.mark.parametrize(
    ("template", "model_type", "parser"),
    [
        ("<tool_call>{{ call | tojson }}</tool_call>", "qwen2", "hermes"),
        ("<tool_call><function={{ name }}>", "qwen3_moe", "qwen3_xml"),
        ("<tool_call>{{ name }}<arg_key>", "glm4_moe", "glm45"),
        ("[TOOL_CALLS]", "llama", "mistral"),
        ("<|python_tag|>", "llama", "llama3_json"),
        ("{{ messages }}", "gpt_oss", "openai"),
        ("{{ messages }}", "llama", None),
    ],
)
def test_vllm_is_told_how_the_model_writes_tool_calls(
    tmp_path: Path, installed: Install, template: str, model_type: str, parser: str | None
) -> None:
    installed("vllm")
    folder = model_folder(tmp_path / "model", template=template, model_type=model_type)
    assert tool_call_parser(LocalFile.find(str(folder))) == parser
    told = ["--enable-auto-tool-choice", "--tool-call-parser", parser] if parser else []
    assert command(folder)[5:-4] == told


def fault_of(path: Path) -> str:
    with pytest.raises(ModelSetupError) as caught:
        find_backend(LocalFile.find(str(path)))
    return str(caught.value)


def test_nothing_installed_says_what_to_install(folder: Path, gguf: Path, installed: Install) -> None:
    assert fault_of(folder) == (
        "model tiny-chat: nothing that serves a folder of Hugging Face is installed. Install vllm (pip "
        'install vllm), or transformers (pip install "transformers[serving]" torch accelerate).'
    )
    said = fault_of(gguf)
    assert "nothing that serves a .gguf file is installed" in said
    assert 'llama.cpp, for instance: brew install llama.cpp), or llama-cpp-python (pip install "' in said


def test_one_program_can_be_asked_for(folder: Path, installed: Install, monkeypatch: Any) -> None:
    installed("vllm")
    installed("transformers")
    monkeypatch.setenv("REWARD_KIT_LOCAL_MODEL_SERVER", "transformers")
    assert command(folder)[0] == "transformers"
    monkeypatch.setenv("REWARD_KIT_LOCAL_MODEL_SERVER", "llama-server")
    assert "serves no such model. For a folder there are vllm, transformers." in fault_of(folder)


def test_a_model_that_cannot_chat_is_refused(tmp_path: Path, installed: Install, monkeypatch: Any) -> None:
    installed("vllm")
    folder = model_folder(tmp_path / "base", template=None)
    assert "there is no chat template in the folder" in fault_of(folder)
    monkeypatch.setenv("REWARD_KIT_LOCAL_MODEL_ARGS", "--chat-template chatml.jinja")
    assert command(folder)[-2:] == ["--chat-template", "chatml.jinja"]


GGUF = b"GGUF" + b"\0" * 20 + b"tokenizer.chat_template" + (8).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("program", "kind", "template", "refused"),
    [
        ("transformers", "folder", PLAIN_TEMPLATE, True),
        ("vllm", "folder", PLAIN_TEMPLATE, True),
        ("transformers", "folder", TEMPLATE, False),
        ("llama-server", "gguf", PLAIN_TEMPLATE, False),  # it writes the tools into the prompt itself
        ("llama-cpp-python", "gguf", PLAIN_TEMPLATE, True),
        ("llama-cpp-python", "gguf", TEMPLATE, False),
        ("llama-cpp-python", "gguf", None, False),
    ],
)
def test_a_model_that_is_never_shown_the_tools_is_refused_for_tool_calling(
    tmp_path: Path, program: str, kind: str, template: str | None, refused: bool
) -> None:
    if kind == "folder":
        path = model_folder(tmp_path / "model", template=template)
    else:
        path = tmp_path / "model.gguf"
        written = GGUF + len(template).to_bytes(8, "little") + template.encode() if template else b"GGUF"
        path.write_bytes(written + b"tools")
    backend = next(one for one in BACKENDS if one.name == program)
    with (
        pytest.raises(ModelSetupError, match=r"Use an agent .*: --agent react") if refused else nullcontext()
    ):
        check_tools(LocalFile.find(str(path)), backend)
