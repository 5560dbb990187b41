"""What models say in a retail task that goes well: FastWorkflow's planner and agent, and the customer.

FastWorkflow asks for named fields in plain text, and shows its agent every step so far. So each answer
follows from the request alone, and rollouts may run side by side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

Fields = dict[str, str]
Step = tuple[str, dict[str, Any]]

_WANTED = re.compile(r"\[\[ ## (\w+) ## \]\]")
QUESTION = "Shall I go ahead?"


class RetailScript:
    """The scripts of some rows: the gold actions, one by one, then what has to be told."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = list(rows)
        self.steps: dict[str, list[Step]] = {row["id"]: gold_steps(row) for row in rows}

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in self._rows if row["id"] == name)

    def agent(self, request: dict[str, Any], _place: int) -> str:
        """An answer of any of FastWorkflow's models."""
        text = "\n".join(str(message["content"]) for message in request["messages"])
        if "[[ ## statement ## ]]" in text:
            return extracted(request)
        row = next(row for row in self._rows if greeting(row) in text)
        wanted = wanted_fields(request)
        if "next_tool_name" in wanted:
            name, arguments = self._next_step(row, request)
            return written(
                {
                    "next_thought": "On to the next step.",
                    "next_tool_name": name,
                    "next_tool_args": json.dumps(arguments),
                }
            )
        told = " ".join(["It is done.", *row["outputs"]])
        values = {
            "final_answer": told,
            "next_steps": "1. Do what the customer wants.",
            "conversation_summary": told,
        }
        return written({name: values.get(name, "As planned.") for name in wanted if name != "completed"})

    def customer(self, request: dict[str, Any], _place: int) -> str:
        """The customer: says who they are, agrees to everything, and leaves when it is done."""
        system, *talk = request["messages"]
        row = next(row for row in self._rows if row["sim_user_prompt"] in system["content"])
        heard = str(talk[-1]["content"])
        if QUESTION in heard:
            return "yes"
        return "Thank you! ###STOP###" if "It is done." in heard else greeting(row)

    def _next_step(self, row: dict[str, Any], request: dict[str, Any]) -> Step:
        trajectory = str(request["messages"][-1]["content"])
        done = len(set(re.findall(r"\[\[ ## tool_name_(\d+) ## \]\]", trajectory)))
        steps = self.steps[row["id"]]
        return steps[min(done, len(steps) - 1)]


def greeting(row: dict[str, Any]) -> str:
    """How the customer of a row begins; found again in every request about it."""
    return f"Hello, this is about case {row['id']}."


def gold_steps(row: dict[str, Any], *, question: bool = True) -> list[Step]:
    """The row's actions as FastWorkflow's agent makes them, with a question to the user before the last."""
    steps: list[Step] = [
        ("execute_workflow_query", {"command": command(action["name"], action["arguments"])})
        for action in row["actions"]
    ]
    if question:
        steps.insert(len(steps) - 1, ("ask_user", {"clarification_request": QUESTION}))
    return [*steps, ("finish", {})]


def command(name: str, arguments: dict[str, Any]) -> str:
    """A command with its parameters in tags, as the agent is told to write it."""
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    return " ".join([name, *(f"<{key}>{value}</{key}>" for key, value in values.items())])


def extracted(request: dict[str, Any]) -> str:
    """The parameters of a command, for which a model is asked where one is empty or missing."""
    asked = str(request["messages"][-1]["content"])
    values = dict(re.findall(r"<(\w+)>(.*?)</\1>", asked))
    wanted = re.findall(r"`(\w+)`", asked[asked.rindex("Respond with a JSON object") :])
    return json.dumps({name: values.get(name, "") for name in wanted} | {"reasoning": "It says so."})


def wanted_fields(request: dict[str, Any]) -> list[str]:
    """The fields that a request asks for, from the end of its last message."""
    last = str(request["messages"][-1]["content"])
    closing = last[last.rindex("Respond with the corresponding output fields") :]
    return list(dict.fromkeys(_WANTED.findall(closing)))


def written(fields: Fields) -> str:
    """Fields in the format that FastWorkflow's models answer in."""
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in {**fields, "completed": ""}.items())
