"""``Rollout``: the handle by which agents, users and tools act on a rollout; and the limits of one.

It has no reference to the engine (``Episode``), the row or the database, so an agent under test cannot read
the answers through it::

    class Agent:
        async def respond(self, rollout: Rollout) -> str:
            await rollout.call_tool("take_seat", {"number": 3})
            return "Seat 3 is yours."
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import attrgetter
from time import time
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from reward_kit.agent.base.deadline import TimeLimit
from reward_kit.agent.base.encoding import LONGEST_VALUE, copied
from reward_kit.agent.base.history import History
from reward_kit.agent.base.text import foreign_name, foreign_text
from reward_kit.agent.base.types import (
    AGENT_STOPS,
    LATEST,
    ROLES,
    ModelCall,
    Role,
    RolloutStopped,
    StopReason,
    Usage,
    check_number,
    check_one_of,
)
from reward_kit.agent.bundles.files import AGENT_PROMPTS
from reward_kit.agent.models.function import FirstAnswers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from reward_kit.agent.base.history import Line
    from reward_kit.agent.base.types import Completion, Message, Role, Side, Usage
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.models.calls import Caller
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.rollout.trace import Trace


def episode_of(rollout: Rollout) -> Episode:
    """The episode of a handle, for servers and replays of this package; agents under test do without.

    Raises ``RolloutStopped`` if its state has been dropped.
    """
    episode = rollout._episode()  # noqa: SLF001 - of this module
    if episode is None:
        raise RolloutStopped("the rollout is over and its state has been dropped")
    return episode


def _of_episode(name: str) -> Any:
    """An attribute of the episode (``trace.seed``), which can only be read."""
    get = attrgetter(name)
    return property(lambda rollout: get(episode_of(rollout)))


class Rollout:
    """One rollout as an agent or a tool sees it: the conversation, the tools, and the agent's model."""

    __slots__ = ("__weakref__", "_episode", "id")
    _stops: ClassVar[tuple[str, ...]] = AGENT_STOPS
    _by: ClassVar[Side] = "agent"

    def __init__(self, episode: Episode) -> None:
        self.id = episode.trace.id
        """Unique among all rollouts, 32 hexadecimal digits."""
        self._episode = ref(episode)

    row_id: str = _of_episode("trace.row_id")
    """The id of the row that is played."""
    index: int = _of_episode("trace.index")
    """The number of this rollout among those of its row, from 0."""
    seed: int = _of_episode("trace.seed")
    """The seed for the agent's random choices; another one in each rollout."""
    steps: int = _of_episode("trace.steps")
    """Steps (model calls) of the agent so far."""
    max_steps: int = _of_episode("max_steps")
    """Steps that the agent may take."""
    turns: int = _of_episode("trace.turns")
    """The number of the agent's turn, from 1."""
    stop_reason: StopReason | None = _of_episode("trace.stop_reason")
    """None until the rollout is over."""
    parallel_tool_calls: bool = _of_episode("parallel_tool_calls")
    """False if only the first tool call of an answer is to be run."""
    stop_detail: str | None = _of_episode("trace.stop_detail")
    """A sentence on ``stop_reason``, if there is more to say."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The row's ``metadata``, copied."""
        metadata: dict[str, Any] = copied(episode_of(self).task.row.metadata or {})
        return metadata

    @property
    def system_prompt(self) -> str | None:
        """The text of the row's system prompt."""
        return episode_of(self).task.system_prompt

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools in the OpenAI format, which ``complete`` offers the agent's model; may be replaced."""
        return episode_of(self).tools

    @tools.setter
    def tools(self, tools: list[dict[str, Any]]) -> None:
        episode_of(self).tools = tools

    @property
    def messages(self) -> list[Message]:
        """The history in the OpenAI format, always valid for strict providers; copied."""
        messages: list[Message] = copied(episode_of(self).messages)
        return messages

    @property
    def lines(self) -> list[Line]:
        """The lines that agent and user have said aloud, without the system prompt and tool calls."""
        return list(episode_of(self).lines)

    def prompt_text(self, name: str) -> str | None:
        """The bundle's own prompt ``name`` of the agent's model (``act``, ``react``); None without one."""
        return episode_of(self).task.prompts.get(name) if name in AGENT_PROMPTS else None

    def call_tool(
        self, name: str, arguments: dict[str, Any] | str, *, call_id: str | None = None
    ) -> Coroutine[Any, Any, str]:
        """Run a tool and return its result as the text for a model, which may be ``Error: …``.

        ``arguments`` may be the JSON text that a model wrote. ``call_id`` names a call announced with
        ``record``; any other call is announced here. Raises ``RolloutStopped`` once the rollout is over, also
        after a terminal tool.
        """
        episode = self._episode() or episode_of(self)
        work = episode.content_of_call(name, arguments, call_id, self._by)
        return episode.pending_log.noted(work, "rollout.call_tool", name)

    def complete(
        self,
        messages: list[Message] | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        role: Role = "agent",
        again: int = 0,
    ) -> Coroutine[Any, Any, Completion]:
        """Ask a model: the agent's (one step) or the simulated user's.

        Without ``messages`` it sees the rollout's; without ``tools`` the agent's model gets the rollout's
        (``[]`` for none). ``again`` counts the answers to this that could not be used: the seed differs for
        each. Raises ``ModelError`` if no answer could be had and ``RolloutStopped`` once the rollout is over.
        """
        episode = self._episode() or episode_of(self)
        work = episode.complete(messages, tools=tools, role=role, again=again)
        return episode.pending_log.noted(work, "rollout.complete", messages)

    def record(self, message: Message) -> Message:
        """Append an assistant message with tool calls; returned as recorded, with ids unique in the history.

        The calls are then made with ``call_tool(..., call_id=...)`` and the ids of the returned message.
        """
        episode = episode_of(self)
        episode.check_running()
        recorded: Message = copied(episode.history_of(self._by).announce(message))
        return recorded

    def step(self) -> None:
        """Count a step of an agent that asks models with its own client.

        The tool calls and the reply of this turn are then not counted as steps. Raises ``RolloutStopped`` if
        no step is left. ``complete`` does this by itself.
        """
        episode_of(self).step()

    def count_usage(
        self,
        usage: Usage,
        *,
        model: str,
        role: Role | None = None,
        seconds: float = 0.0,
        waited: float = 0.0,
        started: float | None = None,
        finish_reason: str = "stop",
    ) -> None:
        """Count the tokens and the cost of a model call that was made with a client of the agent's own.

        It counts no step and checks no budget (``step`` does). Without ``role`` it is that of the side whose
        handle this is. ``seconds`` and ``waited`` (held back by limits) are durations, ``started`` is in Unix
        seconds, now if it is not given. Raises ``TypeError`` for a number that is negative, not finite or
        above 2**53, or brings a sum of the rollout above that.
        """
        role = self._by if role is None else role
        check_one_of("role", role, ROLES)
        check_number("seconds", seconds)
        check_number("waited", waited)
        check_number("started", 0.0 if started is None else started, LATEST)
        episode = episode_of(self)
        names = foreign_name(model), foreign_name(finish_reason or "unknown")
        begun = time() if started is None else started
        call = ModelCall(role, self.steps, self.turns, *names, usage, begun, seconds, waited=waited)
        episode.count_model_call(call)

    def stop(self, reason: StopReason, detail: str | None = None) -> None:
        """End the rollout; the first reason stays. ``call_tool`` and ``complete`` raise from now on.

        ``reason`` is ``agent_done`` or ``agent_error``, of a user ``user_stop``; raises ``ValueError`` for
        others, which are the engine's.
        """
        check_one_of("reason", reason, self._stops)
        episode_of(self).stop(reason, detail)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


