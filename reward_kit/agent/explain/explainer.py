"""Having a model judge the failed rollouts of an evaluation, each once."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import excerpt
from reward_kit.agent.base.types import Usage
from reward_kit.agent.explain.context import context_of, prompt, prompt_version
from reward_kit.agent.explain.explanation import Explanation, Explanations
from reward_kit.agent.explain.verdict import Verdict, read_verdict
from reward_kit.agent.models.answer_parts import text_in
from reward_kit.agent.records.broken_off import BrokenOff
from reward_kit.agent.records.rollout_record import load_rollout
from reward_kit.agent.rollout.budgets import spent_of
from reward_kit.errors import ModelError, ModelInputError, ModelSetupError, StorageError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Sequence
    from pathlib import Path

    from reward_kit.agent.base.types import Message, Model
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.models.limiter import Limiters
    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.records.rollout_record import RolloutRecord
    from reward_kit.agent.storage.store import Store

ASKED = 2
"""So often a model is asked for an answer that can be used."""
GIVE_UP_AFTER = 3
"""Rollouts in a row for which the model could not be reached."""
LONGEST_PATIENCE = 120.0
"""Seconds that a model which does not answer is waited for: ``--resume`` makes up for what is missing."""
LONGEST_SAID = 120
"""Characters of an answer that cannot be used which its problem tells."""
SHORT_RESULT = 1000
"""Characters of a tool's result where the whole conversation does not fit into the model."""

NOTE = "explanation"
"""Kind of the notes in the evaluation's store that hold explanations."""

logger = logging.getLogger(__name__)


def make_explainer(config: EvaluationConfig, limiters: Limiters | None = None) -> Explainer | None:
    """The explainer that ``--explain`` asks for; ``ModelSetupError`` where its model cannot be called.

    Its calls go through ``limiters``, those of the rollouts where these ask models, so that what the rollouts
    have used of a limit counts; without, through limiters of its own.
    """
    if config.explain is None:
        return None
    from reward_kit.agent.models.limiter import Limiters
    from reward_kit.agent.models.remote import remote_model

    if limiters is None or not limiters.used:
        limiters = Limiters(
            ceiling=config.max_concurrency,
            rpm=config.rpm,
            tpm=config.tpm,
            patience=min(config.patience, LONGEST_PATIENCE),
        )
    model = remote_model(
        config.explain,
        client=config.client,
        retries=config.retries,
        timeout=config.call_timeout,
        limiters=limiters,
    )
    return Explainer(model, concurrency=config.max_concurrency, max_cost=config.max_cost, seed=config.seed)


def _stored(store: Store) -> list[Explanation]:
    try:
        return [Explanation.from_json(note) for note in store.notes(NOTE)]
    except (KeyError, TypeError) as error:
        raise StorageError("holds a damaged explanation", place=str(store.path)) from error


