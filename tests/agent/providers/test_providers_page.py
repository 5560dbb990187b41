"""Each row of docs/providers.md is played, against a stub of the provider's own protocol."""

import json
import os
import re
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from chat_protocol import Azure, Chat
from command import WITH_LITELLM, run_python
from flight_bundle import Bundle
from native_protocols import Anthropic, Cohere, Converse, Gemini, Ollama
from provider_stub import ProviderStub, Refused
from thorough import often

PAGE = Path(__file__).parents[3] / "docs" / "providers.md"
V1 = "/v1/chat/completions"
THINKING = {"thoughts": "reasoning_content", "returned": "reasoning_content"}
OF_VLLM: dict[str, Any] = {
    "thoughts": "reasoning",
    "returned": "reasoning reasoning_content",
    "message": {"annotations": None, "audio": None, "function_call": None},
    "choice": {"stop_reason": None, "token_ids": None},
    "top": {"prompt_logprobs": None, "kv_transfer_params": None},
}
PROTOCOLS: dict[tuple[str, str], Any] = {
    ("OpenAI", "openai"): Chat(V1, top={"service_tier": "default"}, message={"refusal": None}),
    ("Anthropic", "anthropic"): Anthropic(),
    ("Google Gemini", "gemini"): Gemini(),
    ("Azure OpenAI", "azure"): Azure("/chat/completions", message={"refusal": None}),
    ("Amazon Bedrock", "bedrock"): Converse(),
    ("Mistral", "mistral"): Chat(V1, fields="random_seed", refused="seed user", ids="{:09d}"),
    ("Groq", "groq"): Chat(
        "/openai/v1/chat/completions",
        thoughts="reasoning",
        returned="reasoning",
        top={"service_tier": "on_demand", "x_groq": {"id": "req_1"}},
        usage={"queue_time": 0.1, "total_time": 0.2},
    ),
    ("DeepSeek", "deepseek"): Chat(V1, **THINKING, usage={"prompt_cache_hit_tokens": 60}),
    ("OpenRouter", "openrouter"): Chat(
        "/api/v1/chat/completions", fields="usage reasoning", marks=True, details=True
    ),
    ("Together AI", "together_ai"): Chat(V1, choice={"seed": 7348573948573948573}, top={"prompt": []}),
    ("Fireworks AI", "fireworks_ai"): Chat("/inference/v1/chat/completions", choice={"raw_output": None}),
    ("xAI", "xai"): Chat(V1, **THINKING),
    ("Cohere", "cohere"): Cohere(),
    ("vLLM", "openai"): Chat(V1, **OF_VLLM),
    ("vLLM", "hosted_vllm"): Chat(V1, **OF_VLLM),
    ("SGLang", "openai"): Chat(V1, **THINKING, choice={"matched_stop": None}, usage={"reasoning_tokens": 5}),
    ("llama.cpp", "openai"): Chat(V1, top={"timings": {"prompt_n": 10}, "system_fingerprint": "b6000"}),
    ("LM Studio", "openai"): Chat(V1, top={"stats": {}}),
    ("Ollama", "openai"): Chat(V1, thoughts="reasoning", returned="reasoning"),
    ("Ollama", "ollama_chat"): Ollama(),
}
"""The protocol of each row, by its name and the provider of its model."""
IN_WORKERS = ("vLLM", "openai")
"""Played in two processes as well."""
ROLLOUTS = often(4, 2)
"""Of each row, at once."""
CALLS = 6
"""Calls of models in a rollout: four of the agent, two of the user."""
LENIENT = ("Ollama", "ollama_chat")
"""Ignores fields that it does not know, and calls without a result."""
PROGRAM = """
import json
import os
import sys
from reward_kit.cli import main

for row in json.loads(os.environ["ROWS"]):
    os.environ.update(row["environment"])
    sys.argv[1:] = row["arguments"]
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code
    print("ended with", code, flush=True)
    for name in row["environment"]:
        del os.environ[name]
"""


