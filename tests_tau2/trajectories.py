"""Trajectories to compare: gold, gold with a fault, and random calls of both sides; the same for each seed.

``trajectory(domain, number)`` depends on nothing but its arguments and the description of the domain that
``their_code.py describe`` prints. The first ones of a domain are the gold actions of all its tasks, and so
begin at every state a task begins at.
"""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

QUICK = {"mock": 250, "airline": 100, "retail": 100, "telecom": 150, "banking_knowledge": 100}
THOROUGH = {"mock": 6000, "airline": 5000, "retail": 5000, "telecom": 10000, "banking_knowledge": 4000}
WITH_SOLO = ("mock", "telecom")
NO_TOOLS = ("use_tool", "update_db", "get_tools", "db", "__init__", "has_tool", "frobnicate", "", "finish")
ODD_TEXTS = ("", "0", "#W0000000", "é ü 😀", "' OR 1=1 --", "null", "x" * 300, "2024-05-31", " ")
SEARCH = "KB_search"
PATTERNS = (
    "fee|charge",
    "credit.*card",
    "(",
    "[a-z",
    "^#",
    "\\bAPR\\b",
    "rewards points",
    "the",
    "zzzz",
    "",
    " ",
    "$5",
    "(?i)GOLD",
)
ENDS = ("max_steps", "too_many_errors", "agent_error", "user_error", "timeout")
OTHER_NAMES = {
    "new_email": "email",
    "new_item_ids": "item_id",
    "item_ids": "item_id",
    "first_name": "first_name",
    "zip": "zip",
    "customer_name": "name",
    "full_name": "full_name",
    "dob": "date_of_birth",
    "discoverable_tool_name": "user tool",
    "agent_tool_name": "agent tool",
}

Call = dict[str, Any]


class Domain:
    """The description of a domain, and what arguments are drawn from."""

    def __init__(self, name: str, described: dict[str, Any]) -> None:
        self.name = name
        self.tasks: list[dict[str, Any]] = described["tasks"]
        self.tools: dict[str, dict[str, Any]] = described["tools"]
        self.values: dict[str, list[Any]] = dict(described["values"])
        self.forms: dict[str, str] = described["forms"]
        fields = {side: {one for one in self.forms if one.startswith(side)} for side in ("agent", "user")}
        self.is_shared = {one.replace("agent", "user", 1) for one in fields["agent"]} == fields["user"]
        """Both sides work on one database."""
        self.state: dict[str, str] = described["state"]
        self.gold: list[Call] = [call for task in self.tasks for call in task["gold"]]
        self.given: dict[tuple[str, str], list[Any]] = {}
        for call in self.gold:
            for name_of, value in call["arguments"].items():
                self.given.setdefault((call["name"], name_of), []).append(value)
                self.given.setdefault(("", name_of), []).append(value)
        for side, tools in self.tools.items():
            self.values[f"{side} tool"] = list(tools)

    def trajectory(self, number: int, seed: int = 0) -> dict[str, Any]:
        """The trajectory of this number."""
        rng = Random(f"{seed} {self.name} {number}")
        first = number < len(self.tasks)
        task = self.tasks[number] if first else rng.choice(self.tasks)
        kind = "gold" if first else rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        calls = KINDS[kind][1](rng, self, copy.deepcopy(task["gold"]))
        if not first and number % 50 == 49 and SEARCH in self.tools["agent"]:
            kind, calls = "search", [self.search(rng) for _ in range(5)]
        found: dict[str, Any] = {"domain": self.name, "task_id": task["id"], "kind": kind}
        can_be_solo = self.name in WITH_SOLO and task["ticket"] and not task["history"]
        found["solo"] = solo = not first and can_be_solo and rng.random() < 0.12
        if solo:
            calls = [{**call, "by": "agent"} for call in calls]
        lines = spoken(rng, task["outputs"], plain=first)
        found["calls"] = [line for line in with_lines(rng, calls, lines) if not solo or line["by"] == "agent"]
        ends = "agent_stop" if solo else "user_stop"
        found["end"] = rng.choice(ENDS) if not first and rng.random() < 0.03 else ends
        found["judge"] = verdicts(rng, task["criteria"])
        return found

    # --- calls and arguments

    def random_call(self, rng: Random) -> Call:
        """A call of either side: right, faulty, of the other side, or of a tool that does not exist."""
        if self.gold and rng.random() < 0.35:
            call = copy.deepcopy(rng.choice(self.gold))
            return faulty(rng, self, call) if rng.random() < 0.4 else call
        side = rng.choice(list(self.tools))
        name = rng.choice(list(self.tools[side]))
        call = {"by": side, "name": name, "arguments": self.random_arguments(rng, side, name)}
        chance = rng.random()
        if chance < 0.04:
            call["name"] = rng.choice(NO_TOOLS)
        elif chance < 0.08:
            call["by"] = "user" if side == "agent" else "agent"
        return call

    def search(self, rng: Random) -> Call:
        """A call of a tool that searches documents."""
        text = rng.choice(self.values["query"]) if rng.random() < 0.6 else rng.choice(PATTERNS)
        name, parameter = rng.choice([(SEARCH, "query"), ("grep", "pattern")])
        return {"by": "agent", "name": name, "arguments": {parameter: text}}

    def random_arguments(self, rng: Random, side: str, name: str) -> dict[str, Any]:
        found = {}
        for parameter, about in self.tools[side][name].items():
            if rng.random() < (0.96 if about["required"] else 0.5):
                found[parameter] = self.random_value(rng, name, parameter, about)
        if rng.random() < 0.03:
            found["unexpected"] = 1
        return found

    def random_value(self, rng: Random, tool: str, parameter: str, about: dict[str, Any]) -> Any:
        chance = rng.random()
        if chance < 0.07:
            return wrong(rng, self.likely_value(rng, tool, parameter, about))
        if chance < 0.10:
            return rng.choice(ODD_TEXTS)
        return self.likely_value(rng, tool, parameter, about)

    def likely_value(self, rng: Random, tool: str, parameter: str, about: dict[str, Any]) -> Any:
        if about["choices"] and rng.random() < 0.9:
            return rng.choice(about["choices"])
        given = self.given.get((tool, parameter)) or self.given.get(("", parameter))
        pool = self.values.get(OTHER_NAMES.get(parameter, parameter)) or self.values.get(
            parameter.removeprefix("new_")
        )
        kind = about["type"]
        if given and (not pool or rng.random() < 0.5):
            return copy.deepcopy(rng.choice(given))
        if pool:
            some = [rng.choice(pool) for _ in range(rng.randint(1, 3))]
            return some if "list" in kind.lower() else some[0]
        if kind == "bool":
            return rng.random() < 0.5
        if kind in ("int", "float") or "float" in kind:
            return rng.choice([0, 1, 2, 5, 12.5, 100, -3, 1.0, 999999])
        if kind == "str" or "str" in kind:
            return rng.choice([*self.values.get("*", []), *ODD_TEXTS])
        return rng.choice([[], {}, [{}], {"a": 1}])


