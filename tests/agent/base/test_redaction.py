"""Secrets: recognised alike for the log, the cache and every text that is shown."""

import pytest

from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.redaction import HIDDEN, LONGEST_LABEL, label, redact, redacted, secrets_in
from reward_kit.agent.models.cache import public_identity
from reward_kit.errors import ToolError


@pytest.mark.parametrize(
    "name",
    [
        "api_key", "api_key_2", "OPENAI_KEY1", "aws_access_key_id", "aws_secret_access_key", "azure_ad_token",
        "X-Api-Key", "X-Auth-User", "Authorization", "Cookie", "signature", "vertex_credentials", "password",
    ],
)  # fmt: skip
def test_a_secret_is_in_no_log_cache_or_text(name: str) -> None:
    given = {name: "canary-4711"}
    assert redacted(given) == {name: "***"}
    assert public_identity({"model_args": given}) == {"model_args": {}}
    assert redact("denied: canary-4711", secrets_in(given)) == f"denied: {HIDDEN}"


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens", "stop_token_ids", "token_limit", "tokenizer", "keywords", "stop", "eos_token",
        "input_cost_per_token", "cache_read_input_cost_per_token",
    ],
)  # fmt: skip
def test_what_shapes_an_answer_is_no_secret(name: str) -> None:
    assert redacted({name: "ordinary"}) == {name: "ordinary"}
    assert public_identity({name: "ordinary"}) == {name: "ordinary"}


def test_a_name_that_a_server_gives_is_short_and_holds_no_key() -> None:
    assert label("gpt-4o-mini") == "gpt-4o-mini"
    assert label("gpt-canary-4711", frozenset({"canary-4711"})) == f"gpt-{HIDDEN}"
    assert label("sk-abcdefgh1234") == HIDDEN
    assert len(label("x" * 10**6)) == LONGEST_LABEL


def test_a_secret_of_the_environment_in_an_exception_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "canary-4711")
    monkeypatch.setenv("SHOP_TOKEN_2", "canary-4711-and-more")
    monkeypatch.setenv("SHOP_URL", "https://me:p4ssw0rd-x@shop.example/")
    for text in ("canary-4711", "canary-4711-and-more", "https://me:p4ssw0rd-x@shop", "p4ssw0rd-x"):
        line = fault_line(ValueError(f"401 for {text}!"))
        assert line.startswith("ValueError: 401 for ")
        assert HIDDEN in line
        assert not any(secret in line for secret in ("canary", "more", "p4ssw0rd"))
        assert HIDDEN in fault_line(ToolError(text))
