"""The benchmark's prompts and policies, by variant; code that has them is parsed and never run."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.tau.source import SourceError

if TYPE_CHECKING:
    from reward_kit.agent.tau.source import PythonFile
    from reward_kit.agent.tau.tau2.port.source import Tau2Source

BANKING = "banking_knowledge"
_STOPS = ("user/user_simulator_base.py", "user/base.py")
_AGENT = "agent/llm_agent.py"
_DONE = "done"


@dataclass(frozen=True, slots=True)
class Search:
    """A way to search: the prompt, the toolkit in ``retrieval_toolkits``, and its retrievers."""

    prompt: str
    toolkit: str = "KnowledgeToolsPlain"
    retrievers: tuple[str, ...] = ()


KNOWLEDGE = {
    "bm25_grep": Search("classic_rag_bm25", "KnowledgeToolsWithKBSearchAndGrep", ("BM25", "Grep")),
    "bm25": Search("classic_rag_bm25_no_grep", "KnowledgeToolsWithKBSearch", ("BM25",)),
    "grep_only": Search("grep_only", "KnowledgeToolsWithGrep", ("Grep",)),
    "golden_retrieval": Search("required_docs"),
    "full_kb": Search("full_kb"),
    "no_knowledge": Search("no_knowledge"),
}
_NEEDS_NETWORK = re.compile(
    r"alltools(-qwen)?|terminal_use(_write)?|bm25_reranker(_grep)?|(qwen|openai)_embeddings(_reranker)?(_grep)?"
)
VARIANTS = {
    "telecom": ("manual", "workflow", "solo", "workflow-solo"),
    BANKING: tuple(KNOWLEDGE),
    "mock": ("default", "solo"),
}
"""The variants by domain, the default first."""


def check_variant(domain: str, variant: str | None) -> str:
    """The variant, by default the first; raises ``SourceError`` for one that there is not."""
    known = VARIANTS.get(domain, ("default",))
    if variant is None or variant in known:
        return variant or known[0]
    if domain == BANKING and _NEEDS_NETWORK.fullmatch(variant):
        fault = f"{variant!r} is not available: it needs embeddings, a reranking model or a shell"
    else:
        fault = f"{domain} has no variant {variant!r}"
    raise SourceError(f"{fault}. Choose one of {', '.join(known)}" if domain in VARIANTS else fault)


def agent_prompt(source: Tau2Source, policy: str, *, solo: bool) -> str:
    """The system prompt of an agent, that of one which works alone with a place for the ticket."""
    file = source.code.python(_AGENT, "the agent's instructions")
    if not solo:
        frame = _text(file, "SYSTEM_PROMPT")
        return _put(file, frame, agent_instruction=_text(file, "AGENT_INSTRUCTION"), domain_policy=policy)
    instruction = _put(file, _text(file, "AGENT_SOLO_INSTRUCTION"), stop_function_name=_DONE)
    frame = _text(file, "SYSTEM_PROMPT_SOLO")
    return _put(file, frame, agent_instruction=instruction, domain_policy=policy, ticket="{ticket}")


def solo_ending(source: Tau2Source) -> str:
    """The description of the tool with which such an agent ends."""
    file = source.code.python(_AGENT, "the agent's instructions")
    return ast.get_docstring(file.function(_DONE)) or _DONE


def user_prompts(source: Tau2Source) -> dict[str, str]:
    """The user's system prompts: of a user without tools, and of one with tools."""
    file = source.code.python("user/user_simulator.py", "the simulated user")
    frame = _text(file, "SYSTEM_PROMPT")
    found = {}
    for name, guidelines in (
        ("prompts/user", "simulation_guidelines"),
        ("user_with_tools", "simulation_guidelines_tools"),
    ):
        text = source.data.text(f"user_simulator/{guidelines}.md", "the user's guidelines")
        text = text.replace("<PERSONA_GUIDELINES>", "")
        place = next((one for one in re.findall(r"\{(\w+)\}", frame) if "guidelines" in one), "guidelines")
        found[name] = _put(file, frame, **{place: text, "instructions": "{instruction}"})
    return found


