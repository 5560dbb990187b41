"""Intent models of random weights, so that a workflow runs without training.

Runs in FastWorkflow's environment::

    python made_up_models.py WORKFLOW_FOLDER

They understand nothing. With a threshold that no confidence reaches, every command whose name is not written
out is ambiguous. That is enough for the machinery around them, which is what the tests here are about.
"""

from __future__ import annotations

import json
import pickle
import string
import sys
from pathlib import Path

import fastworkflow
import torch
from sklearn.preprocessing import LabelEncoder
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    DistilBertConfig,
    DistilBertForSequenceClassification,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [*string.ascii_lowercase, *string.digits]
THRESHOLDS = {"threshold": 0.0, "tiny_ambiguous_threshold": 1.1, "large_ambiguous_threshold": 1.1}


def main() -> None:
    workflow = str(Path(sys.argv[1]).resolve())
    fastworkflow.init(env_vars={})
    labels = _labels(workflow)
    folder = Path(workflow, "___command_info", "global")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "label_encoder.pkl").open("wb") as file:
        pickle.dump(LabelEncoder().fit(labels), file)
    torch.manual_seed(0)
    words = [*SPECIAL, *LETTERS, *string.punctuation, *(f"##{letter}" for letter in LETTERS)]
    small = {"vocab_size": len(words), "num_labels": len(labels)}
    tiny = BertForSequenceClassification(
        BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, **small)
    )
    large = DistilBertForSequenceClassification(
        DistilBertConfig(dim=32, n_layers=1, n_heads=2, hidden_dim=64, **small)
    )
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("\n".join(words))
    for name, model in (("tinymodel.pth", tiny), ("largemodel.pth", large)):
        model.save_pretrained(folder / name)
        BertTokenizerFast(vocab_file=str(vocabulary), do_lower_case=True).save_pretrained(folder / name)
    for name, value in THRESHOLDS.items():
        (folder / f"{name}.json").write_text(json.dumps({"confidence_threshold": value}))


def _labels(workflow: str) -> list[str]:
    """The commands of the workflow, after the files that describe them are built as training would."""
    from fastworkflow.command_context_model import CommandContextModel
    from fastworkflow.command_directory import CommandDirectory
    from fastworkflow.command_routing import RoutingDefinition, RoutingRegistry
    from fastworkflow.model_pipeline_training import trained_command_labels

    CommandContextModel.load(workflow)
    RoutingDefinition.build(workflow)
    CommandDirectory.load(workflow).save()
    routing = RoutingRegistry.get_definition(workflow, load_cached=False)
    return sorted({*trained_command_labels("*", routing), "wildcard"})


if __name__ == "__main__":
    main()
