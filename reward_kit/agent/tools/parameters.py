"""The parameters of a tool, read from its decorator, annotations and docstring.

A parameter with a default is optional; one without type and default is a string. With ``parameters`` given,
only those are offered to the model, and others that have no default; ``**kwargs`` takes those that the
function does not name.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from reward_kit.agent.tools.schema import Schema

INJECTED = frozenset({"db", "rollout"})
"""Parameters that are injected; a model never sees them."""

EMPTY = inspect.Parameter.empty
_PLAIN_TYPES = (str, bool, int, float, list, dict)

_GOOGLE_SECTION = re.compile(
    r"((keyword |other )?(args|arguments|parameters|params)|returns|raises|yields|examples?|notes?):\s*",
    re.IGNORECASE,
)
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_REST_FIELD = re.compile(r":\w[^:]*:")
_REST_ENTRY = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)"
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: ``schema`` if it was given as a JSON schema, else ``annotation``."""

    name: str
    annotation: Any = EMPTY
    schema: Schema | None = None
    default: Any = EMPTY
    description: str | None = None

    @property
    def extras(self) -> tuple[Any, ...]:
        """The metadata that ``Annotated`` adds to the type."""
        return get_args(self.annotation)[1:] if get_origin(self.annotation) is Annotated else ()

    @property
    def required(self) -> bool:
        """True if neither the function nor the annotation (``Field(default=3)``) gives it a default."""
        return self.default is EMPTY and not any(
            isinstance(extra, FieldInfo) and not extra.is_required() for extra in self.extras
        )


@dataclass(slots=True)
class FunctionParameters:
    """The parameters of ``function``: those that can be given by name, and the name of its ``**kwargs``.

    Raises ``BundleError`` if there are others.
    """

    function: Callable[..., Any]
    named: dict[str, inspect.Parameter] = field(default_factory=dict)
    keywords: str | None = None

    def __post_init__(self) -> None:
        try:
            parameters = inspect.signature(self.function).parameters
        except (TypeError, ValueError) as error:  # some functions written in C have none
            fault = f"its parameters are not known ({error})"
            raise BundleError(fault, remedy="Write a def around it.") from error
        if next(iter(parameters), None) == "self":
            raise BundleError("it is a method", remedy="Register it on an object: R.tool()(thing.method).")
        for name, parameter in parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                self.keywords = name
            elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                shown = f"*{name}" if parameter.kind is parameter.VAR_POSITIONAL else name
                fault = f"parameter {shown!r} cannot be given by name"
                raise BundleError(fault, remedy="Tools are called with named arguments.")
            else:
                self.named[name] = parameter

    def without_default(self) -> list[str]:
        """The names of those that must be given, ``db`` and ``rollout`` included."""
        return [name for name, parameter in self.named.items() if parameter.default is EMPTY]

    def check_names(self, names: Mapping[str, Any]) -> None:
        """Raise ``BundleError`` for a name in ``parameters={...}`` that the function does not take."""
        for name in names:
            if name in INJECTED:
                raise BundleError(f"parameters lists {name!r}, which is injected", remedy="Leave it out.")
            if name not in self.named and self.keywords is None:
                has = ", ".join(repr(own) for own in self.named if own not in INJECTED) or "none"
                fault = f"parameters lists {name!r}, which the function does not take (it takes {has})"
                raise BundleError(fault)

    def offered(
        self, listed: Mapping[str, Any] | None, descriptions: Mapping[str, str], namespace: Mapping[str, Any]
    ) -> list[Parameter]:
        """The parameters that a model is offered: those ``listed``, and others that must be given."""
        if listed is None and self.keywords is not None:  # often of a decorator that wraps the tool
            raise BundleError(
                f"nothing says which arguments '**{self.keywords}' takes",
                remedy='Name them as parameters of the function, or list them in parameters={"origin": str}.',
            )
        names = list(self.named) if listed is None else [*listed, *self.without_default()]
        given = listed or {}
        return [
            self._parameter(name, given.get(name, EMPTY), descriptions.get(name), namespace)
            for name in dict.fromkeys(names)
            if name not in INJECTED
        ]

    def is_untyped(self, name: str) -> bool:
        """True if neither an annotation nor a default says of which type it is."""
        own = self.named[name]
        return own.annotation is EMPTY and (own.default is EMPTY or own.default is None)

    def _parameter(
        self, name: str, given: Any, description: str | None, namespace: Mapping[str, Any]
    ) -> Parameter:
        """One parameter; ``given`` is its entry in ``parameters``."""
        own = self.named.get(name)
        default = EMPTY if own is None else own.default
        if isinstance(given, Mapping):
            return Parameter(name, schema=plain_json(given), default=default, description=description)
        if isinstance(given, (str, list, tuple, set)) or given is None:
            raise BundleError(
                f"parameters[{name!r}] is {given!r}",
                remedy='Give a type (str), an annotation (Literal["a"]) or a schema ({"type": "string"}).',
            )
        annotation = given
        if annotation is EMPTY and own is not None and self.is_untyped(name):
            annotation = str
        elif annotation is EMPTY and own is not None and own.annotation is not EMPTY:
            annotation = self._resolved(name, own.annotation, namespace)
        elif annotation is EMPTY:
            annotation = type(default) if type(default) in _PLAIN_TYPES else Any
        if isinstance(default, FieldInfo):
            annotation, default = Annotated[annotation, default], EMPTY
        return Parameter(name, annotation, default=default, description=description)

    def _resolved(self, name: str, annotation: Any, namespace: Mapping[str, Any]) -> Any:
        """The annotation of one parameter, strings evaluated in the function's module and ``namespace``.

        Parameter by parameter, because the annotation of an injected ``db`` is often importable for type
        checkers only. Raises ``BundleError`` if a name in it is not defined.
        """
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        inner = inner_function(self.function)
        inner = inner if hasattr(inner, "__globals__") else type(inner).__call__
        try:
            return get_type_hints(holder, getattr(inner, "__globals__", {}), dict(namespace), True)[name]
        except (NameError, SyntaxError, TypeError, AttributeError) as error:
            raise BundleError(
                f"the annotation {annotation!r} of parameter {name!r} cannot be read ({error})",
                remedy="Import what it names, or list the parameter in parameters={...}.",
            ) from error


