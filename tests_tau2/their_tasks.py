"""The parts of trajectories: τ²-bench's tasks and tools, and values for arguments."""

from __future__ import annotations

import inspect
import json
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from their_data import State, canonical

if TYPE_CHECKING:
    from their_code import Tau2


def describe(tau2: Tau2, domain: str) -> dict[str, Any]:
    """The tasks, the tools of both sides, and values by the names of their keys."""
    environment = tau2.registry.get_env_constructor(domain)(**tau2.variant_of(domain))
    values: dict[str, dict[str, Any]] = {}
    for kit in (environment.tools, environment.user_tools):
        if kit is not None:
            collect(json.loads(canonical(kit.db.model_dump())), "", values)
    if domain == "banking_knowledge":
        from tau2.domains.banking_knowledge.environment import get_knowledge_base

        titles = sorted(each.title for each in get_knowledge_base().get_all_documents())
        values["query"] = values["pattern"] = {title: title for title in titles[::7]}
    tasks = []
    for task in tau2.tasks(domain).values():
        criteria = task.evaluation_criteria
        gold = [] if criteria is None else criteria.actions or []
        tasks.append(
            {
                "id": task.id,
                "gold": [
                    {
                        "by": "user" if each.requestor == "user" else "agent",
                        "name": each.name,
                        "arguments": each.arguments,
                    }
                    for each in gold
                ],
                "outputs": [] if criteria is None else criteria.communicate_info or [],
                "criteria": 0 if criteria is None else len(criteria.nl_assertions or []),
                "basis": [] if criteria is None else [each.value for each in criteria.reward_basis],
                "ticket": task.ticket is not None,
                "history": bool(task.initial_state and task.initial_state.message_history),
            }
        )
    tools = {
        side: {name: parameters_of(function) for name, function in sorted(kit.tools.items())}
        for side, kit in (("agent", environment.tools), ("user", environment.user_tools))
        if kit is not None
    }
    return {
        "tasks": tasks,
        "tools": tools,
        "forms": {
            f"{side}:{name}": form_of(getattr(kit.db, name))
            for side, kit in (("agent", environment.tools), ("user", environment.user_tools))
            if kit is not None
            for name in type(kit.db).model_fields
        },
        "state": State(tau2, environment, values=False).everything(),
        "values": {name: list(found.values()) for name, found in sorted(values.items())},
    }


def form_of(value: Any) -> str:
    """The form of a field: dict, list, table (a model of ``data`` and ``notes``) or one."""
    if isinstance(value, dict | list):
        return "dict" if isinstance(value, dict) else "list"
    return "table" if hasattr(value, "data") and hasattr(value, "notes") else "one"


def collect(value: Any, name: str, found: dict[str, dict[str, Any]]) -> None:
    """Up to 60 values under each key name; the keys of objects stand under ``*``."""
    if isinstance(value, dict):
        for key, each in value.items():
            if isinstance(each, dict):
                keep("*", key, found)
            collect(each, key, found)
    elif isinstance(value, list):
        for each in value[:50]:
            collect(each, name, found)
    else:
        keep(name, value, found)


def keep(name: str, value: Any, found: dict[str, dict[str, Any]]) -> None:
    kept = found.setdefault(name, {})
    limit = 600 if name == "*" or name.endswith("_id") else 60
    if len(kept) < limit:
        kept[canonical(value)] = value


def parameters_of(function: Any) -> dict[str, Any]:
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = parameter.annotation
        kind = getattr(annotation, "__name__", None) if get_origin(annotation) is None else None
        found[name] = {
            "type": kind or str(annotation),
            "choices": choices_of(annotation),
            "required": parameter.default is inspect.Parameter.empty,
        }
    return found


def choices_of(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return [each.value for each in annotation]
    return [choice for each in get_args(annotation) for choice in choices_of(each)]