@dataclass(slots=True)
class Explainer:
    """Judges failed rollouts with ``model``, at most ``concurrency`` at a time.

    No more are begun once the rollouts and the judgements together have cost ``max_cost`` US dollars.
    ``result`` is what there is, also after ``explain`` was cancelled.
    """

    model: Model
    concurrency: int = 10
    max_cost: float | None = None
    seed: int | None = None
    result: Explanations | None = None
    _spent: float = 0.0
    _unreachable: int = 0
    _reason: str | None = None

    async def explain(self, outcomes: Sequence[RolloutOutcome], store: Store, *, spent: float = 0.0) -> None:
        """Judge those of ``outcomes`` that failed and are not judged yet by this model with this prompt.

        ``store`` is that of the evaluation, ``spent`` what the rollouts have cost. A model that does not
        answer is reported in the result and never raised, ``StorageError`` is. Cancelling keeps what is made.
        """
        failed = [outcome for outcome in outcomes if outcome.judged and not outcome.success]
        self._reason = None
        self._unreachable = 0
        kept = _stored(store)
        try:
            self._spent = spent + sum(one.usage.cost for one in kept)
            made = self._known(kept)
            waiting = iter([outcome for outcome in failed if outcome.id not in made])
            await self._all(self._work(waiting, kept, store) for _ in range(self.concurrency))
        finally:
            self.result = self._summary(failed, kept, store.path)
            closing = getattr(self.model, "close", None)
            if closing is not None:
                await closing()

    async def _all(self, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Wait for all; the first error, or a cancellation, ends the others."""
        workers = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _known(self, kept: Sequence[Explanation]) -> dict[str, Explanation]:
        return {
            one.rollout: one
            for one in kept
            if one.model == self.model.name and one.prompt == prompt_version()
        }

    def _summary(
        self, failed: Sequence[RolloutOutcome], kept: Sequence[Explanation], path: Path
    ) -> Explanations:
        """What there is on the ``failed`` rollouts."""
        made = self._known(kept)
        of_these = [made[outcome.id] for outcome in failed if outcome.id in made]
        return Explanations(
            model=self.model.name,
            made=of_these,
            missing=len(failed) - len(of_these),
            reason=self._reason,
            path=path,
        )

    async def _work(self, waiting: Iterator[RolloutOutcome], kept: list[Explanation], store: Store) -> None:
        for outcome in waiting:
            if not self._may_start():
                return
            try:
                record = load_rollout(store.path / outcome.id)
            except StorageError as error:
                self._not_judged(str(error))
                continue
            try:
                explanation = await self._judge(record)
            except ModelSetupError as error:
                self._not_judged(str(error))
                self._unreachable = GIVE_UP_AFTER
            except ModelError as error:
                logger.debug("no explanation of %s", outcome.id, exc_info=error)
                self._not_judged(str(error))
                self._unreachable += 1
            else:
                self._unreachable = 0
                # not in a thread: a cancellation must not come in between
                used = BrokenOff(1, {"explanation": explanation.usage})
                store.add_note(NOTE, explanation.to_json(), rollout=explanation.rollout, used=used)
                kept.append(explanation)

    def _may_start(self) -> bool:
        if self._unreachable >= GIVE_UP_AFTER:
            return False
        if self.max_cost is not None and self._spent >= self.max_cost:
            self._not_judged(f"{spent_of(self._spent, self.max_cost)} (--max-cost)")
            return False
        return True

    def _not_judged(self, reason: str) -> None:
        """The first reason is the one to tell."""
        self._reason = self._reason or reason

    async def _judge(self, record: RolloutRecord) -> Explanation:
        usage = Usage()
        clock = asyncio.get_running_loop().time()
        verdict: Verdict | None = None
        problem: str | None = None
        for longest_result in (None, SHORT_RESULT):
            try:
                verdict = await self._verdict(record, longest_result, usage)
            except ModelInputError as error:
                problem = str(error)
            except ValueError as error:
                problem = str(error)
                break
            else:
                problem = None
                break
        return Explanation(
            rollout=record.id,
            row_id=record.row_id,
            index=record.index,
            model=self.model.name,
            prompt=prompt_version(),
            author=verdict.author if verdict else None,
            fault=verdict.fault if verdict else None,
            sentence=verdict.sentence if verdict else None,
            problem=problem,
            usage=usage,
            seconds=asyncio.get_running_loop().time() - clock,
        )

    async def _verdict(self, record: RolloutRecord, longest_result: int | None, usage: Usage) -> Verdict:
        """Ask, and once more if the answer cannot be used; then ``ValueError`` tells why."""
        messages: list[Message] = [
            {"role": "system", "content": prompt("judge")},
            {"role": "user", "content": context_of(record, longest_result=longest_result)},
        ]
        problem, said = "", ""
        for _ in range(ASKED):
            answer = await self.model.complete(messages, seed=self.seed)
            usage.add(answer.usage)
            self._spent += answer.usage.cost
            text = text_in(answer.message)
            try:
                return read_verdict(text)
            except ValueError as error:
                problem = str(error)
                said = excerpt(text, LONGEST_SAID) or f"it is empty (finish reason {answer.finish_reason})"
                messages = [
                    *messages,
                    {"role": "assistant", "content": text or "(nothing)"},
                    {"role": "user", "content": prompt("again").format(problem=problem)},
                ]
        raise ValueError(f"{ASKED} answers could not be used, the last because {problem}: {said}")
