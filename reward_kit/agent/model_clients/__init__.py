"""What every way to ask a model shares: which client it is, asking again, reading answers and errors.

The clients themselves are ``llm.py`` (LiteLLM), ``openai_http`` (the direct path) and ``local_models``.
"""