class UserRollout(Rollout):
    """A rollout as its simulated user sees it: with the row's texts about the user, and the user's tools."""

    __slots__ = ()
    _stops: ClassVar[tuple[str, ...]] = ("user_stop",)
    _by: ClassVar[Side] = "user"

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The user's own tools in the OpenAI format, a list of the caller's own; empty without any."""
        return episode_of(self).task.user_registry.get_openai_tools()

    @tools.setter
    def tools(self, _tools: list[dict[str, Any]]) -> None:
        raise AttributeError("the user's tools are those of the row; name them in its field user_tools")

    @property
    def own_messages(self) -> dict[int, list[Message]]:
        """The user's tool calls and their results, by the number of ``lines`` before them; copied."""
        trace = episode_of(self).trace
        found: dict[int, list[Message]] = {}
        for place, messages in trace.user_messages.items():
            said = len(History(trace.messages[:place]).lines)
            found.setdefault(said, []).extend(copied(messages))
        return found

    @property
    def sim_user_prompt(self) -> str | None:
        """The row's ``sim_user_prompt``: who the user is and what they want."""
        return episode_of(self).task.sim_user_prompt

    def prompt_text(self, name: str) -> str | None:
        """The bundle's prompt ``name`` for the user's model; None without one.

        For ``user`` the row's ``sim_user_template`` comes first.
        """
        task = episode_of(self).task
        own = task.row.text("sim_user_template") if name == "user" else None
        return own.removesuffix("\n") if own else task.prompts.get(name)

    def send_back(self, line: str) -> bool:
        """Note that ``line`` ends too early and is not said; False if ``--guard-user`` does not allow that.

        It allows one line for each turn.
        """
        episode = episode_of(self)
        if not episode.limits.guard_user or episode.turns in episode.trace.sent_back:
            return False
        episode.trace.sent_back[episode.turns] = foreign_text(line, LONGEST_VALUE)
        return True


