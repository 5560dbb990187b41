"""Recognise paths of local models, and check them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["folder", "gguf"]

GGUF_MAGIC = b"GGUF"
GGUF_TEMPLATE = b"tokenizer.chat_template"
LONGEST_METADATA = 2**26
"""Bytes at the start of a GGUF file in which its chat template is looked for."""
POINTER = b"version https://git-lfs"
"""Start of a Git LFS pointer, which stands for a file that was not downloaded."""
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
OWN_TOKENIZERS = ("tekken.json", "tokenizer.model.v*")


def names_local_model(
    name: str, *, provider: str | None = None, model_args: Mapping[str, Any] | None = None
) -> bool:
    """Return whether ``--model NAME`` is a local path.

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
        return any(any(self.path.glob(pattern)) for pattern in OWN_TOKENIZERS)


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file; empty without one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _folder_fault(path: Path) -> tuple[str, str | None]:
    """Return what is wrong with a folder (empty: nothing), and the fix."""
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
    if start.startswith(GGUF_MAGIC):
        return "", None
    pointer = "It is a Git LFS pointer: download the file with git lfs pull." if start == POINTER else None
    return "the file does not begin like a GGUF file", pointer
