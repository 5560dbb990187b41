"""Makes tiny models: ``python make_models.py FOLDER``, in an environment with transformers, torch and gguf.

``FOLDER/seat-taker``: a Qwen2 of a few kilobytes whose next token depends on the last one alone. When its
turn begins it calls the tool ``take_seat``, after an observation it says "Alice has seat 2.". So a rollout
is played to its end, by real weights, through the real way from text to tool call.
``FOLDER/random.gguf``: a Llama with random weights, which says anything.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFWriter, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

CALL = '<tool_call>\n{"name": "take_seat", "arguments": {"number": 2, "passenger": "Alice"}}\n</tool_call>'
DONE = "Alice has seat 2."
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# It looks at the tools and writes nothing of them: a template that ignores them is refused.
TEMPLATE = """\
{%- if tools %}{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content or '' }}<|im_end|>
{% endfor -%}
<|im_start|>assistant
{% if messages[-1].role == 'tool' %} {% endif %}"""
WIDTH = 8


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and one for each sentence that the model knows."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens(SPECIAL)
    bytewise.add_tokens([AddedToken(CALL, normalized=False), AddedToken(DONE, normalized=False)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=bytewise, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    made.chat_template = TEMPLATE
    return made


def seat_taker(folder: Path) -> None:
    """Write the model that takes the seat."""
    words = tokenizer()
    size = len(words)
    newline, space = words.encode("\n")[0], words.encode(" ")[0]
    call, done = words.convert_tokens_to_ids([CALL, DONE])
    configuration = Qwen2Config(
        vocab_size=size, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=8192, tie_word_embeddings=False,
        eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    model = Qwen2ForCausalLM(configuration)
    seen, said = torch.zeros(size, WIDTH), torch.zeros(size, WIDTH)
    seen[:, 0] = 1.0  # what it has nothing to say to
    for token, place in ((newline, 1), (space, 2)):
        seen[token] = torch.eye(WIDTH)[place]
    said[words.eos_token_id, 0], said[call, 1], said[done, 2] = 10.0, 10.0, 10.0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # attention and all between add nothing
        model.model.embed_tokens.weight.copy_(seen)
        model.lm_head.weight.copy_(said)
        model.model.norm.weight.fill_(1.0)
    words.save_pretrained(folder)
    model.save_pretrained(folder)


def random_gguf(path: Path) -> None:
    """Write the model that says anything."""
    words = json.loads(tokenizer().backend_tokenizer.to_str())["model"]["vocab"]
    tokens = [*sorted(words, key=words.get), "ll", *SPECIAL]
    width, inner, heads, layers = 32, 64, 2, 2
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens])
    writer.add_token_merges(["l l"])  # llama.cpp wants one at least
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template(TEMPLATE)
    chance = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        values = chance.standard_normal(shape) * 0.05 if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", len(tokens), width)
    add("output_norm.weight", width)
    add("output.weight", len(tokens), width)
    for layer in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", width, width)
        add(f"blk.{layer}.ffn_gate.weight", inner, width)
        add(f"blk.{layer}.ffn_up.weight", inner, width)
        add(f"blk.{layer}.ffn_down.weight", width, inner)
        add(f"blk.{layer}.attn_norm.weight", width)
        add(f"blk.{layer}.ffn_norm.weight", width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    seat_taker(target / "seat-taker")
    random_gguf(target / "random.gguf")
