"""The variants of a domain: policies of telecom, ways to search in the documents of banking_knowledge."""

from __future__ import annotations

from dataclasses import dataclass

from reward_kit.agent.tau.source import SourceError

BANKING = "banking_knowledge"


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
_NEEDS_NETWORK = (
    "alltools",
    "alltools-qwen",
    "terminal_use",
    "terminal_use_write",
    "bm25_reranker",
    "bm25_reranker_grep",
    "qwen_embeddings",
    "qwen_embeddings_grep",
    "qwen_embeddings_reranker",
    "qwen_embeddings_reranker_grep",
    "openai_embeddings",
    "openai_embeddings_grep",
    "openai_embeddings_reranker",
    "openai_embeddings_reranker_grep",
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
    if domain == BANKING and variant in _NEEDS_NETWORK:
        fault = f"{variant!r} is not available: it needs embeddings, a reranking model or a shell"
    else:
        fault = f"{domain} has no variant {variant!r}"
    raise SourceError(f"{fault}. Choose one of {', '.join(known)}" if domain in VARIANTS else fault)