def stop_tokens(source: Tau2Source) -> list[str]:
    """The texts with which the user ends the conversation."""
    path = next((one for one in _STOPS if source.code.has(one)), _STOPS[0])
    file = source.code.python(path, "the stop tokens")
    return [_text(file, name) for name in ("STOP", "TRANSFER", "OUT_OF_SCOPE")]


def greeting(source: Tau2Source) -> str:
    file = source.code.python("orchestrator/orchestrator.py", "the agent's greeting")
    node = file.value("DEFAULT_FIRST_AGENT_MESSAGE", "the agent's greeting")
    return file.text(file.arguments(node, "AssistantMessage").get("content", node), "the greeting, a text")


def judge_prompts(source: Tau2Source) -> dict[str, str]:
    """The prompts of the judge of sentences, the second with places for conversation and sentences."""
    file = source.code.python("evaluator/evaluator_nl_assertions.py", "the judge of sentences")
    places = {name: f"{{{name}}}" for name in ("trajectory_str", "nl_assertions")}
    found: dict[str, str] = {}
    for node in ast.walk(file.tree):
        name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if isinstance(node, ast.Assign) and name in ("system_prompt", "user_prompt"):
            found.setdefault(f"judge_{name.partition('_')[0]}", file.filled(node.value, places))
    if len(found) != 2:
        raise file.absent("system_prompt and user_prompt")
    return found


def policy(source: Tau2Source, domain: str, variant: str, task: dict[str, Any] | None = None) -> str:
    """The policy of a variant of a domain, for ``task`` where it depends on it."""
    folder, what, files = f"domains/{domain}/", "the agent's policy", source.data
    if domain == "telecom":
        solo = "_solo" if variant.endswith("solo") else ""
        support = f"tech_support_workflow{solo}" if "workflow" in variant else "tech_support_manual"
        main, support = (files.text(f"{folder}{name}.md", what) for name in (f"main_policy{solo}", support))
        return (
            f"<main_policy>\n{main}\n</main_policy>\n<tech_support_policy>\n{support}\n</tech_support_policy>"
        )
    if domain == BANKING:
        return _banking_policy(source, f"{folder}prompts/", variant, task)
    return files.text(f"{folder}policy{'_solo' if variant == 'solo' else ''}.md", what)


def _banking_policy(source: Tau2Source, folder: str, variant: str, task: dict[str, Any] | None) -> str:
    template = source.data.text(f"{folder}{KNOWLEDGE[variant].prompt}.md", "the agent's policy")
    text = re.sub(
        r"\{\{component:(\w+)\}\}",
        lambda found: source.data.text(f"{folder}components/{found[1]}.md", "a part of the policy"),
        template,
    )
    known = documents(source) if "{{" in text else []
    whole = _joined(known)
    text = re.sub(r"\{\{full_knowledge_base\}\}", lambda _: whole, text)
    wanted = (task or {}).get("required_documents") or []
    by_name = {**{one["id"]: one for one in known}, **{one["title"]: one for one in known}}
    given = _joined([by_name[name] for name in wanted if name in by_name])
    return text.replace("{{required_documents}}", given or "(No documents provided)")


def _joined(found: list[dict[str, str]]) -> str:
    return "\n\n---\n\n".join(f"## {one['title']}\n\n{one['content']}" for one in found)


def documents(source: Tau2Source) -> list[dict[str, str]]:
    """The documents of banking_knowledge, by the names of their files."""
    files, folder = source.data, f"domains/{BANKING}/documents"
    return [files.value(f"{folder}/{name}", "a document") for name in files.names(folder, ".json")]


def _text(file: PythonFile, name: str) -> str:
    """The text assigned to ``name``, with or without ``.strip()``."""
    node: Any = file.value(name, "a text")
    stripped = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".strip")
    text = file.text(node.func.value if stripped else node, "a text")
    return text.strip() if stripped else text


def _put(file: PythonFile, frame: str, **parts: str) -> str:
    for name in parts:
        if f"{{{name}}}" not in frame:
            raise SourceError(f"{file.place} has a prompt without {{{name}}}")
    return re.sub(r"\{(\w+)\}", lambda found: parts.get(found[1], found[0]), frame)