@dataclass
class Row:
    """A row of the page's tables; ``address`` and ``thinking`` are (name, value), as the page writes them."""

    name: str
    model: str
    keys: list[str]
    address: list[tuple[str, ...]]
    thinking: list[tuple[str, ...]]

    @property
    def id(self) -> tuple[str, str]:
        return self.name, self.model.partition("/")[0]

    def settings(self, stub: ProviderStub) -> tuple[dict[str, str], list[str]]:
        """The variables and the arguments that lead to ``stub``, with the paths that the page gives."""
        variables, arguments = {name: f"test-{name}" for name in self.keys}, []
        for name, value in self.address:
            here = re.sub(r"https?://[^/]+", stub.url, value)
            if name.isupper():
                variables[name] = here
            else:
                arguments += ["--model-arg", f"{name}={here}", "--user-model-arg", f"{name}={here}"]
        for name, value in self.thinking:
            arguments += ["--model-arg", f"{name}={value}"]
        return variables, arguments


def rows() -> list[Row]:
    """The rows of all tables of the page."""
    found = []
    for line in re.findall(r"^\|.*`.*\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        codes = [re.findall(r"`([^`]+)`", cell) for cell in cells]
        assert len(cells) == 7, line
        pairs = [[tuple(code.split("=", 1)) for code in cell if "=" in code] for cell in codes]
        found.append(Row(cells[0], codes[1][0], codes[2], pairs[3], pairs[4]))
    return found


def refusals(protocol: Any, stub: ProviderStub) -> list[str]:
    """The refusals of a request after the first calls, with an unknown field, and without the last result."""
    request = next(request for request in stub.requests if protocol.read(request).results)
    turns = "messages" if "messages" in request.body else "contents"
    refused = []
    for change in ({"surprise": 1}, {turns: request.body[turns][:-1]}):
        with pytest.raises(Refused) as caught:
            protocol.read(replace(request, body={**request.body, **change}))
        refused.append(str(caught.value))
    return refused


@pytest.mark.timeout(300)
def test_every_row_is_played(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rollouts at once for each, with tools, and a simulated user at the same provider."""
    listed = rows()
    assert [row.id for row in listed] == list(PROTOCOLS)
    for name in list(os.environ):
        if re.search(r"_API_(KEY|BASE|VERSION)$|_BASE_URL$|^AWS_|_PROXY$", name, re.IGNORECASE):
            monkeypatch.delenv(name)
    runs = []
    with ExitStack() as stack:
        stubs = {}
        for row in listed:
            key = f"test-{row.keys[0]}" if row.keys else ""
            stub = stubs[row.id] = stack.enter_context(ProviderStub(PROTOCOLS[row.id], key=key))
            variables, arguments = row.settings(stub)
            common = ["agent-eval", "-d", "task.jsonl", "--retries", "0", "--patience", "5", "--quiet"]
            common += ["--n-rollouts", str(ROLLOUTS)]
            command = [*common, "--model", row.model, "--user-model", row.model, *arguments]
            runs.append({"environment": variables, "arguments": command})
            if row.id == IN_WORKERS:
                runs.append({"environment": variables, "arguments": [*command, "--workers", "2"]})
        variables = {**os.environ, **WITH_LITELLM, "ROWS": json.dumps(runs)}
        done = run_python(PROGRAM, bundle.folder, variables, timeout=250)
    assert done.error == ""
    assert {row: stub.refusals for row, stub in stubs.items() if stub.refusals} == {}
    passes = "".join(rf"  Pass\^{k} 1.000" for k in range(1, ROLLOUTS + 1))
    played = re.findall(rf"\((\S+)\){passes}(?:  Pass\^\d -)*\nended with 0", done.out)
    assert played == [run["arguments"][run["arguments"].index("--model") + 1] for run in runs]
    for row in stubs.keys() - {LENIENT}:
        unknown, unanswered = refusals(PROTOCOLS[row], stubs[row])
        assert "surprise" in unknown
        assert "surprise" not in unanswered
    assert {
        row: len(stub.requests) for row, stub in stubs.items() if len(stub.requests) < ROLLOUTS * CALLS
    } == {}
