"""Agents and users of one's own, given from Python as they are."""

from __future__ import annotations

import re
import threading
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from flight_bundle import GOLD, Bundle

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.players.names import is_own, name_of
from reward_kit.errors import BundleError, RewardKitError, UsageError

HERE = __name__
ROWS = [{"actions": GOLD, "n_rollouts": 2}]


class Counting:
    """Says which of its turns this is, and with which word."""

    def __init__(self, word: str = "turn") -> None:
        self.word = word
        self.turns = 0

    async def respond(self, rollout: Any) -> str:
        self.turns += 1
        return f"{self.word} {self.turns}"

    def make(self) -> Counting:
        return Counting(f"made by {self.word}")


class Called:
    """Is called as a function is."""

    async def __call__(self, rollout: Any) -> str:
        return "called"


async def waiting(rollout: Any, word: str = "function") -> str:
    answer = await rollout.call_tool("no_such_tool", {})
    return f"{word}: {answer[:6]}"


def blocking(rollout: Any) -> str:
    assert threading.current_thread() is not threading.main_thread()
    return str(rollout.call_tool("no_such_tool", {}))[:6]


def factory() -> Counting:
    return Counting("factory")


class Leaving:
    """A user that hears one line."""

    async def respond(self, rollout: Any) -> str:
        return "###STOP###" if rollout.turns else "Hello"


def said(result: EvaluationResult) -> list[str]:
    """The last word of each rollout."""
    return sorted(record.messages[-1]["content"] for record in result.records())


