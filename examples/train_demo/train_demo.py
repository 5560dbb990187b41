"""Train a small language model on a bundle with a simulated user: gold, SFT, GRPO, and what it was worth.

    make train-demo                                       on a CPU, under ten minutes on two cores
    make train-demo DEMO="--seed 1 --user-faults 0.2"     what it is worth to leave out spoilt rollouts

The bundle is a ticket office with four kinds of seats. A customer does not say which: three in four want a
window. Gold actions know the answer, so a model that imitates them learns to guess. GRPO plays with the
customer, and learns to ask.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import matplotlib.pyplot as plt
from datasets import Dataset
from players import Clerk, Customer, as_trained
from policy import load, policy_of
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from reward_kit.agent import evaluate, export
from reward_kit.integrations.trl import BundleParts

TRAIN = str(Path(__file__).with_name("ticket_task"))
HELD_OUT = f"{TRAIN}/held_out.jsonl"


class Demo:
    """The model, the options, and the steps of the demo in order."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.began = options, time.monotonic()
        set_seed(options.seed)
        self.model, self.tokenizer = load(options.device)
        self.settings = {
            "output_dir": options.out,
            "seed": options.seed,
            "use_cpu": options.device == "cpu",
            "bf16": False,
            "gradient_checkpointing": False,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
        }

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"[{time.monotonic() - self.began:4.0f} s] {text}", flush=True)

    def imitate(self) -> None:
        """Play the gold actions, export the conversations, and fine-tune the model on them."""
        gold = evaluate(TRAIN, agent=Clerk, models={"user": Customer()}, n_rollouts=3, **self.stored("gold"))
        lines = export(gold, format="trl", min_reward=1)
        examples = [{"messages": as_trained(line["messages"])} for line in lines]
        random.shuffle(examples)
        self.say(f"fine-tuning on {len(examples)} conversations")
        args = SFTConfig(
            max_steps=self.options.sft_steps,
            learning_rate=2e-4,
            lr_scheduler_type="linear",
            per_device_train_batch_size=4,
            assistant_only_loss=True,
            **self.settings,
        )
        dataset = Dataset.from_list(examples, on_mixed_types="use_json")
        SFTTrainer(self.model, args, train_dataset=dataset, processing_class=self.tokenizer).train()
        self.tokenizer.padding_side = "left"

    def explore(self, *, masked: bool = True) -> list[dict[str, float]]:
        """Train with GRPO; return what TRL logs of each step.

        Rollouts that the user spoilt are left out if ``masked``, else their reward is 0.
        """
        parts = BundleParts(TRAIN, models={"user": Customer(self.options.user_faults)})

        class Unmasked(parts.environment):  # type: ignore[misc,name-defined]
            def get_reward(self) -> float:
                return super().get_reward() or 0.0

        args = GRPOConfig(
            max_steps=self.options.steps,
            learning_rate=5e-5,
            lr_scheduler_type="constant",
            per_device_train_batch_size=16,  # four rows
            num_generations=4,
            max_completion_length=128,
            max_tool_calling_iterations=3,
            **self.settings,
        )
        trainer = GRPOTrainer(
            self.model,
            args=args,
            processing_class=self.tokenizer,
            environment_factory=parts.environment if masked else Unmasked,
            train_dataset=Dataset.from_list(parts.rows),
        )
        trainer.train()
        return [line for line in trainer.state.log_history if "reward" in line]

    def measure(self, name: str) -> None:
        """Play the held-out rows, with a user that makes no mistakes, as an evaluation of this name."""
        self.model.eval()
        models = {"agent": policy_of(self.model, self.tokenizer), "user": Customer()}
        result = evaluate(HELD_OUT, models=models, max_concurrency=64, **self.stored(name))
        self.say(f"{name}: solves {result.passed} of {len(result.outcomes)} with customers that are new")
        self.model.train()

    def stored(self, name: str) -> dict[str, Any]:
        """The options of an evaluation of this name."""
        return {"eval_id": name, "output_dir": self.options.out, "seed": self.options.seed}


def draw(steps: dict[str, list[dict[str, float]]], file: Path) -> None:
    """Draw the mean reward and the calls of each step of GRPO, and their average over five steps."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    calls = "tool calls (1: guesses, 2: asks first)"
    for axes, key, label in zip(
        panels, ("reward", "tools/call_frequency"), ("mean reward", calls), strict=True
    ):
        for name, lines in steps.items():
            values, numbers = [line[key] for line in lines], range(1, len(lines) + 1)
            (dots,) = axes.plot(numbers, values, ".", alpha=0.4)
            averages = [mean(values[max(0, number - 3) : number + 2]) for number in numbers]
            axes.plot(numbers, averages, color=dots.get_color(), label=name)
        axes.set(xlabel="step of 16 rollouts", ylabel=label)
        axes.legend(loc="lower right")
    figure.savefig(file)


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sft-steps", type=int, default=25)
    parser.add_argument("--steps", type=int, default=7, help="of GRPO, with 16 rollouts each")
    parser.add_argument(
        "--user-faults", type=float, default=0.0, metavar="P", help="how often the user leaves"
    )
    parser.add_argument(
        "--out", default="build/train-demo", help="the folder of the evaluations and the curve"
    )
    options = parser.parse_args()
    if Path(options.out, "evals").exists():
        parser.error(f"{options.out} has evaluations, which would be continued: choose another --out")
    demo = Demo(options)
    demo.imitate()
    demo.measure("before")
    imitated = {name: one.clone() for name, one in demo.model.state_dict().items()}
    steps: dict[str, list[dict[str, float]]] = {}
    for name in ("masked", "unmasked") if options.user_faults else ("after",):
        demo.model.load_state_dict(imitated)
        set_seed(options.seed)
        steps[name] = demo.explore(masked=name != "unmasked")
        demo.measure(name)
    draw(steps, Path(options.out, "reward.svg"))
    demo.say(f"the curves: {options.out}/reward.svg")
    pair = ("unmasked", "masked") if options.user_faults else ("before", "after")
    sys.exit(
        subprocess.run([sys.executable, "-m", "reward_kit", "compare", *pair, "-o", options.out]).returncode
    )


if __name__ == "__main__":
    main()
