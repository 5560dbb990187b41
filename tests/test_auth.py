"""Fireworks credentials: the environment first, then the file in its three forms."""

import pytest

from reward_kit import auth


@pytest.fixture
def ini(tmp_path, monkeypatch):
    monkeypatch.delenv("FIREWORKS_API_KEY", raising=False)
    monkeypatch.delenv("FIREWORKS_ACCOUNT_ID", raising=False)
    monkeypatch.setattr(auth, "AUTH_INI_FILE", tmp_path / "auth.ini")
    return tmp_path / "auth.ini"


@pytest.mark.parametrize(
    "text",
    [
        "api_key = k\naccount_id=a\n",
        "# mine\napi_key = 'k'\naccount_id = \"a\"\n",
        "[fireworks]\napi_key = k\naccount_id = a\n",
        "[DEFAULT]\napi_key = k\naccount_id = a\n",
        "[other]\nx = 1\n[fireworks]\napi_key = k\naccount_id = a\n",
    ],
)
def test_the_file_with_and_without_sections(ini, text):
    ini.write_text(text, encoding="utf-8")
    assert (auth.get_fireworks_api_key(), auth.get_fireworks_account_id()) == ("k", "a")


def test_the_environment_comes_first(ini, monkeypatch):
    ini.write_text("api_key = k\n", encoding="utf-8")
    monkeypatch.setenv("FIREWORKS_API_KEY", "from the environment")
    assert auth.get_fireworks_api_key() == "from the environment"


@pytest.mark.parametrize(
    "text", ["", "api_key =\n", "[fireworks]\napi_key =\n", "[x]\napi_key = k", "[x\x00y"]
)
def test_a_file_without_the_key(ini, text):
    ini.write_text(text, encoding="utf-8")
    assert auth.get_fireworks_api_key() is None


def test_a_file_that_cannot_be_parsed_is_logged(ini, caplog):
    ini.write_text("[fireworks]\nno equals sign\n", encoding="utf-8")
    assert auth.get_fireworks_api_key() is None
    assert "Configparser error reading" in caplog.text


def test_the_address_of_the_platform(monkeypatch):
    monkeypatch.delenv("FIREWORKS_API_BASE", raising=False)
    assert auth.get_fireworks_api_base() == "https://api.fireworks.ai"
    monkeypatch.setenv("FIREWORKS_API_BASE", "http://127.0.0.1:1")
    assert auth.get_fireworks_api_base() == "http://127.0.0.1:1"
