"""Local models: a Hugging Face folder or a ``.gguf`` file, served for the evaluation.

``--model /path`` starts an OpenAI-compatible server for it (``backends``, ``server``), calls it like any
other model (``model``), and ends it however the evaluation ends (``guard``).
"""

from __future__ import annotations

from reward_kit.agent.models.local.model import LocalModel
from reward_kit.agent.models.local.recognise import LocalFile, names_local_model
from reward_kit.agent.models.local.server import ModelServer, ModelServers, shown_on

__all__ = ["LocalFile", "LocalModel", "ModelServer", "ModelServers", "names_local_model", "shown_on"]
