"""Pages from templates, in which all text of models, tools and rows is escaped."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reward_kit.agent.base.history import parse_arguments
from reward_kit.agent.base.text import count, json_text
from reward_kit.agent.reports.listings import moment
from reward_kit.agent.rollout.outcome import total_usage
from reward_kit.agent.scoring.numbers import duration, estimate, money

if TYPE_CHECKING:
    from reward_kit.agent.rollout.outcome import Outcome

LONG_LINES = 12
"""Lines of a text that is shown unfolded."""
LONG_TEXT = 800
"""Characters of such a text."""
BEGINNING = 90
"""Characters of a folded text that its line shows."""
ONE_LINE = 240
"""Characters of JSON that is not spread over lines."""

TEMPLATES = Path(__file__).with_name("templates")
STYLE, SCRIPT = (TEMPLATES.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "keys.js"))

_style, _script = (b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in (STYLE, SCRIPT))
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_style}'; script-src 'sha256-{_script}'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'"
)
"""The content security policy of a page: its own style and script by their hashes, and nothing else."""
HTML = "text/html; charset=utf-8"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",  # without one, browsers send forms with the origin null
    "X-Content-Type-Options": "nosniff",
}
"""Pages hold text of models and tools: nothing of it may run or be fetched if escaping fails."""


def render(template: str, **values: Any) -> str:
    """Fill in a template."""
    return _environment().get_template(template).render({"static": False, **values})


@lru_cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters = (count, duration, estimate, money, total_usage)
    own = (beginning, breakable, characters, is_long, moment, pretty, readable, rollout_address, shown)
    environment.globals |= {"policy": POLICY, "style": Markup(STYLE), "script": Markup(SCRIPT)}  # noqa: S704 - files of this package
    environment.filters |= {one.__name__: one for one in (*filters, *own)}
    environment.filters |= {"named": parse_arguments, "value": json_text}
    return environment


def rollout_address(outcome: Outcome) -> str:
    """The address of a rollout's page."""
    return f"{outcome.row_id}/roll_{outcome.id}.html"


def beginning(text: str) -> str:
    """The first words in one line."""
    line = " ".join(text[: 2 * BEGINNING].split())
    return f"{line[:BEGINNING]}..."


def characters(text: str) -> str:
    """The length of a text: ``1 character``, ``978,997 characters``."""
    return f"{len(text):,} character{'' if len(text) == 1 else 's'}"


def is_long(text: str) -> bool:
    """Return True for a text that is folded."""
    return len(text) > LONG_TEXT or text.count("\n") >= LONG_LINES


def pretty(text: str) -> str:
    """JSON with a line for each value, if the text is long; else the text."""
    try:
        value = json.loads(text) if len(text) > ONE_LINE else None
    except (ValueError, RecursionError):
        return text
    return readable(value) if isinstance(value, dict | list) else text


def shown(value: Any) -> str:
    """A value of a row or call: as JSON, and a text without quotes unless it could be something else."""
    if not isinstance(value, str) or value.strip() != value:
        return json_text(value)
    try:
        json.loads(value or "0")
    except (ValueError, RecursionError):
        return value
    return json_text(value)


def breakable(name: str) -> Markup:
    """A name that may be broken after its punctuation."""
    return Markup("<wbr>").join(re.split(r"(?<=[._/:-])(?=\w)", name))


def readable(value: Any) -> str:
    """A value as JSON with a line for each inner value."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
