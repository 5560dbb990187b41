"""Fireworks credentials, from the environment or from ``~/.fireworks/auth.ini``.

The file may have its keys under ``[fireworks]``, under any default section, or with no section at all.
"""

from __future__ import annotations

import configparser
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

FIREWORKS_CONFIG_DIR = Path.home() / ".fireworks"
AUTH_INI_FILE = FIREWORKS_CONFIG_DIR / "auth.ini"


def get_fireworks_api_key() -> str | None:
    """Return ``FIREWORKS_API_KEY``, or ``api_key`` of the file."""
    return os.environ.get("FIREWORKS_API_KEY") or _from_file("api_key")


def get_fireworks_account_id() -> str | None:
    """Return ``FIREWORKS_ACCOUNT_ID``, or ``account_id`` of the file."""
    return os.environ.get("FIREWORKS_ACCOUNT_ID") or _from_file("account_id")


def get_fireworks_api_base() -> str:
    """Return ``FIREWORKS_API_BASE``, or the public address."""
    return os.environ.get("FIREWORKS_API_BASE", "https://api.fireworks.ai")


def _from_file(key: str) -> str | None:
    if not AUTH_INI_FILE.exists():
        return None
    return _parse_simple_auth_file(AUTH_INI_FILE).get(key) or _from_sections(key)


def _parse_simple_auth_file(path: Path) -> dict[str, str]:
    """Read the ``key = value`` lines above the first section, as the Fireworks CLI writes them."""
    values: dict[str, str] = {}
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - the earlier releases' tests replace this name
            for line in file:
                text = line.strip()
                if text.startswith("["):
                    break
                name, equals, value = text.partition("=")
                if equals and not text.startswith(("#", ";")) and value.strip():
                    values[name.strip()] = value.strip().strip("\"'")
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("Error during simple parsing of %s: %s", path, error)
    return values


def _from_sections(key: str) -> str | None:
    parser = configparser.ConfigParser()
    try:
        parser.read(AUTH_INI_FILE)
        for section in ("fireworks", parser.default_section):
            if parser.has_option(section, key):
                return parser.get(section, key) or None
    except configparser.MissingSectionHeaderError:
        return None  # no sections: the simple parser has read everything
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        logger.warning("Configparser error reading %s: %s", AUTH_INI_FILE, error)
    return None
