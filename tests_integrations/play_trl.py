"""Trains a tiny random model in GRPOTrainer on a bundle; its answers are scripted."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(
    TRL_EXPERIMENTAL_SILENCE="1", CUDA_VISIBLE_DEVICES="", WANDB_MODE="disabled", HF_HUB_OFFLINE="1"
)

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from reward_kit.integrations.trl import BundleParts

torch.set_num_threads(1)
SAY = '<tool_call>\n{"name": "say_to_user", "arguments": {"text": "%s"}}\n</tool_call>'
LEND = '<tool_call>\n{"name": "lend_book", "arguments": {"book_id": 1, "member": "Bo"}}\n</tool_call>'
STEP = 0


def user(messages: list[Any]) -> str:
    if len(messages) == 2:
        return "I am Bo. Can you lend me Middlemarch?"
    return "###STOP###" if STEP == 2 else "Thanks! ###STOP###"


def tokenizer() -> Any:
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    plain = Tokenizer(models.BPE(vocab=letters, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    plain.add_tokens(["<tool_call>", "</tool_call>"])
    made = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    return made


class Scripted(GRPOTrainer):
    """In the first step all lend the book, in the second every other one, in the third the user leaves."""

    turns = 0

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        answers = [self._answer(TOKENS.decode(ids), number) for number, ids in enumerate(prompt_ids)]
        return [
            [*TOKENS.encode(text, add_special_tokens=False), TOKENS.eos_token_id] for text in answers
        ], None

    def _answer(self, prompt: str, number: int) -> str:
        last = prompt.rsplit("<|im_start|>user", 1)[-1]
        if "conversation is over" in last:
            return "Done."
        if STEP == 2:
            return SAY % "Shall I look for it?"
        if "<tool_response>" in last:
            return SAY % "It is yours."
        return LEND if STEP == 0 or number % 2 else SAY % "No, I cannot do that."


TOKENS = tokenizer()
parts = BundleParts(sys.argv[1], models={"user": user})
seen: list[Any] = []


def reward(completions: Any, environments: Any, **_: Any) -> Any:
    global STEP
    rewards = parts.reward(completions, environments)
    judged = [one for one in rewards if one is not None]
    seen.append(sum(judged) / len(judged) if judged else None)
    STEP += 1
    return rewards


shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
config = Qwen2Config(vocab_size=len(TOKENS), num_key_value_heads=2, max_position_embeddings=8192, **shape)
options = {
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 900,
    "max_steps": 3,
}
trainer = Scripted(
    model=Qwen2ForCausalLM(config),
    processing_class=TOKENS,
    environment_factory=parts.environment,
    reward_funcs=reward,
    train_dataset=Dataset.from_list([row for row in parts.rows if row["row_id"] == "lend.2"]),
    args=GRPOConfig(
        output_dir="trained", report_to=[], use_cpu=True, save_strategy="no", logging_steps=1, **options
    ),
)
trainer.train()
print("rewards", seen)
