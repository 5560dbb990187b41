"""τ²-bench's own code as the oracle: a program that needs its dependencies and nothing of Reward Kit.

    their_code.py describe [DOMAIN ...]    # one JSON object: tasks, tools and values for arguments
    their_code.py play [--plain] [--values] < trajectories.jsonl > answers.jsonl

Each trajectory is ``{"domain", "task_id", "solo", "calls", "end", "judge", "variant"}``. An entry of
``calls`` is ``{"by", "name", "arguments"}``, with a ``text`` if the message has one beside the call, or
``{"by", "say"}``. The answer has for each call its ``content``, its ``error`` flag and the ``changed`` units
of both databases, at the end each part of the reward, and the reward.

``judge`` holds the verdicts of a stub in place of the model that judges assertions in natural language.
The attributes of classes that τ²-bench changes in a simulation are reset before the next: each is judged as
in a fresh process. Two shortcuts make the oracle fast: data stays loaded, and databases of many objects are
compared by the objects that were touched. ``--plain`` takes neither. ``--values`` prints the units in place
of their hashes. Documents are loaded in the order of their file names, which decides between equal scores;
τ²-bench loads them in that of the file system.
"""

from __future__ import annotations

import copy
import gc
import inspect
import json
import os
import pickle
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from their_data import MISSING, OF_MANY_OBJECTS, Pool, State, digest, plain_value, without_chance
from their_tasks import describe

DOMAINS = ("airline", "retail", "telecom", "banking_knowledge", "mock")
VARIANT = "bm25_grep"
GREETING = "Hi! How can I help you today?"


