"""Local models: a Hugging Face folder or a ``.gguf`` file, served for the evaluation.

``--model /path`` starts an OpenAI-compatible server for it (``backends``, ``server``), calls it like any
other model (``model``), and ends it however the evaluation ends (``guard``).
"""
