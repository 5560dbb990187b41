"""Models that lie on this machine: a folder as Hugging Face lays it out, or a ``.gguf`` file.

``--model /path`` starts an OpenAI-compatible server for it (``backends``), waits until it answers
(``server``), asks it like any other (``model``), and ends it however the evaluation ends (``guard``).
"""

from __future__ import annotations

from reward_kit.agent.local_models.model import LocalModel
from reward_kit.agent.local_models.recognise import LocalFile, names_local_model
from reward_kit.agent.local_models.server import ModelServer, ModelServers, shown_on

__all__ = ["LocalFile", "LocalModel", "ModelServer", "ModelServers", "names_local_model", "shown_on"]
