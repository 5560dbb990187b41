"""Programs that serve local models, in order of preference, and their command lines."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.base.network import LOOPBACK
from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from reward_kit.agent.models.local.recognise import Kind, LocalFile

SERVER = "REWARD_KIT_LOCAL_MODEL_SERVER"
ARGUMENTS = "REWARD_KIT_LOCAL_MODEL_ARGS"
SERVED_NAME = "local-model"
"""The model's name in requests; LiteLLM has special rules for well-known names."""

TOOL_CALLS_IN_TEMPLATE = (
    ("<arg_key>", "glm45"),
    ("<function=", "qwen3_xml"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
)
"""vLLM's tool-call parsers by a mark in the chat template; the first match decides."""
TOOL_CALLS_OF_TYPE = {
    "deepseek_v3": "deepseek_v3",
    "gpt_oss": "openai",
    "granite": "granite",
    "jamba": "jamba",
    "kimi_k2": "kimi_k2",
    "mistral": "mistral",
    "mistral3": "mistral",
}
"""vLLM's tool-call parsers by ``model_type``, if the template does not decide."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A program that serves models of one ``kind``.

    ``served`` is the model's name in requests, None for the path of the link. ``health`` answers 200 once
    the model is loaded. ``install`` says how to install it.
    """

    name: str
    kind: Kind
    install: str
    served: str | None = SERVED_NAME
    health: str = "/health"

    def find(self) -> list[str] | None:
        """Return the start of the command line, or None if the program is not installed."""
        if self.name == "llama-cpp-python":
            found = importlib.util.find_spec("llama_cpp")
            return [sys.executable, "-m", "llama_cpp.server"] if found else None
        # first beside this Python, since its environment need not be activated
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        program = shutil.which(self.name, path=path)
        return [program] if program else None

    def command(self, program: list[str], file: LocalFile, link: Path, port: int) -> list[str]:
        """Build the command line; ``link`` is a symbolic link to the model.

        It may take seconds, since some programs are asked for their options. Raises ``ModelSetupError`` if
        the user's extra arguments cannot be split.
        """
        extra = extra_arguments()
        if self.name == "vllm":
            arguments = ["serve", str(file.path), "--served-model-name", SERVED_NAME]
            parser = None if _given("--tool-call-parser", extra) else tool_call_parser(file)
            if parser:
                arguments += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
        elif self.name == "transformers":
            # earlier releases take the model as an option; ``@`` and ``:`` in its path have a meaning there
            option = ["--force-model"] if _has_option("--force-model", [*program, "serve"]) else []
            arguments = ["serve", *option, str(link)]
        elif self.name == "llama-server":
            # without --jinja, releases of 2025 omit the tools from the prompt
            arguments = ["--model", str(file.path), "--alias", SERVED_NAME, "--jinja"]
        else:
            arguments = ["--model", str(file.path), "--model_alias", SERVED_NAME]
            if not _given("--n_ctx", extra):
                arguments += ["--n_ctx", "0"]  # the model's trained context, instead of 2048 tokens
        return [*program, *arguments, "--host", LOOPBACK, "--port", str(port), *extra]


BACKENDS = (
    Backend("vllm", "folder", "pip install vllm"),
    Backend("transformers", "folder", 'pip install "transformers[serving]" torch accelerate', served=None),
    Backend("llama-server", "gguf", "llama.cpp, for instance: brew install llama.cpp"),
    Backend("llama-cpp-python", "gguf", 'pip install "llama-cpp-python[server]"', health="/v1/models"),
)


def extra_arguments() -> list[str]:
    """Return the user's own arguments for the server."""
    text = os.environ.get(ARGUMENTS, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ModelSetupError(f"{ARGUMENTS}={text!r} cannot be split into arguments: {error}") from error


def find_backend(file: LocalFile) -> tuple[Backend, list[str]]:
    """Return the first installed program for ``file``, or the one that the environment names.

    Raises ``ModelSetupError`` that says what to install.
    """
    place = f"model {file.name}"
    if sys.platform == "win32":
        raise ModelSetupError(
            "servers for local models are started on Linux and macOS only",
            place=place,
            remedy="Start one yourself and name it: --provider openai --model-arg api_base=http://...",
        )
    fitting = {backend.name: backend for backend in BACKENDS if backend.kind == file.kind}
    kind = "a folder" if file.kind == "folder" else "a .gguf file"
    wanted = os.environ.get(SERVER)
    if wanted and wanted not in fitting:
        remedy = f"For {kind} there are {', '.join(fitting)}."
        raise ModelSetupError(f"{SERVER}={wanted} serves no such model", place=place, remedy=remedy)
    candidates = [fitting[wanted]] if wanted else list(fitting.values())
    for backend in candidates:
        if program := backend.find():
            _check_template(file, backend)
            return backend, program
    raise ModelSetupError(
        f"nothing that serves {kind}{' of Hugging Face' if file.kind == 'folder' else ''} is installed",
        place=place,
        remedy=f"Install {', or '.join(f'{backend.name} ({backend.install})' for backend in candidates)}.",
    )


def _check_template(file: LocalFile, backend: Backend) -> None:
    if file.needs_chat_template and not _given("--chat-template", extra_arguments()):
        remedy = "Use a model that was trained to converse (its name often ends with Instruct or Chat)"
        if backend.name == "vllm":
            remedy += f', or name a template: {ARGUMENTS}="--chat-template FILE"'
        raise ModelSetupError(
            "there is no chat template in the folder, so the model cannot converse",
            place=f"model {file.name}",
            remedy=f"{remedy}.",
        )


def check_tools(file: LocalFile, backend: Backend) -> None:
    """Raise ``ModelSetupError`` if the model would never be shown the tools of ``tool-calling``.

    llama-server writes tools into the prompt itself, and Mistral's tokenizers do without a template.
    """
    shown = backend.name == "llama-server" or file.has_own_tokenizer or not file.ignores_tools
    if not shown and not _given("--chat-template", extra_arguments()):
        raise ModelSetupError(
            "the chat template ignores tools, so the agent tool-calling cannot call any",
            place=f"model {file.name}",
            remedy="Use an agent that writes actions as text: --agent react.",
        )


def tool_call_parser(file: LocalFile) -> str | None:
    """Return vLLM's parser for the tool calls of this model, if known."""
    template = file.chat_template or ""
    by_template = (parser for mark, parser in TOOL_CALLS_IN_TEMPLATE if mark in template)
    return next(by_template, TOOL_CALLS_OF_TYPE.get(file.model_type))


def _given(flag: str, arguments: list[str]) -> bool:
    return any(argument.split("=")[0] == flag for argument in arguments)


def _has_option(option: str, command: list[str]) -> bool:
    try:
        shown = subprocess.run(  # noqa: S603 - an installed program
            [*command, "--help"], stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False  # starting it will show the fault
    return option.encode() in shown.stdout + shown.stderr
