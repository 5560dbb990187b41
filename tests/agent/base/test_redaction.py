"""Secrets: recognised alike for the log, the cache and every text that is shown."""

import json
from urllib.parse import quote

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.redaction import (
    HIDDEN,
    LONGEST_LABEL,
    hide,
    is_secret_name,
    label,
    redact,
    redacted,
    secrets_in,
)
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


@pytest.mark.parametrize(
    "text",
    [
        "sk-abcdefgh1234", "gsk_abcdefgh1234", "pk_live_51Habcdefgh", "hf_abcdefgh12345678",
        "Bearer abc.def-123", "Basic dXNlcjpwYXNzd29yZA==",
    ],
)  # fmt: skip
def test_a_text_that_looks_like_a_key_is_hidden(text: str) -> None:
    assert redact(text).split()[-1] == HIDDEN


@pytest.mark.parametrize("text", ["Bearer of bad news", "A Basic membership", "pk_books_id", "pk-2025-001"])
def test_words_that_begin_like_a_key_are_shown(text: str) -> None:
    assert redact(text) == text


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


@pytest.mark.parametrize(
    "name",
    [
        "DB_PASS", "VAULT_PASSPHRASE", "GITHUB_PAT", "JWT", "BASIC_AUTH", "PGPASSWORD", "MYSQL_PWD", "apiKey",
        "SLACK_WEBHOOK", "SHOP_API_KEY_2", "OPENAI_APIKEY", "Set-Cookie", "AWS_ACCESS_KEY_ID",
        "NPM_AUTHTOKEN",
    ],
)  # fmt: skip
def test_the_last_word_of_a_name_says_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "COOKIE_DOMAIN", "AUTHOR", "KEY_COLUMN", "TOKEN_LIMIT", "MONKEY", "TURKEY_AIRPORT",
        "AUTH_MODE", "CREDENTIALS_FILE", "STOP_TOKEN", "PWD", "OLDPWD", "COMPASS", "SSH_AUTH_SOCK",
    ],
)  # fmt: skip
def test_other_words_of_a_name_do_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("value", "is_stored", "is_shown"),
    [
        ("0123456789abcdef", True, True),
        ("AbC123/def+456=gh", True, True),
        ("canary-4711-and-more", True, True),
        ("0123456789abcde", False, True),  # too short
        ("canary-4711", False, True),
        ("order_id", False, False),
        ("customer_order_identifier", False, True),  # words
        ("order_id_2_by_day", False, True),
        ("4929-1234-5678-9012", False, False),
        ("2024-01-01T00:00:00Z", False, False),
        ("/run/secrets/a1b2c3d4e5f6/key", False, False),
        ("keys/a1b2c3d4e5f6/main.pem", False, False),
        ("db01.a1b2c3d4.example.com:5432", False, False),
        ("https://example.com/a1b2c3d4e5f6a1b2c3d4", False, False),
        ("https://me:a1b2c3d4e5f6a1b2c3d4@example.com/", True, True),
    ],
)
def test_a_secret_looks_random(
    monkeypatch: pytest.MonkeyPatch, value: str, is_stored: bool, is_shown: bool
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", value)
    text = f"it is {value}!"
    assert (hide(text) != text, hide(text, is_shown=True) != text) == (is_stored, is_shown)


@drawn(
    # without the point of a host such as n0.AA/0, which is no secret
    st.text(
        st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters=".", max_codepoint=0xFFFF),
        min_size=12,
    ),
    st.text(st.sampled_from('\\\n"nbu/ aé'), max_size=4),
    st.text(st.sampled_from('\\\n"nbu/ aé'), max_size=4),
)
def test_json_stays_valid_without_a_secret_in_any_encoding(middle: str, before: str, after: str) -> None:
    secret = f"n{middle}Zq7102"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_API_KEY", secret)
        nested = json.dumps([before + secret + after, quote(secret, safe="")])
        text = json.dumps(
            {secret: nested, "url": quote(secret), "x": before}, ensure_ascii=len(after) % 2 == 0
        )
        for given in (text, text.replace("/", "\\/")):
            shown = json.loads(hide(given))
            assert "Zq7102" not in json.dumps(shown)
            assert shown["x"] == before
            inner = json.loads(next(value for name, value in shown.items() if name not in ("url", "x")))
            assert inner[0].endswith(after) or after.startswith("\\")