@pytest.mark.parametrize(
    ("agent", "lines", "name"),
    [
        (Counting, ["turn 1", "turn 1"], "Counting"),
        (Counting("shared"), ["shared 1", "shared 2"], "Counting()"),
        (factory, ["factory 1", "factory 1"], "factory"),
        (waiting, ["function: Error:"] * 2, "waiting"),
        (blocking, ["Error:"] * 2, "blocking"),
        (partial(waiting, word="partial"), ["partial: Error:"] * 2, "waiting()"),
        (Counting("bound").make, ["made by bound 1"] * 2, "Counting().make"),
        (Called(), ["called"] * 2, "Called()"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_plays_and_is_named(bundle: Bundle, agent: Any, lines: list[str], name: str) -> None:
    result = agent_eval(bundle.dataset, agent=agent, user="none")
    assert (result.status, said(result)) == ("complete", lines)
    record = result.record(result.outcomes[0])
    assert result.configuration["agent"] == record.agent == f"{HERE}:{name}"
    assert is_own(record.agent)


def test_a_user_is_given_in_the_same_way(bundle: Bundle) -> None:
    result = agent_eval(bundle.dataset, agent=Counting, user=Leaving)
    assert [outcome.stop_reason for outcome in result.outcomes] == ["user_stop"] * 2
    record = result.record(result.outcomes[0])
    assert record.user == result.configuration["user"] == f"{HERE}:Leaving"


class Kept(Counting):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def check(self, task: Any) -> None:
        self.events.append(f"check {task.id}")

    async def open(self) -> None:
        self.events.append("open")

    async def close(self) -> None:
        self.events.append("close")


def test_an_object_is_opened_and_closed_once_for_all_rollouts(bundle: Bundle) -> None:
    kept = Kept()
    agent_eval(bundle.dataset, agent=kept, user="none", n_rollouts=3)
    assert (kept.turns, kept.events) == (3, ["check flight.booking.001", "open", "close"])


class Costly(Kept):
    """Notes each that is made, and each that is closed."""

    made: ClassVar[list[Costly]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)


@pytest.mark.parametrize("role", ["agent", "user"])
def test_one_is_made_for_each_rollout_and_closed_after_it(bundle: Bundle, role: str) -> None:
    Costly.made.clear()
    bundle.rows(*({"id": f"row.{number}"} for number in range(5)))
    players = {"agent": "gold", "user": "none", role: Costly}
    if role == "user":
        players["agent"] = waiting
    agent_eval(bundle.dataset, **players, n_rollouts=2, max_steps=1)
    assert len(Costly.made) == 10
    assert all(one.events.count("close") == 1 for one in Costly.made)


class Empty: ...


class Blunt:
    def respond(self, rollout: Any) -> str:
        return "Hi"


class Needy:
    def __init__(self, model: str) -> None: ...

    async def respond(self, rollout: Any) -> str:
        return "Hi"


class Policy:
    """A model, and no agent."""

    name = "policy"

    async def complete(self, messages: Any, **options: Any) -> Any:
        raise NotImplementedError


class Unconfigured(Counting):
    @classmethod
    def configured(cls, config: Any, tasks: Any) -> None: ...


async def nothing_taken() -> str:
    return "Hi"


def broken() -> Any:
    raise KeyError("settings")


NO_RESPOND = "which has no `async def respond(self, rollout)`"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (7, "=7: 7 is int, not a class or function that makes the {}"),
        (Empty, f"=Empty: Empty() gave Empty, {NO_RESPOND}"),
        (Blunt(), f"=Blunt(): Blunt() is Blunt, {NO_RESPOND}"),
        (nothing_taken, "=nothing_taken: nothing_taken is `async def`, but not a function of one argument"),
        (lambda: nothing_taken(), f"=lambda: lambda() gave coroutine, {NO_RESPOND}"),
        (Needy, "=Needy: Needy() raised TypeError: Needy.__init__() missing 1 required positional argument"),
        (Unconfigured, "=Unconfigured: Unconfigured.configured() gave NoneType, not a class or function"),
        (broken, "=broken: broken() raised test_own_players.py:"),
        (Policy(), '=Policy(): this is a model. Give it as models={"{}": Policy()}.'),
    ],
    ids=lambda value: "",
)
@pytest.mark.parametrize("role", ["agent", "user"])
@pytest.mark.filterwarnings("error")
def test_what_cannot_play_is_refused_at_first(bundle: Bundle, role: str, given: Any, told: str) -> None:
    others = {"agent": Counting, "user": "none"}
    with pytest.raises(RewardKitError) as caught:
        agent_eval(bundle.dataset, **{**others, role: given})
    assert str(caught.value).startswith(f"{role}{told.replace('{}', role)}")
    assert "\n" not in str(caught.value)
    assert not list(Path().glob("runs/evals/*.db"))


class Checks(Counting):
    def check(self, task: Any) -> None:
        raise ValueError(f"not {task.id}")


class ChecksLater(Counting):
    async def check(self, task: Any) -> None: ...


@pytest.mark.parametrize("role", ["agent", "user"])
def test_what_a_check_raises_refuses_the_row(bundle: Bundle, role: str) -> None:
    bundle.rows({"id": "first", "sim_user_prompt": "Ask."})
    with pytest.raises(BundleError) as caught:
        agent_eval(bundle.dataset, **{"agent": Counting, "user": "none", role: Checks})
    told = rf"task\.jsonl:1: check\(\) of the {role} {HERE}:Checks raised .*py:\d+: ValueError: not first"
    assert re.fullmatch(told, str(caught.value)), caught.value
    with pytest.raises(BundleError, match=rf"check\(\) of the {role} .*ChecksLater is `async def`\. Write"):
        agent_eval(bundle.dataset, **{"agent": Counting, "user": "none", role: ChecksLater})


@pytest.mark.parametrize("option", [{"workers": 2}, {"ray": "default"}])
@pytest.mark.parametrize("players", [{"agent": Counting, "user": "none"}, {"agent": "gold", "user": Leaving}])
def test_it_goes_to_no_other_process(bundle: Bundle, option: dict[str, Any], players: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"models, agents or users given from Python.*module:factory"):
        agent_eval(bundle.dataset, **players, **option)


@pytest.mark.parametrize("role", ["agent", "user"])
@pytest.mark.parametrize("kind", ["local", "object", "method"])
def test_what_no_import_finds_is_to_be_given_again(bundle: Bundle, role: str, kind: str) -> None:
    class Local(Counting):
        pass

    given: dict[str, Any] = {"local": Local, "object": Counting("object"), "method": Counting("bound").make}
    players = {"agent": Counting, role: given[kind]}
    agent_eval(bundle.dataset, **{"user": "none", **players}, n_rollouts=1, eval_id="begun")
    with pytest.raises(BundleError) as caught:
        agent_eval(resume="begun", n_rollouts=2)
    _, _, attribute = name_of(given[kind]).partition(":")
    told = str(caught.value)
    assert told.startswith(f"--{role} {name_of(given[kind])}: {HERE} has no {attribute}; it has Counting, ")
    assert told.endswith(f". If it was given from Python, give it again: agent_eval(resume=..., {role}=...).")
    assert len(agent_eval(resume="begun", n_rollouts=2, **{role: given[kind]}).outcomes) == 2


class SeesAnswers(Counting):
    sees_answers = True


def test_one_object_that_sees_answers_cannot_play_all_rollouts(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="cannot play all rollouts, since it sees the answers of each"):
        agent_eval(bundle.dataset, agent=SeesAnswers(), no_sim_user=True)
