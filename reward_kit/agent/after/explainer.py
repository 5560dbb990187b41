"""A model's judgements of the failed rollouts of an evaluation, each made once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.base.history import conversation_text
from reward_kit.agent.base.lenient_json import read_object
from reward_kit.agent.base.text import call_line, cut, json_text
from reward_kit.agent.base.types import Usage
from reward_kit.agent.base.worker_thread import sync_twin
from reward_kit.agent.config import EvaluationConfig
from reward_kit.agent.models.answer_parts import usable_answer
from reward_kit.agent.rollout.outcome import BrokenOff, total_usage
from reward_kit.agent.rollout.rollout import Budget
from reward_kit.agent.scoring.failures.classify import FAILURE_KINDS
from reward_kit.agent.store.layout import load_evaluation, paid_for_explanations, read_notes
from reward_kit.agent.store.loading import load_rollout
from reward_kit.agent.store.writer import Store
from reward_kit.errors import ModelError, ModelInputError, ModelSetupError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import Message, Model
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.store.layout import Named
    from reward_kit.agent.store.results import EvaluationResult

GIVE_UP_AFTER = 3
"""Rollouts in a row for which the model could not be reached."""
LONGEST_PATIENCE = 120.0
"""Seconds to wait for a model that does not answer: ``--resume`` makes up for what is missing."""
SHORT_RESULT = 1000
"""Characters of a tool's result if the whole conversation does not fit into the model."""
PROMPTS = Path(__file__).parent / "prompts"

logger = logging.getLogger(__name__)


