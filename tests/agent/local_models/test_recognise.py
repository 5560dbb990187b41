"""Which names are paths to models, and what is wrong with the paths that are not."""

import json
from pathlib import Path

import pytest

from reward_kit.agent.models.local.backends import LocalFile, names_local_model
from reward_kit.errors import ModelSetupError


def test_what_begins_like_a_path_is_one_whether_it_exists_or_not() -> None:
    for name in ("/no/such/model", "./model", "../model", "~/model", "~", ".", "..", "/x/model.gguf"):
        assert names_local_model(name), name
    for name in ("gpt-4o", "openai/gpt-4o", "Qwen/Qwen3-8B", "ollama/model.gguf", "~user"):
        assert not names_local_model(name), name


@pytest.mark.usefixtures("folder", "gguf")
def test_a_relative_path_counts_if_there_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert names_local_model("models/tiny-chat")
    assert names_local_model("tiny-q4.gguf")
    (tmp_path / "gpt-4o").mkdir()
    assert not names_local_model("gpt-4o"), "a folder with results is no model"


def test_with_a_provider_or_an_address_a_path_is_the_name_at_that_server(folder: Path) -> None:
    assert not names_local_model(str(folder), provider="openai")
    assert not names_local_model(str(folder), model_args={"api_base": "http://127.0.0.1:8000/v1"})
    assert names_local_model(str(folder), model_args={"top_p": 0.9})


def test_a_snapshot_of_the_hubs_cache_has_the_models_name(folder: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / "b968826d"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    assert LocalFile.find(str(snapshot)).name == "Qwen/Qwen3-8B"


def fault_of(path: Path) -> str:
    with pytest.raises(ModelSetupError) as caught:
        LocalFile.find(str(path))
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_folder_without_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "has no config.json" in fault_of(folder)
    (folder / "q8.gguf").write_bytes(b"GGUF")
    assert f"Name the file itself: {folder / 'q8.gguf'}" in fault_of(folder)
    (folder / "adapter_config.json").write_text("{}")
    assert "an adapter, not a whole model" in fault_of(folder)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "the folder holds no weights" in fault_of(folder)


def test_a_gguf_file_is_known_by_how_it_begins(gguf: Path) -> None:
    gguf.write_bytes(b"PK\x03\x04")
    assert "does not begin like a GGUF file" in fault_of(gguf)
    gguf.write_bytes(b"")
    assert "does not begin like a GGUF file" in fault_of(gguf)
    gguf.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 4\n")
    assert "git lfs pull" in fault_of(gguf)


def test_templates_are_found_wherever_they_are_kept(folder: Path) -> None:
    assert not LocalFile.find(str(folder)).needs_chat_template
    (folder / "tokenizer_config.json").write_text("{}")
    assert LocalFile.find(str(folder)).needs_chat_template
    for name in ("chat_template.jinja", "chat_template.json", "tekken.json"):
        (folder / name).write_text("{}")
        assert not LocalFile.find(str(folder)).needs_chat_template, name
        (folder / name).unlink()
    named = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "<tool_call>"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert "<tool_call>" in str(LocalFile.find(str(folder)).chat_template)