class Tau2:
    """The parts of τ²-bench that a trajectory needs."""

    def __init__(self, *, plain: bool) -> None:
        self.plain = plain
        warnings.filterwarnings("ignore", message="(?s).*[Ss]erializ")
        if not plain:  # half the time of all imports, for models that nobody asks
            names = ("litellm", "litellm.caching", "litellm.caching.caching", "litellm.main")
            sys.modules |= dict.fromkeys(names, MagicMock())
        import tau2.environment.toolkit as toolkit
        import tau2.evaluator.evaluator as evaluator
        import tau2.evaluator.evaluator_nl_assertions as judging
        from tau2.data_model import message, simulation, tasks
        from tau2.domains.telecom.user_tools import TelecomUserTools
        from tau2.environment.db import DB
        from tau2.registry import registry

        self.message, self.simulation, self.evaluator = message, simulation, evaluator
        self.registry, self.task_class, self.toolkit = registry, tasks.Task, toolkit
        self.phone, self.vpn = TelecomUserTools, copy.deepcopy(TelecomUserTools.default_vpn_details)
        self.verdicts: list[bool] = []
        self.asked: list[str] = []
        judging.generate = self._judge
        self.pools: dict[Any, Pool] = {}
        self.tasks_of: dict[str, dict[str, Any]] = {}
        self.evaluation_options = inspect.signature(evaluator.evaluate_simulation).parameters
        self._sort_documents()
        if not plain:
            self._keep_data(DB)

    # --- shortcuts

    def _keep_data(self, base: Any) -> None:
        import tau2.utils.io_utils as files
        import tau2.utils.pydantic_utils as hashing

        hash_of = self.toolkit.ToolKitBase.get_db_hash
        parsed: dict[tuple[Any, str], bytes] = {}

        def load_kept(cls: Any, path: Any) -> Any:
            if cls.__name__ in OF_MANY_OBJECTS:
                if cls not in self.pools:
                    self.pools[cls] = Pool(cls, Path(path).read_text(encoding="utf-8"))
                return self.pools[cls].take()
            if (cls, str(path)) not in parsed:
                parsed[cls, str(path)] = pickle.dumps(files.load_file(path))
            return cls.model_validate(pickle.loads(parsed[cls, str(path)]))

        def hash_of_changes(kit: Any) -> str:
            pool = self.pools.get(type(kit.db))
            if pool is None or not any(kit.db is each for each in pool.used):
                return hash_of(kit)
            changed = pool.changed(kit.db)
            return hashing.get_dict_hash(
                {
                    f"{name} {key}": plain_value(dict.get(getattr(kit.db, name), key, MISSING))
                    for name, key in changed
                }
            )

        base.load = classmethod(load_kept)
        self.toolkit.ToolKitBase.get_db_hash = hash_of_changes
        types: dict[Any, Any] = {}
        if hasattr(self.evaluator, "get_tool_types"):
            original = self.evaluator.get_tool_types

            def kept_types(kit: Any) -> Any:
                if type(kit) not in types:
                    types[type(kit)] = original(kit)
                return dict(types[type(kit)])

            self.evaluator.get_tool_types = kept_types
        self._keep_documents()

    def _sort_documents(self) -> None:
        """Load documents in the order of their file names, not in that of the file system."""
        try:
            from tau2.domains.banking_knowledge import data_model
        except ImportError:
            return
        kept: dict[str, Any] = {}
        load = data_model.KnowledgeBase.load

        def load_sorted(cls: Any, folder: str) -> Any:
            if self.plain or folder not in kept:
                found = load(folder).documents
                kept[folder] = cls(documents={key: found[key] for key in sorted(found, key="{}.json".format)})
            return kept[folder]

        data_model.KnowledgeBase.load = classmethod(load_sorted)

    def _keep_documents(self) -> None:
        try:
            from tau2.domains.banking_knowledge import environment, retrieval
        except ImportError:
            return
        pipelines: dict[str, Any] = {}
        for name in ("_create_kb_pipeline", "_create_grep_pipeline"):
            original = getattr(retrieval, name)

            def make(spec: Any, documents: Any, original: Any = original, name: str = name) -> Any:
                key = f"{name} {spec}"
                if key not in pipelines:
                    pipelines[key] = original(spec, documents)
                return pipelines[key]

            setattr(retrieval, name, make)
        environment.build_policy = lambda *_: "policy"

    # --- one trajectory

    def tasks(self, domain: str) -> dict[str, Any]:
        if domain not in self.tasks_of:
            load = self.registry.get_tasks_loader(domain)
            found = load(None) if "task_split_name" in inspect.signature(load).parameters else load()
            self.tasks_of[domain] = {task.id: task for task in found}
        return self.tasks_of[domain]

    def environment_options(self, trajectory: dict[str, Any], task: Any) -> dict[str, Any]:
        options = self.variant_of(trajectory["domain"], trajectory.get("variant", VARIANT))
        if options:
            from tau2.runner.build import _derive_read_log_allowlist

            options |= {"task": task, "read_log_allowlist": _derive_read_log_allowlist(task)}
        return options

    def variant_of(self, domain: str, variant: str = VARIANT) -> dict[str, Any]:
        return {"retrieval_variant": variant} if domain == "banking_knowledge" else {}

    def play(self, trajectory: dict[str, Any], *, values: bool) -> dict[str, Any]:
        """What τ²-bench answers to the calls, and how it judges them."""
        domain, solo = trajectory["domain"], trajectory.get("solo", False)
        task = self.tasks(domain)[trajectory["task_id"]]
        self.phone.default_vpn_details = copy.deepcopy(self.vpn)
        self.verdicts, self.asked = trajectory.get("judge") or [], []
        options = self.environment_options(trajectory, task)
        environment = self.registry.get_env_constructor(domain)(solo_mode=solo, **options)
        first = State(self, environment, values=values)
        begin = task.initial_state or SimpleNamespace(
            initialization_data=None, initialization_actions=None, message_history=None
        )
        history = list(begin.message_history or [])
        answer: dict[str, Any] = {}
        try:
            environment.set_state(begin.initialization_data, begin.initialization_actions, history)
        except Exception as error:  # noqa: BLE001 - whatever it raises is its answer
            return {"raises": f"{type(error).__name__}: {error}", "at": "start"}
        answer["start"] = first.changed()
        messages = history
        if not history and not solo:
            messages.append(self.message.AssistantMessage(role="assistant", content=GREETING))
        answer["calls"] = [
            self._step(environment, first, number, entry, messages)
            for number, entry in enumerate(trajectory["calls"])
        ]
        try:
            answer |= self._judged(trajectory, task, messages, options)
        except Exception as error:  # noqa: BLE001 - whatever it raises is its answer
            answer |= {"raises": f"{type(error).__name__}: {error}", "at": "end"}
        for pool in self.pools.values():
            pool.put_back()
        return answer

    def _step(self, environment: Any, state: State, number: int, entry: dict[str, Any], messages: Any) -> Any:
        role = "user" if entry["by"] == "user" else "assistant"
        make = self.message.UserMessage if role == "user" else self.message.AssistantMessage
        if "say" in entry:
            messages.append(make(role=role, content=entry["say"]))
            return None
        call = self.message.ToolCall(
            id=f"call_{number}", name=entry["name"], arguments=entry["arguments"], requestor=role
        )
        messages.append(make(role=role, content=entry.get("text"), tool_calls=[call]))
        result = environment.get_response(call)
        messages.append(result)
        return {
            "content": without_chance(result.content),
            "error": result.error,
            "changed": state.changed(),
        }

    def _judged(
        self, trajectory: dict[str, Any], task: Any, messages: list[Any], options: Any
    ) -> dict[str, Any]:
        end = trajectory.get("end", "user_stop")  # older versions know fewer reasons
        run = self.simulation.SimulationRun(
            id="run",
            task_id=task.id,
            start_time="2026-01-01T00:00:00",
            end_time="2026-01-01T00:00:00",
            duration=0.0,
            termination_reason=end if end in set(self.simulation.TerminationReason) else "max_steps",
            messages=messages,
        )
        given = {"env_kwargs": options} if "env_kwargs" in self.evaluation_options else {}
        info = self.evaluator.evaluate_simulation(
            run,
            task,
            self.evaluator.EvaluationType.ALL,
            trajectory.get("solo", False),
            trajectory["domain"],
            **given,
        )
        parts = {getattr(kind, "value", kind): value for kind, value in (info.reward_breakdown or {}).items()}
        details = {
            "DB": None if info.db_check is None else info.db_check.db_match,
            "ENV_ASSERTION": [each.met for each in info.env_assertions or []],
            "ACTION": [each.action_match for each in info.action_checks or []],
            "COMMUNICATE": [each.met for each in info.communicate_checks or []],
            "NL_ASSERTION": [each.met for each in info.nl_assertions or []],
        }
        return {"reward": info.reward, "parts": parts, "details": details, "asked": self.asked}

    def _judge(self, *, messages: list[Any], **_: Any) -> Any:
        self.asked.append(digest(json.dumps([message.content for message in messages])))
        results = [
            {"expectedOutcome": f"{number}", "metExpectation": met, "reasoning": "stub"}
            for number, met in enumerate(self.verdicts)
        ]
        return self.message.AssistantMessage(role="assistant", content=json.dumps({"results": results}))


def main() -> None:
    command, *rest = sys.argv[1:]
    checkout = os.environ.get("TAU2_BENCH")
    if checkout:
        sys.path.insert(0, str(Path(checkout) / "src"))
        os.environ.setdefault("TAU2_DATA_DIR", str(Path(checkout) / "data"))
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LOGURU_LEVEL", "CRITICAL")
    out, sys.stdout = sys.stdout, sys.stderr
    tau2 = Tau2(plain="--plain" in rest)
    if command == "describe":
        names = [name for name in rest or DOMAINS if name in tau2.registry.get_domains()]
        json.dump({name: describe(tau2, name) for name in names}, out)
        return
    gc.disable()  # millions of objects are kept
    for number, line in enumerate(sys.stdin):
        if number % 500 == 499:
            gc.collect()
        trajectory = json.loads(line)
        played = tau2.play(trajectory, values="--values" in rest)
        print(json.dumps(played), file=out, flush=True)


if __name__ == "__main__":
    main()
