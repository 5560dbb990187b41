"""Which arguments of a reward function are messages, and making ``Message`` objects of them.

The annotations are resolved once, when the function is decorated: a call costs no more than the validation.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Strict, TypeAdapter, ValidationError

from reward_kit.models import Message

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class MessageArgument:
    """One parameter that is annotated as messages.

    ``position`` is its place among the positional parameters, ``None`` for a keyword-only one; ``fault`` is
    how the error of a value that is no list of messages begins.
    """

    name: str
    position: int | None
    adapter: TypeAdapter[Any]
    fault: str
    may_be_none: bool

    def coerce(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """``args`` with this argument made into messages; one given by name is replaced in ``kwargs``."""
        if self.name in kwargs:
            kwargs[self.name] = self._messages(kwargs[self.name])
        elif self.position is not None and self.position < len(args):
            value = self._messages(args[self.position])
            return (*args[: self.position], value, *args[self.position + 1 :])
        return args

    def _messages(self, value: Any) -> Any:
        if value is None and self.may_be_none:
            return None
        try:
            return self.adapter.validate_python(value)
        except ValidationError as error:
            raise ValueError(f"{self.fault}: {error}") from None


def message_arguments(function: Callable[..., Any], mode: str) -> list[MessageArgument]:
    """The parameters of ``function`` that hold messages and are annotated so.

    These are ``messages`` (``rollouts_messages``, a list of lists, in batch mode) and ``ground_truth``. Any
    other annotation than a list of ``Message``, optional or not, leaves the argument as the caller gave it.
    """
    conversation = ("rollouts_messages", 2) if mode == "batch" else ("messages", 1)
    found = []
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        for name, depth in (conversation, ("ground_truth", 1)):
            if parameter.name != name:
                continue
            hint = _resolved(parameter.annotation, function)
            inner = _without_none(hint)
            if not _is_messages(inner, depth):
                continue
            fault = f"Input '{name}' failed Pydantic validation"
            is_truth = name == "ground_truth"
            found.append(
                MessageArgument(
                    name=name,
                    position=None if parameter.kind is parameter.KEYWORD_ONLY else position,
                    adapter=_adapter(depth),
                    fault=f"{fault} for List[Message]" if is_truth else fault,
                    may_be_none=is_truth or inner is not hint,
                )
            )
    return found


@functools.lru_cache(maxsize=2)
def _adapter(depth: int) -> TypeAdapter[Any]:
    one_conversation = Annotated[list[Message], Strict()]
    return TypeAdapter(one_conversation if depth == 1 else Annotated[list[one_conversation], Strict()])


def _resolved(annotation: Any, function: Callable[..., Any]) -> Any:
    """The annotation as a type; a text that names something unknown here stays as it is.

    The usual names are known even where the module imports them for type checkers only.
    """
    usual_names = {**vars(typing), "Message": Message}
    module_names = getattr(inspect.unwrap(function), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, {**usual_names, **module_names})["it"]
    except (NameError, TypeError, SyntaxError, AttributeError):
        return annotation


def _without_none(hint: Any) -> Any:
    """``X`` for ``Optional[X]``, anything else as it is."""
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return hint
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    return members[0] if len(members) == 1 else hint


def _is_messages(hint: Any, depth: int) -> bool:
    if depth == 0:
        return hint is Message
    arguments = typing.get_args(hint)
    return typing.get_origin(hint) is list and len(arguments) == 1 and _is_messages(arguments[0], depth - 1)
