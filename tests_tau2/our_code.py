"""The same trajectories on a ported bundle, answered in the form of ``their_code.py``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

from their_data import canonical, digest, without_chance

from reward_kit.agent import TaskBundle
from reward_kit.agent.base.worker_thread import run_sync
from reward_kit.agent.rollout.gold import replay_gold_calls
from reward_kit.agent.rollout.rollout import RolloutLimits
from reward_kit.agent.tau.tau2 import reward

if TYPE_CHECKING:
    from pathlib import Path

    from trajectories import Domain

    from reward_kit.agent.rollout.episode import Episode

STOPS = {"agent_stop": "agent_done", "too_many_errors": "agent_error"}
OBJECTS = "SELECT kind, id, json FROM objects ORDER BY rowid"
OF_KIND = "SELECT id, json FROM objects WHERE kind = ? ORDER BY rowid"
OBJECT = "SELECT json FROM objects WHERE kind = ? AND id = ?"
MISSING = "absent"
MANY = RolloutLimits(max_steps=10_000)


Changed = dict[tuple[str, str], str | None]


class Bundle:
    """A ported bundle; ``play`` answers as the oracle does."""

    def __init__(self, dataset: Path, domain: Domain, *, values: bool = False) -> None:
        self.bundle = TaskBundle.load(str(dataset))
        self.tasks = {(task.row.metadata or {})["tau2_id"]: task for task in self.bundle.tasks}
        self.domain, self.values = domain, values
        self.notes: dict[str, str] = {}
        self.bases: dict[int, dict[str, str]] = {}
        self.gold: dict[str, Any] = {}
        self.verdicts: list[bool] = []
        self.asked: list[str] = []
        reward.ask_judge = self._judge

    def play(self, trajectory: dict[str, Any]) -> dict[str, Any]:
        """The answers, changes and parts of the reward."""
        task = self.tasks[trajectory["task_id"]]
        self.verdicts, self.asked = trajectory["judge"], []
        mode = {"mode": "solo"} if trajectory["solo"] else {}
        with self.bundle.episode(task, limits=MANY, **mode) as episode:
            if id(episode.base) not in self.bases:
                self.bases[id(episode.base)] = self._everything(episode)
            answer: dict[str, Any] = {"state": self.bases[id(episode.base)]}
            changes: Changed = {}
            answer["calls"] = [self._step(episode, entry, changes) for entry in trajectory["calls"]]
            end = trajectory["end"]
            episode.stop(STOPS.get(end, end))
            named = f"{task.row.id} {trajectory['solo']}"
            if named not in self.gold and task.row.actions is not None:
                assert episode.base is not None
                gold = run_sync(replay_gold_calls(episode.task, episode.base, seed=0))
                self.gold[named] = gold.database
            result = episode.finish_sync(self.gold.get(named))
            answer |= {"reward": result.score, "reason": result.reason, "asked": self.asked}
            answer["parts"] = {name: metric.score for name, metric in (result.metrics or {}).items()}
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for database in self.gold.values():
            database.close()
        self.bundle.close()

    def _step(self, episode: Episode, entry: dict[str, Any], changes: Changed) -> Any:
        if "say" in entry:
            if entry["by"] == "agent":
                episode.reply(entry["say"])
            else:
                episode.history.say("user", {"role": "user", "content": entry["say"]})
            return None
        call_id = None
        if "text" in entry:
            function = {"name": entry["name"], "arguments": json.dumps(entry["arguments"])}
            call = {"id": None, "type": "function", "function": function}
            message = {"role": "assistant", "content": entry["text"], "tool_calls": [call]}
            call_id = episode.history.announce(message)["tool_calls"][0]["id"]
        result = episode.call_sync(entry["name"], entry["arguments"], by=entry["by"], call_id=call_id)
        return {
            "content": without_chance(result.content),
            "error": result.status != "ok",
            "changed": self._changed(episode, changes),
        }

    # --- states

    def _changed(self, episode: Episode, before: Changed) -> dict[str, Any]:
        """The units that have changed since the last call."""
        now = {
            (one.key["kind"], one.key["id"]): (one.after or {}).get("json")
            for one in episode.changes()
            if one.table == "objects" and one.key is not None
        }
        differ = {key for key in {*now, *before} if now.get(key, MISSING) != before.get(key, MISSING)}
        before.clear()
        before.update(now)
        found: dict[str, Any] = {}
        db = episode.database.sync
        for kind, key in differ:
            unit, by_object = self._unit(kind, key)
            if by_object:
                text = db.fetch_val(OBJECT, (kind, key))
                found[unit] = None if text is None else self._shown(json.loads(text))
            elif unit not in found:
                found[unit] = self._shown(self._field(unit, db.fetch_all(OF_KIND, (kind,))))
        return dict(sorted(found.items()))

    def _unit(self, kind: str, key: str) -> tuple[str, bool]:
        side, name = ("user", kind.removeprefix("user.")) if kind.startswith("user.") else ("agent", kind)
        unit = f"{side}:{name}"
        by_object = f"{unit}/{key}" in self.domain.state or f"{unit}" not in self.domain.state
        return (f"{unit}/{key}", True) if by_object else (unit, False)

    def _field(self, unit: str, rows: Any) -> Any:
        found = {key: json.loads(text) for key, text in rows}
        form = self.domain.forms[unit]
        if form == "table":
            return {"data": found, "notes": self.notes[unit]}
        if form == "list":
            return list(found.values())
        return found if form == "dict" else next(iter(found.values()))

    def _everything(self, episode: Episode) -> dict[str, str]:
        """The hashes of all units of the row's base."""
        kinds: dict[str, list[tuple[str, str]]] = {}
        for kind, key, text in episode.database.sync.fetch_all(OBJECTS):
            kinds.setdefault(kind, []).append((key, text))
        self.notes = {f"agent:{name}": json.loads(text) for name, text in kinds.pop("notes", [])}
        empty = {
            name: [] for name in (unit.removeprefix("agent:") for unit in self.notes) if name not in kinds
        }
        found = {}
        for kind, rows in {**kinds, **empty}.items():
            unit, by_object = self._unit(kind, rows[0][0] if rows else "")
            if by_object:
                found |= {self._unit(kind, key)[0]: self._shown(json.loads(text)) for key, text in rows}
            else:
                found[unit] = self._shown(self._field(unit, rows))
        return found

    def _shown(self, value: Any) -> str:
        return without_chance(canonical(value)) if self.values else digest(canonical(value))

    # --- the judge

    def _judge(self, name: str, messages: list[dict[str, Any]], read: Any, **_: Any) -> Any:
        del name
        self.asked.append(digest(json.dumps([message["content"] for message in messages])))
        results = [
            {"expectedOutcome": f"{number}", "metExpectation": met, "reasoning": "stub"}
            for number, met in enumerate(self.verdicts)
        ]
        return read(json.dumps({"results": results}))
