"""The programs that can serve a model, in the order in which they are tried, and their command lines."""

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

from reward_kit.agent.listening import LOOPBACK
from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.local_models.recognise import Kind, LocalFile

SERVER = "REWARD_KIT_LOCAL_MODEL_SERVER"
ARGUMENTS = "REWARD_KIT_LOCAL_MODEL_ARGS"
HOST = LOOPBACK
SERVED_NAME = "local-model"
"""What the server is to call the model; for well-known names LiteLLM has rules of its own."""
HELP_SECONDS = 120.0

TOOL_CALLS_IN_TEMPLATE = (
    ("<arg_key>", "glm45"),
    ("<function=", "qwen3_xml"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
)
"""How a chat template writes tool calls tells vLLM's parser for them; the first that is found decides."""
TOOL_CALLS_OF_TYPE = {
    "deepseek_v3": "deepseek_v3",
    "gpt_oss": "openai",
    "granite": "granite",
    "jamba": "jamba",
    "kimi_k2": "kimi_k2",
    "mistral": "mistral",
    "mistral3": "mistral",
}
"""vLLM's parser by ``model_type``, where the template does not say it."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a command line is made from.

    ``program`` is its beginning, ``link`` another path to the model, ``extra`` the person's own arguments.
    """

    program: list[str]
    file: LocalFile
    link: Path
    port: int
    extra: list[str]


@dataclass(frozen=True, slots=True)
class Backend:
    """A program that serves models of one ``kind``.

    ``find`` gives the beginning of its command line, None where it is not installed; ``arguments`` what
    follows. ``served`` is the model's name in requests, None: the path of the link. ``health`` is the
    address that answers 200 once the model is loaded. ``install`` says how to get it.
    """

    name: str
    kind: Kind
    install: str
    find: Callable[[], list[str] | None]
    arguments: Callable[[Start], list[str]]
    served: str | None = SERVED_NAME
    health: str = "/health"

    def command(self, program: list[str], file: LocalFile, link: Path, port: int) -> list[str]:
        """The whole command line; raises ``ModelSetupError`` for arguments that cannot be split.

        May take seconds: some programs are asked for their options first.
        """
        start = Start(program, file, link, port, extra_arguments())
        return [*program, *self.arguments(start), *start.extra]


def extra_arguments() -> list[str]:
    """A person's own arguments for the server."""
    text = os.environ.get(ARGUMENTS, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ModelSetupError(f"{ARGUMENTS}={text!r} cannot be split into arguments: {error}") from error


def find_backend(file: LocalFile) -> tuple[Backend, list[str]]:
    """The first program for such a file that is installed, or the one that the environment names.

    Raises ``ModelSetupError`` that says what to install where there is none.
    """
    place = f"model {file.name}"
    if sys.platform == "win32":
        raise ModelSetupError(
            "servers for local models are started on Linux and macOS only",
            place=place,
            remedy="Start one yourself and name it: --provider openai --model-arg api_base=http://...",
        )
    fitting = [backend for backend in BACKENDS if backend.kind == file.kind]
    wanted = os.environ.get(SERVER)
    if wanted:
        fitting = [backend for backend in fitting if backend.name == wanted]
        if not fitting:
            names = ", ".join(backend.name for backend in BACKENDS if backend.kind == file.kind)
            what = "a folder" if file.kind == "folder" else "a .gguf file"
            raise ModelSetupError(f"{SERVER}={wanted} serves no such model", place=place,
                                  remedy=f"For {what} there are {names}.")  # fmt: skip
    for backend in fitting:
        program = backend.find()
        if program is not None:
            _check_template(file, backend)
            return backend, program
    what = "a folder of Hugging Face" if file.kind == "folder" else "a .gguf file"
    remedies = ", or ".join(f"{backend.name} ({backend.install})" for backend in fitting)
    raise ModelSetupError(
        f"nothing that serves {what} is installed", place=place, remedy=f"Install {remedies}."
    )


def _check_template(file: LocalFile, backend: Backend) -> None:
    if file.needs_chat_template and not _given("--chat-template", extra_arguments()):
        remedy = "Take a model that was trained to converse (its name often ends with Instruct or Chat)"
        if backend.name == "vllm":
            remedy += f', or name a template: {ARGUMENTS}="--chat-template FILE"'
        raise ModelSetupError(
            "there is no chat template in the folder, so no conversation can be written for it",
            place=f"model {file.name}",
            remedy=f"{remedy}.",
        )


def tool_call_parser(file: LocalFile) -> str | None:
    """The parser that vLLM needs to see tool calls in what this model writes; None: not known."""
    template = file.chat_template or ""
    for sign, parser in TOOL_CALLS_IN_TEMPLATE:
        if sign in template:
            return parser
    return TOOL_CALLS_OF_TYPE.get(file.model_type)


def _program(name: str) -> Callable[[], list[str] | None]:
    """Looks beside this Python first: an environment need not be activated for its programs to be found."""

    def find() -> list[str] | None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        found = shutil.which(name, path=path)
        return [found] if found else None

    return find


def _llama_cpp_python() -> list[str] | None:
    if importlib.util.find_spec("llama_cpp") is None:
        return None
    return [sys.executable, "-m", "llama_cpp.server"]


def _given(flag: str, arguments: list[str]) -> bool:
    return any(argument.split("=")[0] == flag for argument in arguments)


def _vllm(start: Start) -> list[str]:
    parser = None if _given("--tool-call-parser", start.extra) else tool_call_parser(start.file)
    tools = ["--enable-auto-tool-choice", "--tool-call-parser", parser] if parser else []
    return ["serve", str(start.file.path), "--served-model-name", SERVED_NAME, *_address(start), *tools]


def _transformers(start: Start) -> list[str]:
    """Earlier releases take the model as an option, later ones as an argument; both load it at once then.

    The link, since ``@`` and ``:`` in a path have a meaning of their own there.
    """
    model = (
        ["--force-model", str(start.link)] if "--force-model" in _help(start.program) else [str(start.link)]
    )
    return ["serve", *model, *_address(start)]


def _help(program: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the program that was found
            [*program, "serve", "--help"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=HELP_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""  # what is wrong shows when it is started
    return done.stdout


def _llama_server(start: Start) -> list[str]:
    """``--jinja``: without it, releases of 2025 leave the tools out of the prompt."""
    return ["--model", str(start.file.path), "--alias", SERVED_NAME, *_address(start), "--jinja"]


def _llama_cpp_arguments(start: Start) -> list[str]:
    """``--n_ctx 0``: the context that the model was trained with, not the 2048 tokens of the default."""
    context = [] if _given("--n_ctx", start.extra) else ["--n_ctx", "0"]
    return ["--model", str(start.file.path), "--model_alias", SERVED_NAME, *_address(start), *context]


def _address(start: Start) -> list[str]:
    return ["--host", HOST, "--port", str(start.port)]


BACKENDS = (
    Backend("vllm", "folder", "pip install vllm", _program("vllm"), _vllm),
    Backend(
        "transformers",
        "folder",
        'pip install "transformers[serving]" torch accelerate',
        _program("transformers"),
        _transformers,
        served=None,
    ),
    Backend(
        "llama-server",
        "gguf",
        "llama.cpp, for instance: brew install llama.cpp",
        _program("llama-server"),
        _llama_server,
    ),
    Backend(
        "llama-cpp-python",
        "gguf",
        'pip install "llama-cpp-python[server]"',
        _llama_cpp_python,
        _llama_cpp_arguments,
        health="/v1/models",
    ),
)
