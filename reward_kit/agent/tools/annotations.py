"""Python annotations as pydantic can read them: strings resolved, older ``TypedDict`` classes rebuilt."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
import typing
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typing_extensions

from reward_kit.errors import BundleError

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def resolve_annotation(
    function: Callable[..., Any], name: str, annotation: Any, namespace: Mapping[str, Any] | None
) -> Any:
    """The annotation of one parameter, strings evaluated in the function's module and in ``namespace``.

    Parameter by parameter, because the annotation of an injected ``db`` is often importable for type checkers
    only. Raises ``BundleError`` where a name in it is not defined.
    """
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    scope, local = _globals(function), dict(namespace or {})
    try:
        return get_type_hints(holder, globalns=scope, localns=local, include_extras=True)[name]
    except (NameError, SyntaxError, TypeError, AttributeError) as error:
        raise BundleError(
            f"the annotation {annotation!r} of parameter {name!r} cannot be read ({error})",
            remedy="Import what it names, or list the parameter in parameters={...}.",
        ) from error


def _globals(function: Callable[..., Any]) -> dict[str, Any]:
    """The names of the module in which a function, method, partial or callable object was written."""
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    scope: dict[str, Any] | None = getattr(inner, "__globals__", None)
    return getattr(type(inner).__call__, "__globals__", {}) if scope is None else scope


def readable_by_pydantic(annotation: Any) -> Any:
    """The annotation with each ``typing.TypedDict`` rebuilt for Python before 3.12, where pydantic refuses
    it.
    """
    if sys.version_info >= (3, 12):
        return annotation
    if typing.is_typeddict(annotation) and type(annotation).__module__ == "typing":
        return _rebuilt(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if not arguments or origin is Literal:
        return annotation
    if origin is Annotated:
        inner = readable_by_pydantic(arguments[0])
        return annotation if inner is arguments[0] else annotation.copy_with((inner,))
    replaced = tuple(readable_by_pydantic(argument) for argument in arguments)
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
        fields[name] = wrapper[readable_by_pydantic(hint)]
    make: Any = typing_extensions.TypedDict
    made = make(typed_dict.__name__, fields)
    if hasattr(typed_dict, "__pydantic_config__"):
        made.__pydantic_config__ = typed_dict.__pydantic_config__
    return made
