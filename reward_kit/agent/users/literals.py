"""Literals in what is said: ids, numbers, addresses, names, amounts, dates. Comparing needs no model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Kind = Literal["email", "id", "number", "name", "amount", "date"]

IDENTIFYING: frozenset[Kind] = frozenset({"email", "id", "number", "name"})
"""Kinds that a tool is called with: a wrong one leads the agent astray."""

MIN_DIGITS = 4
"""Shorter numbers are counts, sizes and times, which a person may well choose for themselves."""

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_TITLE = r"(?:(?:mr|mrs|ms|miss|mx|dr|prof)\.?\s)?"
_FORMS = re.compile(
    rf"\b(?:my|your)\s(?:full\s)?name(?:'s|\sis)\s{_TITLE}"
    r"(?P<own>(?-i:[A-Z])[\w-]+(?:\s(?-i:[A-Z])[\w-]+){0,3})"
    rf"|\AYou are {_TITLE}"
    r"(?P<played>(?-i:[A-Z])[\w-]+(?: (?-i:[A-Z])[\w-]+){1,3})"
    r"|(?P<email>[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8})"
    r"|(?P<iso>\b\d{4}-\d\d?-\d\d?\b)"
    rf"|(?P<spelled>\b{_MONTH}\.?\s\d\d?(?:st|nd|rd|th)?\b|\b\d\d?(?:st|nd|rd|th)?\s(?:of\s)?{_MONTH}\b)"
    r"|(?P<amount>[$€£]\s?\d[\d,]*(?:\.\d+)?)"
    r"|(?P<word>#?(?<![\w-])\w+(?:[_-]\w+)*)",
    re.IGNORECASE | re.ASCII,
)
_ID = re.compile(r"#?(?=[^\d]*[a-z])[a-z0-9]+(?:[_-][a-z0-9]+)*", re.IGNORECASE | re.ASCII)


class Said(NamedTuple):
    """One literal: its kind, the text, and the form in which equal ones are equal."""

    kind: Kind
    text: str
    form: str

    @property
    def shape(self) -> str:
        """What literals in the same role have in common: ``#W12`` and ``w34`` are both ``w99``.

        Letters count for ids of a letter or two; longer words in an id are names (``noah_ito_3850``).
        """
        if self.kind in {"email", "name"}:
            return self.kind
        digits = re.sub(r"\d", "9", self.form)
        return re.sub(r"[a-z]{3,}", "a", digits)


def literals(text: str) -> Iterator[Said]:
    """The literals of a text, in order."""
    for found in _FORMS.finditer(text):
        group = str(found.lastgroup)
        said = _said(group, found[group])
        if said is not None:
            yield said


def _said(group: str, text: str) -> Said | None:
    if group in {"own", "played"}:
        return Said("name", text, text.casefold())
    if group == "email":
        return Said("email", text, text.casefold().rstrip("."))
    if group == "iso":
        month, day = (int(part) for part in text.split("-")[1:])
        return Said("date", text, f"{month}/{day}")
    if group == "spelled":
        return Said("date", text, _spelled(text.casefold()))
    if group == "amount":
        return Said("amount", text, f"{float(re.sub(r'[^0-9.]', '', text)):.2f}")
    if sum(character.isdigit() for character in text) < MIN_DIGITS:
        return None
    form = text.casefold().lstrip("#")
    if form.isdigit():
        return Said("number", text, form)
    return Said("id", text, form) if _is_id(form) else None


def _spelled(text: str) -> str:
    month = next(number for number, name in enumerate(MONTHS, 1) if name in text)
    found = re.search(r"\d+", text)
    return f"{month}/{int(found.group())}" if found else str(month)


def _is_id(form: str) -> bool:
    """Digits after letters, as ids have them; not ``2000mah`` or ``1080p``, which measure something."""
    return bool(_ID.fullmatch(form)) and not form[0].isdigit()


class Known:
    """What a person may say without making it up: what they were told and what they have heard."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._squeezed = ""
        self._forms: set[tuple[str, str]] = set()
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        """Count ``text`` as known."""
        self._squeezed += "\n" + _squeeze(text)
        self._forms.update((said.kind, said.form) for said in literals(text))

    def __contains__(self, said: Said) -> bool:
        """Whether it was told, also where it was written otherwise (``#W1234`` as ``order W 1234``)."""
        if (said.kind, said.form) in self._forms:
            return True
        if said.kind == "name":
            return any(_squeeze(part) in self._squeezed for part in said.form.split())  # "Mr Rossi" is one
        return said.kind != "date" and _squeeze(said.form.removesuffix(".00")) in self._squeezed


def _squeeze(text: str) -> str:
    """Letters and digits alone."""
    return re.sub(r"[\W_]+", "", text.casefold())
