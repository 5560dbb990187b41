"""Local models, found by their paths; the programs that serve them, and their command lines."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.base.network import LOOPBACK
from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["folder", "gguf"]

GGUF_TEMPLATE = b"tokenizer.chat_template"
LONGEST_METADATA = 2**26
"""Bytes at the start of a GGUF file in which its chat template is looked for."""
POINTER = b"version https://git-lfs"
"""Start of a Git LFS pointer, which stands for a file that was not downloaded."""
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")


def names_local_model(
    name: str, *, provider: str | None = None, model_args: Mapping[str, Any] | None = None
) -> bool:
    """Return True if ``--model NAME`` is a local path.

    Anything that starts like a path is one. A bare name is one only if such a model exists, since
    ``org/name`` is a LiteLLM name. With a provider or a server's address it is never a local path.
    """
    if provider or (model_args or {}).keys() & {"api_base", "base_url"}:
        return False
    if name in ("~", ".", "..") or name.startswith(("/", "./", "../", "~/")):
        return True
    path = Path(name)
    return (path / "config.json").is_file() or (path.suffix.lower() == ".gguf" and path.is_file())


@dataclass(frozen=True)
class LocalFile:
    """A model on this machine: ``path`` is absolute."""

    path: Path
    kind: Kind

    @classmethod
    def find(cls, name: str) -> LocalFile:
        """Return the model at path ``name``. Raises ``ModelSetupError`` if it cannot be served."""
        path = Path(os.path.normpath(Path(name).expanduser().absolute()))
        if not path.exists():
            fault = "there is no such folder or file"
            remedy: str | None = "A model of a provider is named provider/model, such as openai/gpt-4o-mini."
        else:
            fault, remedy = _folder_fault(path) if path.is_dir() else _gguf_fault(path)
        if fault:
            raise ModelSetupError(fault, place=f"model {name}", remedy=remedy)
        return cls(path, "folder" if path.is_dir() else "gguf")

    @cached_property
    def name(self) -> str:
        """The name in results: the last part of the path, or the name in a hub's cache."""
        cache = self.path.parent.parent.name
        if self.path.parent.name == "snapshots" and cache.startswith("models--"):
            return cache.removeprefix("models--").replace("--", "/")
        return self.path.name

    @cached_property
    def model_type(self) -> str:
        """The architecture in ``config.json``, empty for other files."""
        return str(read_json(self.path / "config.json").get("model_type", ""))

    @cached_property
    def chat_template(self) -> str | None:
        """All chat templates of this model, concatenated; None without any."""
        texts = [
            file.read_text(encoding="utf-8", errors="replace")
            for pattern in ("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja")
            for file in sorted(self.path.glob(pattern))
        ]
        inline = read_json(self.path / "tokenizer_config.json").get("chat_template")
        if inline:
            texts.append(inline if isinstance(inline, str) else json.dumps(inline, ensure_ascii=False))
        return "\n".join(texts) or None

    @cached_property
    def ignores_tools(self) -> bool:
        """True if no chat template of the model uses the variable ``tools``; that of a GGUF file is in it."""
        text = self.chat_template
        if self.kind == "gguf":
            with self.path.open("rb") as file:
                start = file.read(LONGEST_METADATA)
            found = start.find(GGUF_TEMPLATE)
            if found < 0:
                return False
            place = found + len(GGUF_TEMPLATE) + 4  # behind the type of the value: its length and its bytes
            length = int.from_bytes(start[place : place + 8], "little")
            text = start[place + 8 : place + 8 + length].decode(errors="replace")
        return text is not None and not re.search(r"\btools\b", text)

    @property
    def needs_chat_template(self) -> bool:
        """True if it lacks a chat template and its tokenizer needs one."""
        return self.kind == "folder" and self.chat_template is None and not self.has_own_tokenizer

    @property
    def has_own_tokenizer(self) -> bool:
        """True for Mistral's tokenizers, which need no chat template."""
        return any(any(self.path.glob(pattern)) for pattern in ("tekken.json", "tokenizer.model.v*"))


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file; empty without one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _folder_fault(path: Path) -> tuple[str, str | None]:
    """Return the fault of a folder (empty: none), and the fix."""
    if (path / "config.json").is_file():
        if not read_json(path / "config.json"):
            return "config.json is not a JSON object", None
        if not any(any(path.glob(pattern)) for pattern in WEIGHTS):
            return f"the folder holds no weights ({', '.join(WEIGHTS)})", "Was the download complete?"
        return "", None
    if (path / "adapter_config.json").is_file():
        remedy = "Merge it into its base model and save that (PEFT: merge_and_unload)."
        return "the folder holds an adapter, not a whole model", remedy
    gguf = min(path.glob("*.gguf"), default=None)
    remedy = "Name the folder that save_pretrained or a download wrote."
    if gguf:
        remedy = f"Name the file itself: {gguf}."
    return "the folder has no config.json, so it is not a Hugging Face model", remedy


def _gguf_fault(path: Path) -> tuple[str, str | None]:
    if path.suffix.lower() != ".gguf":
        return "the file is not a .gguf file", "Name a .gguf file, or the folder that holds config.json."
    try:
        with path.open("rb") as file:
            start = file.read(len(POINTER))
    except OSError as error:
        return f"the file cannot be read: {error.strerror}", None
    if start.startswith(b"GGUF"):
        return "", None
    pointer = "It is a Git LFS pointer: download the file with git lfs pull." if start == POINTER else None
    return "the file does not begin like a GGUF file", pointer


# -- programs

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