@cache
def prompt(name: str) -> str:
    return (PROMPTS / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


@cache
def prompt_version() -> str:
    """A fingerprint of the prompts: judgements made with others are not reused."""
    return hashlib.sha256("\0".join((prompt("judge"), prompt("again"))).encode()).hexdigest()[:12]


def make_explainer(config: EvaluationConfig, model_args: dict[str, Any] | None = None) -> Explainer:
    """The explainer that ``--explain`` asks for; ``ModelSetupError`` if its model cannot be called."""
    from reward_kit.agent.models.calls import Limiters
    from reward_kit.agent.models.litellm import remote_model

    assert config.explain is not None, "a model is named"
    at_once, patience = config.max_concurrency, min(config.patience, LONGEST_PATIENCE)
    limits = Limiters(ceiling=at_once, rpm=config.rpm, tpm=config.tpm, patience=patience)
    options: dict[str, Any] = {"client": config.client, "retries": config.retries, "limiters": limits}
    model = remote_model(config.explain, timeout=config.call_timeout, model_args=model_args, **options)
    return Explainer(model, Budget(config.max_cost), concurrency=at_once, seed=config.seed)


async def explain_async(
    evaluation: Named,
    *,
    model: str,
    model_args: Mapping[str, Any] | None = None,
    output_dir: str | Path = "runs",
    max_cost: float | None = None,
    max_concurrency: int = 10,
) -> EvaluationResult:
    """Judge the failed rollouts of an evaluation, and store the judgements with it.

    ``model_args`` are settings of the model. ``max_cost`` (dollars) counts the rollouts and earlier
    judgements as well. Raises ``UsageError`` for an unknown evaluation, ``ModelSetupError`` if the model
    cannot be called, ``StorageError`` if the evaluation is damaged or being written.
    """
    options: dict[str, Any] = {"max_cost": max_cost, "max_concurrency": max_concurrency}
    config = EvaluationConfig(explain=model, model_args=model_args or {}, **options)
    explainer = make_explainer(config, dict(config.model_args))
    stored = load_evaluation(evaluation, output_dir)
    with Store(stored.log_path) as store:
        store.continue_run()
        try:
            spent = stored.spent.paid + paid_for_explanations(store.path)
            await explainer.explain(stored.outcomes, store, spent=spent)
        finally:
            stored = replace(stored, results={**stored.results, "explanations": explainer.result})
            store.add_note("results", stored.stored_results())
            stored.write()
    return stored


explain = sync_twin(explain_async)


@dataclass(slots=True)
class Explainer:
    """Judges failed rollouts with ``model``, at most ``concurrency`` at a time.

    No judgement begins once the rollouts and the judgements together have exhausted the ``budget``. If
    ``explain`` is cancelled, ``result`` holds what was made before.
    """

    model: Model
    budget: Budget
    concurrency: int = 10
    seed: int | None = None
    result: Explanations | None = None
    _spent: float = 0.0
    _unreachable: int = 0
    _reason: str | None = None

    async def explain(self, outcomes: Sequence[Outcome], store: Store, *, spent: float = 0.0) -> None:
        """Judge those of ``outcomes`` that failed and are not judged yet by this model with this prompt.

        ``store`` is that of the evaluation, ``spent`` is the cost so far. The result says if the model
        did not answer. Raises ``StorageError`` if an explanation cannot be stored.
        """
        failed = [outcome for outcome in outcomes if outcome.scored and not outcome.success]
        made: dict[str, Explanation] = {}
        try:
            self._spent = spent
            for one in stored_explanations(store.path):
                if (one.model, one.prompt) == (self.model.name, prompt_version()):
                    made[one.rollout] = one
            waiting = iter([outcome for outcome in failed if outcome.id not in made])
            async with asyncio.TaskGroup() as group:
                for _ in range(self.concurrency):
                    group.create_task(self._work(waiting, made, store))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            found = [made[outcome.id] for outcome in failed if outcome.id in made]
            self.result = Explanations(self.model.name, found, len(failed) - len(found), self._reason)
            if (closing := getattr(self.model, "close", None)) is not None:
                await closing()

    async def _work(self, waiting: Iterator[Outcome], made: dict[str, Explanation], store: Store) -> None:
        for outcome in waiting:
            used_up = self.budget.used_up(self._spent, 0)
            self._reason = self._reason or used_up
            if used_up is not None or self._unreachable >= GIVE_UP_AFTER:
                return
            try:
                explanation = await self._judge(load_rollout(store.path / outcome.id), store)
            except (ModelError, StorageError) as error:
                logger.debug("no explanation of %s", outcome.id, exc_info=error)
                self._reason = self._reason or str(error)
                if isinstance(error, ModelError):
                    self._unreachable += GIVE_UP_AFTER if isinstance(error, ModelSetupError) else 1
                continue
            self._unreachable = 0
            # not in a thread: a cancellation must not come in between
            with store.transaction():
                store.add_note(NOTE, explanation, explanation.rollout)
                store.add_usage(NOTE, BrokenOff(1, {"explanation": explanation.usage}))
            made[outcome.id] = explanation

    async def _judge(self, record: Trace, store: Store) -> Explanation:
        made = Explanation(record.id, record.row_id, record.index, self.model.name, prompt_version())
        clock = time.perf_counter()
        try:
            try:
                verdict = await self._verdict(context_of(record), made.usage)
            except ModelInputError:
                verdict = await self._verdict(context_of(record, longest_result=SHORT_RESULT), made.usage)
            made = replace(made, **verdict._asdict())
        except (ModelInputError, ValueError) as error:
            made = replace(made, problem=str(error))
        except (ModelError, asyncio.CancelledError):  # an answer may have been paid for before
            store.add_usage(NOTE, BrokenOff(int(made.usage.calls > 0), {"explanation": made.usage}))
            raise
        return replace(made, seconds=time.perf_counter() - clock)

    async def _verdict(self, context: str, usage: Usage) -> Judgement:
        """Ask, and once more if the answer cannot be used; then raises ``ValueError`` with the reason."""

        def count(used: Usage) -> None:
            usage.add(used)
            self._spent += used.paid

        messages: list[Message] = [
            {"role": "system", "content": prompt("judge")},
            {"role": "user", "content": context},
        ]
        return await usable_answer(
            self.model, messages, read_verdict, again=prompt("again"), count=count, seed=self.seed
        )


def context_of(record: Trace, *, longest_result: int | None = None) -> str:
    """All that is known of a rollout; results of tools are cut after ``longest_result`` characters."""
    fields, failure = record.fields, record.failure or {}
    actions, given = fields.get("actions") or (), int(fields.get("system_prompt") is not None)
    said = [
        (
            place,
            message if by == "agent" else message | {"role": message["role"].replace("assistant", "user")},
        )
        for place, by, message in record.both_sides()
        if by == "user" or place >= given
    ]
    differences = [json_text(row) for row in failure.get("rows") or ()]
    if failure.get("more_rows"):
        differences.append(f"and {failure['more_rows']} more")
    parts = {
        "what_the_user_was_told_to_want": fields.get("sim_user_prompt"),
        "rules_for_the_agent": fields.get("system_prompt"),
        "calls_that_solve_the_task": "\n".join(
            call_line(call["name"], call["arguments"], None) + " by the user" * (call.get("by") == "user")
            for call in actions
        ),
        "what_the_agent_had_to_say": "\n".join(record.outputs),
        "when_the_task_is_solved": None if actions else fields.get("end_goal_sql"),
        "conversation": conversation_text(
            (message for _, message in said),
            opening=sum(place < record.opening for place, _ in said),
            longest_result=longest_result,
        ),
        "how_it_ended": _ending(record),
        "differences_of_the_final_data": "\n".join(differences),
        "finding_of_the_program": "\n".join(_finding(record)),
    }
    return "\n\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in parts.items() if text)


def _ending(record: Trace) -> str:
    detail = f" ({record.stop_detail})" if record.stop_detail else ""
    reason = (record.result or {}).get("reason")
    reward = f"reward {record.reward:g}" if record.reward is not None else "no reward"
    return f"{record.stop_reason}{detail}; {reward}{f': {reason}' if reason else ''}"


def _finding(record: Trace) -> Iterator[str]:
    failure = record.failure or {}
    yield f"{failure.get('kind')}: {failure.get('detail')}"
    if failure.get("step") is not None:
        yield f"first wrong step: {failure['step']} (turn {failure.get('turn')})"
    for fault in record.user_faults or ():
        yield f"simulated user, turn {fault['turn']}: {fault['kind']}: {fault['detail']}"


Author = Literal["user", "agent", "environment"]
AUTHORS: tuple[Author, ...] = get_args(Author)
NOTE = "explanation"
"""Kind of the notes in the evaluation's store that hold explanations."""
LONGEST_SENTENCE = 600
MOST_TRIED = 60
"""Braces that are tried, from the last one: each costs a pass over the text behind it."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The judgement of one rollout.

    ``author`` is the side at fault, ``fault`` a failure class, ``sentence`` the reason; all
    three are None if the model's answer could not be used, and ``problem`` says why. ``prompt`` is the
    version of the prompt. ``usage`` counts all calls made for it; ``seconds`` with retries.
    """

    rollout: str
    row_id: str
    index: int
    model: str
    prompt: str
    author: Author | None = None
    fault: str | None = None
    sentence: str | None = None
    problem: str | None = None
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Explanations:
    """The judgements of an evaluation's failed rollouts; ``missing`` were not made, ``reason`` says why."""

    model: str
    made: Sequence[Explanation]
    missing: int
    reason: str | None

    @property
    def complete(self) -> bool:
        """True if the model was asked about every failed rollout, and some answer could be used."""
        return self.missing == 0 and bool(self.usable or not self.made)

    @property
    def usable(self) -> list[Explanation]:
        return [one for one in self.made if one.author is not None]

    @property
    def usage(self) -> Usage:
        """Tokens and cost, kept apart from those of agent and user."""
        return total_usage(one.usage for one in self.made)

    @property
    def authors(self) -> Counter[str]:
        """The rollouts by who was at fault."""
        return Counter(one.author for one in self.usable if one.author is not None)

    def faults(self, author: str) -> Counter[str]:
        return Counter(one.fault or "other" for one in self.usable if one.author == author)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as in the results file."""
        total = len(self.usable)
        shown = ("row_id", "index", "author", "fault", "sentence", "problem")
        authors: dict[str, Any] = {}
        for author, number in self.authors.most_common():
            faults = dict(self.faults(author).most_common())
            authors[author] = {"count": number, "percent": 100 * number / total, "faults": faults}
        rollouts = [{"id": one.rollout, **{name: getattr(one, name) for name in shown}} for one in self.made]
        return {
            "model": self.model,
            "made": len(self.made),
            "unusable": len(self.made) - total,
            "missing": self.missing,
            "reason": self.reason,
            "authors": authors,
            "usage": as_json(self.usage),
            "rollouts": rollouts,
        }


def stored_explanations(path: Path) -> list[Explanation]:
    """The explanations in the evaluation at ``path``; raises ``StorageError`` for a damaged one."""
    try:
        return [Explanation(**{**note, "usage": Usage(**note["usage"])}) for note in read_notes(path, NOTE)]
    except (KeyError, TypeError) as error:
        raise StorageError("holds a damaged explanation", place=str(path)) from error


def read_explanations(stored: EvaluationResult, counted: Mapping[str, Any]) -> Explanations:
    """The explanations of an evaluation by the model of ``counted``, the note of a run."""
    model, every = counted["model"], stored_explanations(stored.log_path)
    known = {one.rollout: one for one in every if one.model == model}
    failed = [known.get(one.id) for one in stored.outcomes if one.scored and not one.success]
    return Explanations(model, [*filter(None, failed)], failed.count(None), counted["reason"])


class Judgement(NamedTuple):
    """The side at fault, the kind of fault, and the reason in a sentence."""

    author: Author
    fault: str
    sentence: str


def read_verdict(text: str) -> Judgement:
    """The last object in ``text`` that is a verdict, with any text around it.

    Models that think aloud name several before they decide; an echo of the empty form is no verdict. Raises
    ``ValueError`` with the fault, in words for the model.
    """
    fault = ValueError("the answer holds no JSON object")
    braces = [found.start() for found in re.finditer(r"\{", text)]
    for position in islice(reversed(braces), MOST_TRIED):
        with suppress(ValueError):
            value, _ = read_object(text, position)
            try:
                return _verdict(value)
            except ValueError as error:
                fault = error
    raise fault


def _verdict(value: dict[str, Any]) -> Judgement:
    lowered = {_word(name): inner for name, inner in value.items()}
    author = next((each for each in AUTHORS if each == _word(lowered.get("author"))), None)
    if author is None:
        raise ValueError(f'"author" is none of {", ".join(AUTHORS)}')
    kind = _word(lowered.get("fault"))
    if kind not in FAILURE_KINDS:
        raise ValueError(f'"fault" is none of {", ".join(FAILURE_KINDS)}')
    sentence = " ".join(str(lowered.get("sentence") or "").split())
    if not sentence:
        raise ValueError('"sentence" is missing')
    return Judgement(author, kind, cut(sentence, LONGEST_SENTENCE))


def _word(value: Any) -> str:
    return str(value).strip().strip(".").lower().replace(" ", "_").replace("-", "_")
