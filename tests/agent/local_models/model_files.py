"""Files that look like a model, as far as that is looked at before a server reads them."""

import json
from pathlib import Path

PLAIN_TEMPLATE = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
TEMPLATE = "{{ tools | tojson }}" + PLAIN_TEMPLATE


def model_folder(folder: Path, *, template: str | None = TEMPLATE, model_type: str = "llama") -> Path:
    """A folder that looks like a model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template} if template else {}))
    return folder