def wrong(rng: Random, value: Any) -> Any:
    """The value in another type."""
    if isinstance(value, bool):
        return rng.choice(["true", 1, None])
    if isinstance(value, int | float):
        return rng.choice([str(value), float(value), -value, None, [value], value + 0.5])
    if isinstance(value, str):
        return rng.choice([5, None, [value], True, {"value": value}, value.upper(), f" {value}"])
    return rng.choice([json.dumps(value), None, [value], {}, [], 1])


# --- gold with a fault


def faulty(rng: Random, domain: Domain, call: Call) -> Call:
    """The call with a changed, missing, additional or retyped argument, or of the other side."""
    arguments, names = call["arguments"], list(call["arguments"])
    chance = rng.random()
    if not names or chance < 0.06:
        call["by"] = "user" if call["by"] == "agent" else "agent"
    elif chance < 0.18:
        del arguments[rng.choice(names)]
    elif chance < 0.24:
        arguments["unexpected"] = rng.choice(["x", 1, None])
    elif chance < 0.5:
        name = rng.choice(names)
        arguments[name] = wrong(rng, arguments[name])
    else:
        name = rng.choice(names)
        arguments[name] = changed(rng, domain, call["name"], name, arguments[name])
    return call


def changed(rng: Random, domain: Domain, tool: str, name: str, value: Any) -> Any:
    """Another value of the kind; of JSON in a string, or of a list or an object, one of its values."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            inside = json.loads(value)
        except ValueError:
            return value[1:]
        return json.dumps(changed(rng, domain, tool, name, inside)) if rng.random() < 0.9 else value[:-1]
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        if rng.random() < 0.15:
            return {name_of: each for name_of, each in value.items() if name_of != key}
        return {**value, key: changed(rng, domain, tool, key, value[key])}
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        chance = rng.random()
        if chance < 0.2:
            return [*value, value[place]]
        if chance < 0.35:
            return value[:place] + value[place + 1 :]
        return [
            changed(rng, domain, tool, name, each) if at == place else each for at, each in enumerate(value)
        ]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice([value + 1, value * 2, 0, float(value), round(value)])
    for side in domain.tools.values():
        if about := side.get(tool, {}).get(name):
            return domain.likely_value(rng, tool, name, about)
    pool = domain.values.get(name) or domain.values["*"]
    return rng.choice(pool)


def gold(rng: Random, domain: Domain, calls: list[Call]) -> list[Call]:
    return calls


def dropped(rng: Random, domain: Domain, calls: list[Call]) -> list[Call]:
    if calls:
        del calls[rng.randrange(len(calls))]
    return calls


def with_a_fault(rng: Random, domain: Domain, calls: list[Call]) -> list[Call]:
    if calls:
        place = rng.randrange(len(calls))
        calls[place] = faulty(rng, domain, calls[place])
    return calls


def doubled(rng: Random, domain: Domain, calls: list[Call]) -> list[Call]:
    if calls:
        place = rng.randrange(len(calls))
        calls.insert(rng.randint(place, len(calls)), copy.deepcopy(calls[place]))
    return calls


def swapped(rng: Random, domain: Domain, calls: list[Call]) -> list[Call]:
    if len(calls) > 1:
        one, other = rng.sample(range(len(calls)), 2)
        calls[one], calls[other] = calls[other], calls[one]
    return calls


def backwards(rng: Random, domain: Domain, calls: list[Call]) -> list[Call]:
    return calls[::-1]


def cut(rng: Random, domain: Domain, calls: list[Call]) -> list[Call]:
    return calls[: rng.randint(0, len(calls))]


def with_others(rng: Random, domain: Domain, calls: list[Call]) -> list[Call]:
    for _ in range(rng.randint(1, 4)):
        calls.insert(rng.randint(0, len(calls)), domain.random_call(rng))
    return calls


def at_random(rng: Random, domain: Domain, calls: list[Call]) -> list[Call]:
    return [domain.random_call(rng) for _ in range(rng.randint(1, 10))]


def with_two_faults(rng: Random, domain: Domain, calls: list[Call]) -> list[Call]:
    kinds = [dropped, with_a_fault, doubled, swapped, with_others]
    for change in rng.sample(kinds, 2):
        calls = change(rng, domain, calls)
    return calls


KINDS: dict[str, tuple[int, Any]] = {
    "gold": (6, gold),
    "dropped": (10, dropped),
    "changed": (22, with_a_fault),
    "doubled": (8, doubled),
    "swapped": (8, swapped),
    "backwards": (3, backwards),
    "cut": (5, cut),
    "others": (16, with_others),
    "random": (14, at_random),
    "two": (8, with_two_faults),
}


# --- what is said


def spoken(rng: Random, outputs: list[str], *, plain: bool) -> list[Call]:
    """Lines with the texts that the agent has to tell the user, in many forms."""
    text = " ".join(outputs) or "Done."
    chance = 0.0 if plain else rng.random()
    if chance < 0.6:
        return [{"by": "agent", "say": f"It is {text} then."}]
    if chance < 0.7:
        return [{"by": "agent", "say": ", ".join(outputs).upper() or "DONE"}]
    if chance < 0.75:
        return [{"by": "agent", "say": each} for each in outputs]
    if chance < 0.8:
        return [
            {"by": "agent", "say": text[: len(text) // 2].strip() or "."},
            {"by": "agent", "say": text[len(text) // 2 :].strip() or "."},
        ]
    if chance < 0.85:
        return [{"by": "user", "say": text}]
    if chance < 0.9:
        return [{"by": "agent", "beside": text}]
    return [{"by": "agent", "say": outputs[0] if outputs else "Hello."}, {"by": "user", "say": "Thanks."}]


def with_lines(rng: Random, calls: list[Call], lines: list[Call]) -> list[Call]:
    """The lines among the calls, mostly after them; one may stand beside a call in its message."""
    found: list[Call] = list(calls)
    for line in lines:
        of_agent = [call for call in calls if call["by"] == "agent"]
        if "beside" in line:
            if of_agent:
                rng.choice(of_agent)["text"] = line["beside"]
            continue
        found.insert(len(found) if rng.random() < 0.7 else rng.randint(0, len(found)), line)
    return found


def verdicts(rng: Random, criteria: int) -> list[bool]:
    """Verdicts of the stub that judges: mostly all true; at times some are false, missing or all absent."""
    chance = rng.random()
    if chance < 0.75:
        return [True] * criteria
    if chance < 0.9:
        return [rng.random() < 0.7 for _ in range(criteria)]
    return [True] * rng.randint(0, max(criteria - 1, 0))
