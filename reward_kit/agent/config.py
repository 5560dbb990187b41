"""The options of an evaluation: names, defaults, ranges and help texts.

The command line, the Python API and the configuration stored with the results are made from these fields.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from reward_kit.agent.base.option_values import (
    MAX_ROLLOUTS,
    check_value,
    key_values,
    split_ids,
    unknown_option,
)
from reward_kit.agent.base.redaction import is_secret_name, secrets_in, without_password
from reward_kit.agent.base.text import cut
from reward_kit.errors import UsageError

NAME = re.compile(r"[A-Za-z0-9._-]+")
LONGEST_NAME = 200
"""Characters in an evaluation's name; its files' names are about 50 longer, and file systems take 255."""
REDACTED = "***"

_OF_PLAYERS = ("agent", "user", "model", "sim_model", "n_rollouts", "max_steps")

GROUPS = ("Tasks", "Agent", "Simulated user", "Limits", "Results", "Display")


@dataclass(frozen=True, slots=True)
class Option:
    """The command-line form of a field of the configuration.

    ``kind`` is the type of its value (``dict``: repeated ``key=value``). A ``fixed`` option cannot change
    when an evaluation is resumed, since results under different values do not belong together. ``env`` names
    the environment variable that is the default. ``bare`` is the value of a flag that nothing follows.
    """

    flags: tuple[str, ...]
    help: str
    group: str
    kind: type = str
    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    env: str | None = None
    fixed: bool = False
    bare: str | None = None

    @property
    def flag(self) -> str:
        """The long flag: ``--max-steps``."""
        return next(flag for flag in self.flags if flag.startswith("--")).split("/")[0]


def _option(default: Any, *flags: str, group: str, help: str, **more: Any) -> Any:  # noqa: A002 - the word click uses
    option = Option(flags=flags, help=help, group=group, **more)
    if option.kind is dict:
        return field(default_factory=dict, metadata={"option": option})
    return field(default=default, metadata={"option": option})


@dataclass(kw_only=True, slots=True)
class EvaluationConfig:
    """The options of one evaluation; raises ``UsageError`` for values that do not fit."""

    # fmt: off
    # -- Tasks
    dataset: str | None = _option(
        None, "-d", "--dataset", group="Tasks", metavar="PATH",
        help="A .jsonl file, a bundle's folder, a packed bundle, or the import name of an installed one.",
    )
    task_dir: str | None = _option(
        None, "--task-dir", group="Tasks", metavar="DIR",
        help="The bundle's folder; its task.jsonl is the dataset if none is given.",
    )
    task_ids: tuple[str, ...] | None = _option(
        None, "--task-ids", group="Tasks", metavar="IDS",
        help="Only these rows: ids or 0-based positions, separated by commas.",
    )
    start_index: int | None = _option(
        None, "--start-index", group="Tasks", kind=int, minimum=0,
        help="Only rows from this 0-based position on.",
    )
    end_index: int | None = _option(
        None, "--end-index", group="Tasks", kind=int, minimum=-1,
        help="Only rows before this 0-based position (-1: to the end).",
    )
    shuffle: bool = _option(
        False, "--shuffle", group="Tasks", kind=bool, help="Shuffle the selected rows, by the seed."
    )
    max_tasks: int | None = _option(
        None, "--max-tasks", group="Tasks", kind=int, minimum=1,
        help="Run at most this many of the selected rows.",
    )
    n_rollouts: int | None = _option(
        None, "--n-rollouts", "--num-trials", group="Tasks", kind=int, minimum=1,
        maximum=MAX_ROLLOUTS, help="Rollouts of each row, overriding the row's own number.",
    )
    seed: int = _option(
        10, "--seed", group="Tasks", kind=int, fixed=True,
        help="The seed of all rollouts, of shuffling and of the intervals.",
    )

    # -- Agent
    agent: str | None = _option(
        None, "--agent", "--agent-strategy", group="Agent", metavar="NAME", fixed=True,
        help="A built-in agent (tool-calling, act, react, few-shot, gold, human, fastworkflow, replay:PATH), "
        "module:factory, or the address of an agent behind HTTP. Default: tool-calling, which needs a model.",
    )
    model: str | None = _option(
        None, "--model", group="Agent", metavar="NAME", env="MODEL_AGENT", fixed=True,
        help="The agent's model, as LiteLLM names it (openai/gpt-4o-mini), or the path of a local one.",
    )
    provider: str | None = _option(
        None, "--provider", "--model-provider", group="Agent", metavar="NAME", fixed=True,
        help="The provider of the agent's model, if its name does not say it.",
    )
    temperature: float | None = _option(
        None, "--temperature", group="Agent", kind=float, minimum=0, fixed=True,
        help="Sampling temperature of the agent's model. Default: the provider's.",
    )
    model_args: Mapping[str, Any] = _option(
        None, "--model-arg", group="Agent", kind=dict, metavar="KEY=VALUE", fixed=True,
        help="Anything else for the agent's model, passed through to LiteLLM; VALUE is JSON or text. "
        "Repeatable.",
    )
    client: str = _option(
        "direct", "--client", group="Agent", choices=("direct", "litellm"),
        help="Call models that speak OpenAI's protocol directly, which is faster, or call all of them "
        "through LiteLLM.",
    )
    parallel_tool_calls: bool = _option(
        True, "--parallel-tool-calls/--no-parallel-tool-calls", group="Agent", kind=bool, fixed=True,
        help="Run all tool calls of an answer, or only the first.",
    )
    few_shot_displays: str | None = _option(
        None, "--few-shot-displays", "--few-shot-displays-path", group="Agent", metavar="PATH", fixed=True,
        help="A .jsonl file of example conversations for the agent few-shot.",
    )
    fastworkflow_policy: str = _option(
        "none", "--fastworkflow-policy", group="Agent", choices=("none", "insights"), fixed=True,
        help="Show the system prompt to the agent fastworkflow: not at all, or as its insights.",
    )
    fastworkflow_workers: int = _option(
        1, "--fastworkflow-workers", group="Agent", kind=int, minimum=1,
        help="Processes that play the agent fastworkflow; each takes several rollouts.",
    )

    # -- Simulated user
    user: str | None = _option(
        None, "--user", "--user-strategy", group="Simulated user", metavar="NAME", fixed=True,
        help="A built-in user (llm, react, verify, reflection, human, none, replay:PATH) or module:factory. "
        "Default: llm for rows with a sim_user_prompt; none for the agent gold; a replay's is recorded.",
    )
    no_sim_user: bool = _option(
        False, "--no-sim-user", group="Simulated user", kind=bool, fixed=True, help="The same as --user none."
    )
    sim_model: str | None = _option(
        None, "--sim-model", "--user-model", group="Simulated user", metavar="NAME", env="MODEL_SIM",
        fixed=True, help="The simulated user's model; named as --model.",
    )
    user_provider: str | None = _option(
        None, "--user-provider", "--user-model-provider", group="Simulated user", metavar="NAME", fixed=True,
        help="The provider of the simulated user's model, if its name does not say it.",
    )
    user_model_args: Mapping[str, Any] = _option(
        None, "--user-model-arg", group="Simulated user", kind=dict, metavar="KEY=VALUE", fixed=True,
        help="As --model-arg, for the simulated user's model.",
    )
    retry_user_errors: int = _option(
        0, "--retry-user-errors", group="Simulated user", kind=int, minimum=0, metavar="N", fixed=True,
        help="Run a rollout again, up to N times, when its simulated user misbehaved.",
    )

    # -- Limits
    max_concurrency: int = _option(
        10, "--max-concurrency", group="Limits", kind=int, minimum=1,
        help="Rollouts that run at the same time, over all processes.",
    )
    workers: int | None = _option(
        None, "--workers", group="Limits", kind=int, minimum=0, metavar="N",
        help="Play the rollouts in this many other processes, so that code of the bundle or the agent that "
        "crashes, hangs or exits costs its own rollout only. Default: in this process.",
    )
    worker_memory: int | None = _option(
        None, "--worker-memory", group="Limits", kind=int, minimum=64, metavar="MB",
        help="End a worker process that uses more memory than this, in MB; it counts as crashed.",
    )
    ray: str | None = _option(
        None, "--ray", group="Limits", metavar="[ADDRESS]", bare="default",
        help="Play the rollouts on a Ray cluster: the one at this address (host:port, or auto: one "
        "that runs on this machine). Without an address: that of RAY_ADDRESS, else one started for this run.",
    )
    max_steps: int | None = _option(
        None, "--max-steps", group="Limits", kind=int, minimum=1, fixed=True,
        help="Model calls of the agent per rollout, overriding the row's own number.",
    )
    timeout: float | None = _option(
        None, "--timeout", group="Limits", kind=float, minimum=0.001, metavar="SECONDS", fixed=True,
        help="Time for one rollout.",
    )
    retries: int = _option(
        3, "--retries", group="Limits", kind=int, minimum=0,
        help="Retries of a failed model call, of a reward whose own call failed, and of a rollout that "
        "failed through no fault of the agent.",
    )
    max_cost: float | None = _option(
        None, "--max-cost", group="Limits", kind=float, minimum=0, metavar="USD",
        help="Stop starting rollouts once this much is spent; running ones finish. Calls of a model "
        "whose price is unknown count as free.",
    )
    max_tokens: int | None = _option(
        None, "--max-tokens", group="Limits", kind=int, minimum=1, metavar="N",
        help="Stop starting rollouts once the run has used this many tokens: input and output of agent, "
        "user and judge together. To limit one answer, use --model-arg max_tokens=N.",
    )
    max_rollout_tokens: int | None = _option(
        None, "--max-rollout-tokens", group="Limits", kind=int, minimum=1, metavar="N", fixed=True,
        help="Stop a rollout at its next model call once its agent and user have used this many tokens "
        "together.",
    )
    max_rollout_cost: float | None = _option(
        None, "--max-rollout-cost", group="Limits", kind=float, minimum=0, metavar="USD", fixed=True,
        help="Stop a rollout at its next model call once its agent and user have cost this much together.",
    )
    call_timeout: float = _option(
        600, "--call-timeout", group="Limits", kind=float, minimum=0.001, metavar="SECONDS",
        help="Time for one model call.",
    )
    rpm: int | None = _option(
        None, "--rpm", group="Limits", kind=int, minimum=1, metavar="N",
        help="Send a provider at most this many requests a minute.",
    )
    tpm: int | None = _option(
        None, "--tpm", group="Limits", kind=int, minimum=1, metavar="N",
        help="Use at most this many tokens of a provider a minute, input and output together.",
    )
    patience: float = _option(
        900, "--patience", group="Limits", kind=float, minimum=0, metavar="SECONDS",
        help="Time to wait for a provider that is down or refuses everything before the run stops.",
    )

    # -- Results
    output_dir: str = _option(
        "runs", "-o", "--output-dir", "--log-dir", group="Results", metavar="DIR",
        help="The folder for all files of the evaluation.",
    )
    eval_id: str | None = _option(
        None, "--eval-id", group="Results", metavar="NAME",
        help="The evaluation's name; one that exists is continued. Default: the time and a random part.",
    )
    resume: str | None = _option(
        None, "--resume", group="Results", metavar="[NAME]", bare="latest",
        help="Continue this evaluation (without a name: the latest) with the options it was started with.",
    )
    keep_db: str | None = _option(
        None, "--keep-db", group="Results", choices=("full", "delta", "none"),
        help="What to keep of each rollout's final database. Default: full up to 4 MiB, else delta.",
    )
    cache: bool = _option(
        False, "--cache/--no-cache", group="Results", kind=bool,
        help="Store the models' answers, and reuse those to the same calls of earlier evaluations.",
    )
    clear_cache: bool = _option(
        False, "--clear-cache", group="Results", kind=bool, help="Clear the stored answers of models first."
    )
    explain: str | None = _option(
        None, "--explain", group="Results", metavar="MODEL",
        help="Ask this model who was at fault in each failed rollout, and why.",
    )
    errors_as_failures: bool = _option(
        False, "--errors-as-failures", group="Results", kind=bool,
        help="Count rollouts that could not be judged as failed, instead of leaving them out.",
    )
    json: str | None = _option(
        None, "--json", group="Results", metavar="PATH",
        help="Also write one file with everything: configuration, scores, rows, whole histories "
        "(-: to the output).",
    )
    format: str = _option(
        "reward-kit", "--format", group="Results", choices=("reward-kit", "tau-bench"),
        help="The layout of the file that --json names; tau-bench is what that benchmark's scripts read.",
    )
    from_tau_bench: str | None = _option(
        None, "--from-tau-bench", group="Results", metavar="PATH",
        help="Run nothing; report on a results file of tau-bench, with the dataset's rows as its tasks.",
    )
    fail_under: float | None = _option(
        None, "--fail-under", group="Results", kind=float, minimum=0, maximum=1, metavar="PASS^1",
        help="Exit with 1 if Pass^1 is lower.",
    )

    # -- Display
    validate_only: bool = _option(
        False, "--validate-only", group="Display", kind=bool,
        help="Check the bundle, or the selected rows of it, without a model, then stop.",
    )
    quiet: bool = _option(
        False, "--quiet", group="Display", kind=bool, help="Print only the scores."
    )
    debug: bool = _option(
        False, "--debug", group="Display", kind=bool,
        help="Write a readable log of each rollout, and show where errors come from.",
    )

    # fmt: on

    def __new__(cls, **options: Any) -> EvaluationConfig:
        """Refuse unknown options, and suggest the name that was probably meant."""
        for name in options.keys() - OPTIONS.keys():
            raise unknown_option(name, list(OPTIONS))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        if self.task_ids is not None:
            self.task_ids = split_ids(self.task_ids)
        self.model_args = key_values(self.model_args, "--model-arg")
        self.user_model_args = key_values(self.user_model_args, "--user-model-arg")
        for name, option in OPTIONS.items():
            check_value(option, getattr(self, name))
        self._check_together()

    def _check_together(self) -> None:
        if self.eval_id is not None:
            check_eval_id(self.eval_id)
        if self.task_ids == ():
            raise UsageError("--task-ids names no row", remedy="Give ids or positions from 0, or omit it.")
        if self.task_ids is not None and (self.start_index is not None or self.end_index is not None):
            raise UsageError("--task-ids cannot be combined with --start-index and --end-index")
        if self.from_tau_bench is not None and self.agent != f"tau-bench:{self.from_tau_bench}":
            given = [name for name in _OF_PLAYERS if getattr(self, name) is not None]
            if given:
                raise UsageError(
                    f"--from-tau-bench runs nothing, so it cannot be combined with {flag_of(given[0])}"
                )
        if self.no_sim_user and self.user not in (None, "none"):
            raise UsageError(f"--no-sim-user contradicts --user {self.user}")

    def from_environment(self, *, model: bool = False, sim_model: bool = False) -> None:
        """Fill in the wanted models that were not given from the environment; an empty variable is none."""
        for name, wanted in (("model", model), ("sim_model", sim_model)):
            variable = OPTIONS[name].env
            if wanted and variable and getattr(self, name) is None:
                setattr(self, name, os.environ.get(variable) or None)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values by field name, with secrets replaced."""
        stated = {name: getattr(self, name) for name in OPTIONS}
        for name in ("model_args", "user_model_args"):
            stated[name] = redacted(getattr(self, name))
        if isinstance(self.agent, str):
            stated["agent"] = without_password(self.agent)
        stated["task_ids"] = list(self.task_ids or ())
        return stated

    def secrets(self) -> frozenset[str]:
        """The secrets among the options, which no text may contain."""
        return secrets_in([self.model_args, self.user_model_args, self.agent])


