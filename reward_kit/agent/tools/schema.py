"""The parameters of a tool, read from its decorator, annotations and docstring.

A parameter with a default is optional; one without type and default is a string. With ``parameters`` given,
only those are offered to the model, and others that have no default; ``**kwargs`` takes those that the
function does not name.
"""

from __future__ import annotations

import functools
import inspect
import json
import operator
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typing_extensions
from pydantic.fields import FieldInfo

from reward_kit.agent.tools.check import Check, Parameter, check_by_schema, check_by_types
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from reward_kit.agent.tools.json_schema import Schema

INJECTED = frozenset({"db", "rollout"})
"""Parameters that are injected; a model never sees them."""

_EMPTY = inspect.Parameter.empty
_PLAIN_TYPES = (str, bool, int, float, list, dict)


@dataclass(frozen=True, slots=True)
class ToolSignature:
    """The arguments of a tool.

    ``schema`` is their JSON schema, always an object, and ``check`` applies it. ``injected`` are those of
    ``db`` and ``rollout`` that the function takes, ``needed`` those of them without a default. ``untyped``
    are parameters whose type is not given.
    """

    schema: Schema
    injected: frozenset[str]
    needed: frozenset[str]
    check: Check
    untyped: tuple[str, ...] = ()


def read_signature(
    function: Callable[..., Any],
    parameters: Mapping[str, Any] | None = None,
    descriptions: Mapping[str, str] | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> ToolSignature:
    """The signature of a tool.

    ``parameters`` maps names to Python types, annotations or JSON schemas, or is itself the JSON schema of an
    object; ``descriptions`` come from the docstring; ``namespace`` holds local names for annotations. Raises
    ``BundleError`` if they do not fit the function or cannot be expressed in JSON.
    """
    if parameters is not None and not isinstance(parameters, Mapping):
        raise BundleError(
            f"parameters is {parameters!r}", remedy='Give a dict of names and types such as {"origin": str}.'
        )
    taken = _named_parameters(function)
    injected = INJECTED & taken.keys()
    rest = [n for n, p in inspect.signature(function).parameters.items() if p.kind is p.VAR_KEYWORD]
    open_ended = bool(rest)
    if open_ended and parameters is None:  # often of a decorator that does not say what it wraps
        raise BundleError(
            f"nothing says which arguments '**{rest[0]}' takes",
            remedy='Name them as parameters of the function, or list them in parameters={"origin": str}.',
        )
    listed = parameters or {}
    names = listed.get("properties", {}) if _is_object_schema(listed) else listed
    _refuse_unfit(names, taken, open_ended=open_ended)
    without_default = [name for name, p in taken.items() if p.default is _EMPTY]
    needed = injected & set(without_default)
    required = [name for name in without_default if name not in injected]
    if _is_object_schema(listed):
        absent = [name for name in required if name not in names]
        if absent:
            raise BundleError(f"parameters has no property for {absent[0]!r}, which the function needs")
        schema, check = check_by_schema(_plain_json(listed), required, open_ended=open_ended)
        return ToolSignature(schema, injected, needed, check)

    offered = [*listed, *(name for name in required if name not in listed)]
    if parameters is None:
        offered = [name for name in taken if name not in injected]
    said = descriptions or {}
    declared = [
        _parameter(name, listed.get(name, _EMPTY), taken.get(name), function, namespace, said.get(name))
        for name in offered
    ]
    schema, check = check_by_types(declared)
    untyped = tuple(name for name in offered if name not in listed and _is_untyped(taken[name]))
    return ToolSignature(schema, injected, needed, check, untyped)


def _is_untyped(parameter: inspect.Parameter) -> bool:
    return parameter.annotation is _EMPTY and (parameter.default is _EMPTY or parameter.default is None)


def _named_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that can be given by name; raises ``BundleError`` if others are needed."""
    named: dict[str, inspect.Parameter] = {}
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:  # some functions written in C have none
        raise BundleError(
            f"its parameters are not known ({error})", remedy="Write a def around it."
        ) from error
    for index, (name, parameter) in enumerate(parameters.items()):
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            shown = f"*{name}" if parameter.kind is parameter.VAR_POSITIONAL else name
            raise BundleError(
                f"parameter {shown!r} cannot be given by name",
                remedy="Tools are called with named arguments.",
            )
        if index == 0 and name == "self":
            raise BundleError("it is a method", remedy="Register it on an object: R.tool()(thing.method).")
        if parameter.kind is not parameter.VAR_KEYWORD:
            named[name] = parameter
    return named


def _refuse_unfit(
    names: Mapping[str, Any], taken: Mapping[str, inspect.Parameter], *, open_ended: bool
) -> None:
    for name in names:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise BundleError(f"parameters lists {name!r}, which is not a name")
        if name in INJECTED:
            raise BundleError(f"parameters lists {name!r}, which is injected", remedy="Leave it out.")
        if name not in taken and not open_ended:
            has = ", ".join(repr(own) for own in taken if own not in INJECTED) or "none"
            raise BundleError(f"parameters lists {name!r}, which the function does not take (it takes {has})")


def _is_object_schema(parameters: Mapping[str, Any]) -> bool:
    """True if ``parameters`` is a JSON schema of all arguments, not a dict of names."""
    properties = parameters.get("properties", {})
    return (
        parameters.get("type") == "object"
        and isinstance(properties, Mapping)
        and all(isinstance(schema, Mapping) for schema in properties.values())
    )


def _parameter(
    name: str,
    given: Any,
    taken: inspect.Parameter | None,
    function: Callable[..., Any],
    namespace: Mapping[str, Any] | None,
    description: str | None,
) -> Parameter:
    """One parameter; ``given`` is its entry in ``parameters``, ``taken`` that in the function's signature."""
    default = _EMPTY if taken is None else taken.default
    if isinstance(given, Mapping):
        return Parameter(name, schema=_plain_json(given), default=default, description=description)
    if isinstance(given, (str, list, tuple, set)) or given is None:
        raise BundleError(
            f"parameters[{name!r}] is {given!r}",
            remedy='Give a type (str), an annotation (Literal["a"]) or a JSON schema ({"type": "string"}).',
        )
    annotation = given
    if annotation is _EMPTY and taken is not None and taken.annotation is not _EMPTY:
        annotation = _resolve_annotation(function, name, taken.annotation, namespace)
    if annotation is _EMPTY:
        annotation = _type_of_default(default)
    if isinstance(default, FieldInfo):
        annotation, default = Annotated[annotation, default], _EMPTY
    return Parameter(name, _readable_by_pydantic(annotation), default=default, description=description)


def _type_of_default(default: Any) -> Any:
    if default is _EMPTY or default is None:
        return str
    return next((kind for kind in _PLAIN_TYPES if type(default) is kind), Any)


def _plain_json(schema: Mapping[str, Any]) -> Schema:
    """A private copy of a hand-written schema."""
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
        text.encode()  # half a character cannot be sent to a model
        copied = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise BundleError(f"not a JSON schema: {schema!r} ({error})") from error
    assert isinstance(copied, dict)
    return copied


def _resolve_annotation(
    function: Callable[..., Any], name: str, annotation: Any, namespace: Mapping[str, Any] | None
) -> Any:
    """The annotation of one parameter, strings evaluated in the function's module and ``namespace``.

    Parameter by parameter, because the annotation of an injected ``db`` is often importable for type checkers
    only. Raises ``BundleError`` if a name in it is not defined.
    """
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    inner = inner_function(function)
    inner = inner if hasattr(inner, "__globals__") else type(inner).__call__
    scope, local = getattr(inner, "__globals__", {}), dict(namespace or {})
    try:
        return get_type_hints(holder, globalns=scope, localns=local, include_extras=True)[name]
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


def _readable_by_pydantic(annotation: Any) -> Any:
    """The annotation with each ``typing.TypedDict`` rebuilt, which pydantic refuses before Python 3.12."""
    if sys.version_info >= (3, 12):
        return annotation
    if typing.is_typeddict(annotation) and type(annotation).__module__ == "typing":
        return _rebuilt(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if not arguments or origin is Literal:
        return annotation
    if origin is Annotated:
        inner = _readable_by_pydantic(arguments[0])
        return annotation if inner is arguments[0] else annotation.copy_with((inner,))
    replaced = tuple(_readable_by_pydantic(argument) for argument in arguments)
    if all(new is old for new, old in zip(replaced, arguments, strict=True)):
        return annotation
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, replaced)
    return origin[replaced]


def _rebuilt(typed_dict: Any) -> Any:
    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(typed_dict, include_extras=True).items():
        if get_origin(hint) in (typing_extensions.Required, typing_extensions.NotRequired):
            hint = get_args(hint)[0]
        required = name in typed_dict.__required_keys__
        wrapper = typing_extensions.Required if required else typing_extensions.NotRequired
        fields[name] = wrapper[_readable_by_pydantic(hint)]
    make: Any = typing_extensions.TypedDict
    made = make(typed_dict.__name__, fields)
    if hasattr(typed_dict, "__pydantic_config__"):
        made.__pydantic_config__ = typed_dict.__pydantic_config__
    return made
