"""Asking a model again: what counts as a retry, and what does not."""

import asyncio
from collections.abc import Iterator

import pytest
from virtual_provider import answer, now, refused
from virtual_time import simulate

from reward_kit.agent.base.types import Completion
from reward_kit.agent.models.calls import Call
from reward_kit.agent.models.limiter import Limiter
from reward_kit.agent.models.limiter import ask as ask_model
from reward_kit.errors import ModelError, ModelInputError, ModelSetupError


class Model:
    """Gives the outcomes in order; the last one again and again."""

    def __init__(self, *outcomes: ModelError | None) -> None:
        self._outcomes: Iterator[ModelError | None] = iter(outcomes)
        self._last: ModelError | None = None
        self.asked: list[float] = []

    async def attempt(self) -> Completion | ModelError:
        self.asked.append(now())
        self._last = next(self._outcomes, self._last)
        await asyncio.sleep(0.1)
        return self._last or answer()


def ask(model: Model, *, retries: int = 3, limiter: bool = False, before: int = 0) -> Completion:
    async def main() -> Completion:
        through = Limiter("stub", ceiling=4) if limiter else None
        for _ in range(before):
            await ask_model(Model(None).attempt, Call(), retries=0, backoff=1.0, limiter=through)
        return await ask_model(model.attempt, Call(), retries=retries, backoff=1.0, limiter=through)

    return simulate(main())


@pytest.mark.parametrize("limiter", [False, True])
class TestEitherWay:
    def test_the_first_good_answer_is_taken(self, limiter: bool) -> None:
        model = Model(refused(500), refused(503), None)
        assert ask(model, limiter=limiter).message["content"] == "Hi"
        assert len(model.asked) == 3

    def test_a_fault_that_stays_is_raised_after_the_last_retry(self, limiter: bool) -> None:
        model = Model(refused(500))
        with pytest.raises(ModelError, match="HTTP 500"):
            ask(model, retries=2, limiter=limiter)
        assert len(model.asked) == 3

    def test_a_fault_that_cannot_pass_is_raised_at_once(self, limiter: bool) -> None:
        model = Model(ModelInputError("refuses the conversation", status=400))
        with pytest.raises(ModelInputError):
            ask(model, limiter=limiter)
        assert len(model.asked) == 1

    def test_a_wait_that_is_asked_for_is_kept(self, limiter: bool) -> None:
        model = Model(refused(429, retry_after=20.0), None)
        ask(model, limiter=limiter)
        assert 20.0 <= model.asked[1] - model.asked[0] <= 23.2


class TestWithALimiter:
    def test_what_a_call_waits_at_the_limiter_is_not_what_its_answer_took(self) -> None:
        model = Model(refused(429, retry_after=20.0), None)
        given = ask(model, limiter=True)
        assert given.seconds == pytest.approx(0.2)
        assert given.waited == pytest.approx(model.asked[1] - model.asked[0] - 0.1)

    def test_being_refused_by_a_provider_that_answers_others_is_no_retry(self) -> None:
        model = Model(*[refused(429, retry_after=1.0)] * 9, None)
        ask(model, retries=1, limiter=True, before=1)
        assert len(model.asked) == 10

    @pytest.mark.parametrize("status", [400, 422])
    def test_a_bad_request_before_any_answer_is_the_set_ups_fault(self, status: int) -> None:
        bad = ModelError(f"HTTP {status}: no such argument", place="model m", status=status)
        with pytest.raises(ModelSetupError, match=rf"HTTP {status}: no such argument.*--model-arg"):
            ask(Model(bad), limiter=True)
        with pytest.raises(ModelError) as raised:
            ask(Model(bad), limiter=True, before=1)
        assert type(raised.value) is ModelError

    def test_without_retries_nothing_is_asked_twice(self) -> None:
        model = Model(refused(429, retry_after=1.0), None)
        with pytest.raises(ModelError):
            ask(model, retries=0, limiter=True, before=1)
        assert len(model.asked) == 1
