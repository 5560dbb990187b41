"""The options of an evaluation: names, defaults, ranges and help texts.

The command line, the Python API and the configuration stored with the results are made from these fields.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.option import (
    MAX_ROLLOUTS,
    Option,
    check_eval_id,
    key_values,
    split_ids,
    unknown_option,
)
from reward_kit.agent.base.redaction import keep_secrets, redacted, secrets_in, without_password
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

RESULTS_FILE = "tau-bench:"
"""Prefix of the agent's name in a report on a results file, ``tau-bench:PATH``."""
GROUPS = ("Tasks", "Agent", "Simulated user", "Limits", "Results", "Display")
_OF_PLAYER = (
    "Give it to evaluate() as {}=, or name it by its import path, module:factory (__main__:factory in a "
    "notebook or the script itself)."
)
_OF_MODEL = "Give a model of your own as models={{'{}': model}}."


def _option(default: Any, *flags: str, **more: Any) -> Any:
    """A field; its type is that of the option's value, and without ``flags`` its name is the flag."""
    return field(default=default, metadata={"option": Option(flags=flags, **more)})


_task, _agent, _user, _limit, _result, _display = (partial(_option, group=group) for group in GROUPS)
_rows = partial(_task, scope="whole")


@dataclass(kw_only=True, frozen=True, slots=True)
class EvaluationConfig:
    """The options of one evaluation; raises ``UsageError`` for values that do not fit."""

    # fmt: off
    # -- Tasks
    dataset: str | None = _task(
        None, "-d", "--dataset", metavar="PATH", usual=True, is_path=True,
        help="A .jsonl file, a bundle's folder, a packed bundle, or the import name of an installed one.",
    )
    task_dir: str | None = _task(
        None, metavar="DIR", is_path=True,
        help="The bundle's folder; its task.jsonl is the dataset unless --dataset names another.",
    )
    task_ids: tuple[str, ...] | None = _rows(
        None, "--rows", "--task-ids", metavar="IDS", usual=True,
        help="Run only these rows: ids, patterns (book.*) or positions from 0, separated by commas.",
    )
    start_index: int | None = _rows(None, minimum=0, help="Run only rows from this position (the first: 0).")
    end_index: int | None = _rows(None, minimum=-1, help="Run only rows before this position (-1: the end).")
    filter: Mapping[str, Any] = _rows(
        None, metavar="FIELD=VALUE",
        help="Run only rows whose field has this value (metadata.domain=hotel). Repeatable: all must hold.",
    )
    shuffle: bool = _rows(False, help="Shuffle the selected rows, by the seed.")
    max_tasks: int | None = _rows(
        None, minimum=1, without="all rows", usual=True, other_names=("limit",),
        help="Run at most this many of the selected rows.",
    )
    n_rollouts: int | None = _rows(
        None, "--n-rollouts", "--num-trials", minimum=1, maximum=MAX_ROLLOUTS, usual=True,
        without="each row's own number", recorded=True, other_names=("epochs",),
        help="Rollouts of each row. Default: the row's own number, else 1.",
    )
    seed: int = _task(10, help="The seed of all rollouts and of --shuffle.", fixed=True)

    # -- Agent
    agent: str | None = _agent(
        None, "--agent", "--agent-strategy", metavar="NAME", fixed=True, usual=True, recorded=True,
        for_objects=_OF_PLAYER.format("agent"),
        help="A built-in agent (tool-calling, act, react, few-shot, gold, human, fastworkflow, replay:PATH), "
        "module:factory, or the address of an agent behind HTTP. Default: tool-calling, which needs a model.",
    )
    model: str | None = _agent(
        None, metavar="NAME", env="MODEL_AGENT", fixed=True, usual=True, several=True, recorded=True,
        for_objects=_OF_MODEL.format("agent"),
        help="The agent's model, as LiteLLM names it (openai/gpt-4o-mini), or the path of a local one. "
        "Repeatable: an evaluation for each model, then a comparison.",
    )
    provider: str | None = _agent(
        None, "--provider", "--model-provider", metavar="NAME", fixed=True,
        help="The provider of the agent's model, if the model's name does not say it.",
    )
    temperature: float | None = _agent(
        None, minimum=0, fixed=True, help="Temperature of the agent's model. Default: the provider's.",
    )
    model_args: Mapping[str, Any] = _agent(
        None, "--model-arg", metavar="KEY=VALUE", fixed=True, secret=True,
        help="Any other setting of the agent's model; VALUE is JSON or text. Repeatable.",
    )
    client: str = _agent(
        "direct", choices=("direct", "litellm"),
        help="direct: call models that speak OpenAI's protocol without LiteLLM, which is faster; litellm: "
        "call all models through LiteLLM.",
    )
    prompt_cache: bool = _agent(
        True, "--prompt-cache/--no-prompt-cache",
        help="Let Claude and Amazon Nova cache what each request repeats, for agent and simulated user.",
    )
    parallel_tool_calls: bool = _agent(
        True, "--parallel-tool-calls/--no-parallel-tool-calls", fixed=True,
        help="Run all tool calls of an answer, or only the first.",
    )
    few_shot_displays: str | None = _agent(
        None, "--few-shot-displays", "--few-shot-displays-path", metavar="PATH", fixed=True,
        help="A .jsonl file of example conversations for the agent few-shot.",
    )
    fastworkflow_policy: str = _agent(
        "none", choices=("none", "insights"), fixed=True,
        help="Show the system prompt to the agent fastworkflow: not at all, or as its insights.",
    )
    fastworkflow_workers: int = _agent(
        1, minimum=1, help="Processes for the agent fastworkflow; each plays several rollouts.",
    )
    skip_unplayable: bool = _agent(
        False, fixed=True, help="Leave out rows that the agent or user cannot play, with a warning for each.",
    )

    # -- Simulated user
    mode: str | None = _user(
        None, choices=("solo",), fixed=True,
        help="solo: no user; the agent gets the row's ticket, and the user's tools beside its own.",
    )
    user: str | None = _user(
        None, "--user", "--user-strategy", metavar="NAME", fixed=True, usual=True, recorded=True,
        for_objects=_OF_PLAYER.format("user"),
        help="A built-in user (llm, react, verify, reflection, human, none, replay:PATH) or module:factory. "
        "Default: llm for rows with a sim_user_prompt; for the agents gold and replay, none and the recorded "
        "one.",
    )
    no_sim_user: bool = _user(False, help="The same as --user none.", fixed=True, hidden=True)
    sim_model: str | None = _user(
        None, "--user-model", "--sim-model", metavar="NAME", env="MODEL_SIM", fixed=True, usual=True,
        recorded=True, for_objects=_OF_MODEL.format("user"),
        help="The simulated user's model, named like --model.",
    )
    user_provider: str | None = _user(
        None, "--user-provider", "--user-model-provider", metavar="NAME", fixed=True,
        help="The provider of the simulated user's model, if the model's name does not say it.",
    )
    user_model_args: Mapping[str, Any] = _user(
        None, "--user-model-arg", metavar="KEY=VALUE", fixed=True, secret=True,
        help="Like --model-arg, for the simulated user's model.",
    )
    guard_user: bool = _user(
        False, fixed=True,
        help="If the simulated user says yes and ends the conversation in one line, ask it once to wait for "
        "the agent. Changes the scores.",
    )
    retry_user_errors: int = _user(
        0, minimum=0, metavar="N", fixed=True,
        help="Run a rollout again, up to N times, if its simulated user misbehaved.",
    )

    # -- Limits
    max_concurrency: int = _limit(
        10, minimum=1, usual=True, help="Rollouts that run at the same time, over all processes.",
    )
    workers: int | None = _limit(
        None, minimum=0, metavar="N", usual=True,
        help="Play the rollouts in this many other processes (auto: one for each processor): code of the "
        "bundle or the agent that crashes, hangs or exits then costs only its own rollout. Default: none.",
    )
    worker_memory: int | None = _limit(
        None, minimum=64, metavar="MB",
        help="End a worker process that uses more memory than this; it counts as crashed.",
    )
    ray: str | None = _limit(
        None, metavar="[ADDRESS]", bare="default", scope="whole",
        help="Play the rollouts on the Ray cluster at this address (host:port, or auto for the one on this "
        "machine). Without an address: that of RAY_ADDRESS, else a cluster started for this run.",
    )
    max_steps: int | None = _limit(
        None, minimum=1, fixed=True, without="each row's own number", recorded=True,
        help="Model calls of the agent in each rollout. Default: the row's own number.",
    )
    timeout: float | None = _limit(
        None, minimum=0.001, metavar="SECONDS", fixed=True, without="no limit", help="Time for one rollout.",
    )
    retries: int = _limit(
        3, minimum=0,
        help="Retries of a failed model call, of a reward whose own model call failed, and of a rollout that "
        "failed through no fault of the agent.",
    )
    max_cost: float | None = _limit(
        None, minimum=0, metavar="USD", usual=True, scope="whole",
        help="Start no more rollouts once this much is spent; running ones finish. Calls without a known "
        "price count as free.",
    )
    max_tokens: int | None = _limit(
        None, minimum=1, metavar="N", without="no limit", scope="whole",
        help="Start no more rollouts once the run has used this many tokens: input and output of agent, user "
        "and judge together. To limit one answer, use --model-arg max_tokens=N.",
    )
    max_rollout_tokens: int | None = _limit(
        None, minimum=1, metavar="N", fixed=True, without="no limit",
        help="Stop a rollout at its next model call once its agent and user together have used this many "
        "tokens.",
    )
    max_rollout_cost: float | None = _limit(
        None, minimum=0, metavar="USD", fixed=True,
        help="Stop a rollout at its next model call once its agent and user together have cost this much.",
    )
    call_timeout: float = _limit(600, help="Time for one model call.", minimum=0.001, metavar="SECONDS")
    rpm: int | None = _limit(
        None, minimum=1, metavar="N", without="no limit",
        help="Send each provider at most this many requests a minute.",
    )
    tpm: int | None = _limit(
        None, minimum=1, metavar="N", without="no limit",
        help="Use at most this many tokens of each provider a minute, input and output together.",
    )
    patience: float = _limit(
        900, minimum=0, metavar="SECONDS",
        help="Time to wait for a provider that is down or refuses every call, before the run stops.",
    )
    against: str | None = _limit(
        None, metavar="EVAL", scope="whole",
        help="Compare Pass^1 with this evaluation's, or with that of a card in the repository.",
    )
    until_decided: bool = _limit(
        False, "--until-decided/--no-until-decided", scope="whole",
        help="Play all rows once, then again, and stop as soon as the comparison with --against is decided.",
    )
    margin: float = _limit(
        5, minimum=0, maximum=100, metavar="POINTS", scope="whole",
        help="Also decided: the difference from --against is within this many percentage points.",
    )

    # -- Results
    branch_of: Mapping[str, Any] = _result(None, hidden=True, fixed=True, help="Origin: reward-kit branch.")
    output_dir: str = _result(
        "runs", "-o", "--output-dir", "--log-dir", metavar="DIR", usual=True, scope="run",
        help="The folder for all files of the evaluation.",
    )
    eval_id: str | None = _result(
        None, metavar="NAME", usual=True, scope="run",
        help="The evaluation's name; one that exists is continued. Default: the time and a random part.",
    )
    resume: str | None = _result(
        None, metavar="[NAME]", bare="latest", usual=True, scope="run",
        in_sweep="Continue a sweep with the command that started it and --eval-id NAME.",
        help="Continue this evaluation (without a name: the latest) with the options it was started with.",
    )
    keep_db: str | None = _result(
        None, choices=("full", "delta", "none"),
        help="What to keep of each rollout's final database. Default: full up to 256 KiB, else delta.",
    )
    cache: bool = _result(
        False, "--cache/--no-cache",
        help="Store the models' answers, and reuse the stored answer of a call that was made before.",
    )
    clear_cache: bool = _result(False, help="Delete the stored answers and gold states first.", scope="run")
    explain: str | None = _result(
        None, metavar="MODEL", scope="whole", help="Ask this model who was at fault in a failure, and why.",
    )
    errors_as_failures: bool = _result(
        False, scored=True,
        help="Count rollouts that could not be judged as failed, instead of leaving them out.",
    )
    json: str | None = _result(
        None, metavar="[FILE]", bare="-", scope="command", in_python="use to_json() of the result",
        in_sweep="Write the comparison: reward-kit compare A B --json PATH.",
        help="Write all as JSON: configuration, scores, rows, conversations. Default FILE: the output.",
    )
    format: str = _result(
        "reward-kit", choices=("reward-kit", "tau-bench"), scope="command", hidden=True,
        in_python="use to_json() of the result, or reward-kit export ID --format tau-bench",
        help="The layout of the file that --json names: reward-kit export --format tau-bench.",
    )
    from_tau_bench: str | None = _result(
        None, metavar="PATH", scope="run", hidden=True,
        help="Run nothing; grade a results file again: reward-kit port results.",
    )
    fail_under: float | None = _result(
        None, minimum=0, maximum=1, metavar="PASS^1", usual=True, scope="command",
        in_python="use pass_power of the result", help="Exit with 1 if Pass^1 is lower.",
    )

    # -- Display
    validate_only: bool = _display(
        False, hidden=True, scope="command", in_python="call reward_kit.agent.validate(bundle)",
        help="Check the bundle, or the selected rows of it, without a model, then stop.",
    )
    strict: bool = _display(
        False, hidden=True, scope="command", in_python="call reward_kit.agent.validate(bundle, strict=True)",
        help="With --validate-only: warnings count as errors.",
    )
    quiet: bool = _display(False, usual=True, help="Print only the scores.", scope="run")
    debug: bool = _display(
        False, scope="run", help="Write a readable log of each rollout, and show where errors come from.",
    )
    # fmt: on

    def __new__(cls, **options: Any) -> EvaluationConfig:
        """Refuse unknown options, and suggest the name that was probably meant."""
        for name in options.keys() - OPTIONS.keys():
            raise unknown_option(name, OPTIONS, OTHER_NAMES.get(name))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            value = given = getattr(self, name)
            if option.kind is dict:
                value = key_values(value, option)
            elif name == "task_ids" and value is not None:
                value = split_ids(value)
            elif name == "workers" and value == "auto":
                value = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
            elif value == float("inf"):  # JSON has no word for it
                value = sys.float_info.max
            if value is not given:
                object.__setattr__(self, name, value)
            if value is not None and value is not DEFAULTS[name] and option.kind is not dict:
                option.check(value)
        self._check_together()
        keep_secrets(self.secrets())

    def _check_together(self) -> None:
        if self.eval_id is not None:
            check_eval_id(self.eval_id)
        if self.task_ids == ():
            raise UsageError("--rows names no row", remedy="Give ids or positions from 0, or omit it.")
        if self.task_ids is not None and (self.start_index is not None or self.end_index is not None):
            raise UsageError("--rows cannot be combined with --start-index and --end-index")
        if self.until_decided and self.against is None:
            raise UsageError("--until-decided needs --against: the evaluation or baseline to compare with")
        if self.worker_memory is not None and self.workers is None and self.ray is None:
            raise UsageError("--worker-memory needs --workers: the processes whose memory it limits")
        if self.from_tau_bench is not None and self.agent != f"{RESULTS_FILE}{self.from_tau_bench}":
            given = [name for name in OPTIONS if OPTIONS[name].recorded and getattr(self, name) is not None]
            if given:
                fault = f"--from-tau-bench runs nothing, so it cannot be combined with {flag_of(given[0])}"
                raise UsageError(fault)
        alone = "--no-sim-user" if self.no_sim_user else "--mode solo" if self.mode == "solo" else None
        if alone is not None and self.user not in (None, "none"):
            raise UsageError(f"{alone} contradicts --user {self.user}")

    def or_environment(self, name: str) -> str | None:
        """The value of an option, or that of its environment variable; an empty variable is none."""
        value: str | None = getattr(self, name)
        return os.environ.get(OPTIONS[name].env or "") or None if value is None else value

    @property
    def results_file(self) -> str | None:
        """The results file of tau-bench to report on, if any."""
        before, prefix, path = (self.agent or "").partition(RESULTS_FILE)
        return self.from_tau_bench or (path if prefix and not before else None)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values by field name, with secrets replaced."""
        stated = {name: getattr(self, name) for name in OPTIONS}
        stated |= {name: redacted(stated[name]) for name, option in OPTIONS.items() if option.secret}
        if isinstance(self.agent, str):
            stated["agent"] = without_password(self.agent)
        return {**stated, "task_ids": list(self.task_ids or ())}

    def secrets(self) -> frozenset[str]:
        """The secrets among the options, which no text may contain."""
        return secrets_in([self.model_args, self.user_model_args, self.agent])


def flag_of(name: str) -> str:
    """The long flag of a field."""
    return OPTIONS[name].flag


_KINDS = {"int": int, "float": float, "bool": bool, "Mapping[str, Any]": dict}
OPTIONS: Mapping[str, Option] = {
    item.name: replace(
        (option := item.metadata["option"]),
        flags=option.flags or (f"--{item.name.replace('_', '-')}",),
        kind=_KINDS.get(str(item.type).removesuffix(" | None"), str),
    )
    for item in fields(EvaluationConfig)
}
OTHER_NAMES: Mapping[str, str] = {
    other.lstrip("-").replace("-", "_"): name
    for name, option in OPTIONS.items()
    for other in (*option.flags, *option.other_names)
    if other.lstrip("-").replace("-", "_") != name
}
"""Names of options in other tools and in other flags."""
DEFAULTS: Mapping[str, Any] = {item.name: item.default for item in fields(EvaluationConfig)}