def inner_function(function: Callable[..., Any]) -> Any:
    """The function, method or callable object inside decorators and ``partial``."""
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    return inner


def plain_json(schema: Mapping[str, Any]) -> Schema:
    """A private copy of a hand-written schema; raises ``BundleError`` if it is not JSON."""
    try:
        copied: Schema = json.loads(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BundleError(f"not a JSON schema: {schema!r} ({error})") from error
    return copied


def parse_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The first paragraph on one line, and the description of each parameter.

    Reads Google (``Args:``), NumPy (``Parameters``, underlined) and reST (``:param x:``) sections.
    """
    lines = inspect.cleandoc(text or "").splitlines()
    summary: list[str] = []
    for line in lines:
        if not line.strip() or _GOOGLE_SECTION.fullmatch(line) or _REST_FIELD.match(line):
            break
        summary.append(line.strip())
    found: dict[str, list[str]] = {}
    style, margin = "", 0
    current: list[str] = []  # the entry that the next lines may continue
    for line, below in zip_longest(lines, lines[1:], fillvalue=""):
        words, indent = line.strip(), len(line) - len(line.lstrip())
        if entry := _REST_ENTRY.match(words):
            style, current = "rest", found.setdefault(entry[1], [])
            current.append(entry[2])
        elif not words or set(words) == {"-"} or _REST_FIELD.match(words):
            current = current if style != "rest" else []
        elif indent == 0 and set(below.strip()) == {"-"}:
            style = "numpy" if words.lower() in ("parameters", "other parameters") else ""
        elif indent == 0 and (section := _GOOGLE_SECTION.fullmatch(words)):
            style, margin = "google" if section[3] else "", 0
        elif style == "numpy" and indent == 0 and (entry := _NUMPY_ENTRY.fullmatch(words)):
            current = []
            found.update(dict.fromkeys(map(str.strip, entry[1].split(",")), current))
        elif style == "google" and 0 < indent <= (margin or indent) and (entry := _GOOGLE_ENTRY.match(words)):
            margin, current = indent, found.setdefault(entry[1], [])
            current.append(entry[2])
        elif style and (indent or style == "rest"):
            current.append(words)
        else:
            style, current = "", []
    joined = {name: " ".join(parts).strip() for name, parts in found.items()}
    return " ".join(summary), {name: said for name, said in joined.items() if said}