class TaskView:
    """A task as an agent or user may know it before any rollout; the argument of their ``check``.

    ``place`` is ``file:line`` of the row. ``sim_user_prompt`` is set for users only.
    """

    __slots__ = ("_get_tools", "id", "metadata", "place", "sim_user_prompt", "system_prompt")

    def __init__(self, task: Task, *, for_user: bool = False) -> None:
        self.sim_user_prompt = task.sim_user_prompt if for_user else None
        self.id = task.row.id
        self.place = task.row.place
        self.system_prompt = task.system_prompt
        self.metadata: dict[str, Any] = copied(task.row.metadata or {})
        self._get_tools = task.registry_of("user" if for_user else "agent").get_openai_tools

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools of the agent, or of the user, in the OpenAI format; a list of the caller's own."""
        return self._get_tools()


# -- limits of a rollout

PLAYERS = "its agent or user"


@dataclass(frozen=True, slots=True)
class Budget:
    """US dollars and tokens that may be used: the options ``<option>-cost`` and ``<option>-tokens``."""

    max_cost: float | None = None
    max_tokens: int | None = None
    option: str = "--max"

    def used_up(self, cost: float, tokens: int) -> str | None:
        """The limit that is reached and its option: ``5200 of 5000 tokens are used (--max-tokens)``."""
        if self.max_cost is not None and cost >= self.max_cost:
            most = self.max_cost  # of less than ten cents two digits
            decimals = 2 if most >= 0.1 or not most else min(12, 1 - math.floor(math.log10(most)))
            return f"{cost:.{decimals}f} of {most:.{decimals}f} USD are spent ({self.option}-cost)"
        if self.max_tokens is not None and tokens >= self.max_tokens:
            return f"{tokens} of {self.max_tokens} tokens are used ({self.option}-tokens)"
        return None


@dataclass(slots=True)
class RolloutLimits:
    """Limits of a rollout.

    ``max_steps`` overrides the row's. Answers from the cache count towards the ``budget`` like those that
    were paid for: a rollout comes out the same.
    ``timeout`` is in seconds for agent and user, ``reward_timeout`` for one call of the reward;
    ``reward_retries`` are further calls of a reward whose own calls a busy server refused.
    ``parallel_tool_calls=False`` asks models for one tool call per answer and runs the first only.
    ``guard_user`` sends back lines that end too early. ``first_answers`` is shared by the rollouts of an
    evaluation. ``call_timeouts`` (seconds) are for models without their own. ``on_usage`` is called
    with role, usage and model of each model call, ``on_begin`` with what acts from now on: a tool, the
    ``PLAYERS``, the reward. The time limit of the rollout becomes the clock of ``caller``.
    """

    max_steps: int | None = None
    budget: Budget | None = None
    timeout: float | None = None
    reward_timeout: float | None = 300.0
    reward_retries: int = 0
    parallel_tool_calls: bool = True
    guard_user: bool = False
    first_answers: FirstAnswers = field(default_factory=FirstAnswers)
    call_timeouts: Mapping[Role, float] = field(default_factory=dict)
    on_usage: Callable[[Role, Usage, str], None] | None = None
    on_begin: Callable[[str], None] | None = None
    caller: Caller | None = None


class Watch(TimeLimit):
    """Notes a fault of ``name`` in the trace if it blocks the event loop; no limit."""

    def __init__(self, trace: Trace, name: str) -> None:
        super().__init__(math.inf)
        self._trace, self._name = trace, name

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self.late:
            fault = self.blocked("await what takes long, or call it with asyncio.to_thread")
            if fault is not None:
                self._trace.note_tool_fault(self._name, fault)