def check_eval_id(name: object, flag: str = "--eval-id") -> None:
    """Raise ``UsageError`` unless an evaluation can have this name, which names files."""
    if not isinstance(name, str):
        raise UsageError(f"{flag} takes the name of an evaluation, not {name!r}")
    if not NAME.fullmatch(name) or name in (".", ".."):
        raise UsageError(
            f"{flag} {cut(name, LONGEST_NAME)!r} is not a valid file name",
            remedy="Use letters, digits, '.', '_' and '-'.",
        )
    if len(name) > LONGEST_NAME:
        raise UsageError(
            f"{flag} has {len(name)} characters, which is too long for the name of a file",
            remedy=f"Use at most {LONGEST_NAME}.",
        )


def flag_of(name: str) -> str:
    """The long flag of a field."""
    return OPTIONS[name].flag


def redacted(value: Any) -> Any:
    """Copy JSON values with secrets replaced by ``***``.

    Secrets are everything under a name such as ``api_key``, authorization headers, and accounts in addresses.
    """
    if isinstance(value, Mapping):
        return {
            name: REDACTED if is_secret_name(str(name)) else redacted(inner) for name, inner in value.items()
        }
    if isinstance(value, str):
        return REDACTED if value.startswith(("Bearer ", "Basic ")) else without_password(value)
    if isinstance(value, list | tuple):
        return [redacted(inner) for inner in value]
    return value


OPTIONS: Mapping[str, Option] = {item.name: item.metadata["option"] for item in fields(EvaluationConfig)}
DEFAULTS: Mapping[str, Any] = {
    item.name: () if item.default is MISSING else item.default for item in fields(EvaluationConfig)
}
