"""Search in the documents of banking_knowledge: the benchmark's retrievers that need no network.

BM25: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009, in the variant
Okapi with a lower bound for the weight of frequent words.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

TOP_K = 10
K1, B, EPSILON = 1.5, 0.75, 0.25

Found = list[tuple[str, float]]
"""Ids of documents with their scores, best first."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations as the benchmark's answers print them; constant, so that answers are repeatable."""

    retrieval_ms: float = 0.0
    postprocessing_ms: float = 0.001
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Retrieved:
    results: Found
    timing: Timing = Timing()


class Documents:
    """The documents of a bundle; a retriever searches in them."""

    def __init__(self, folder: str | Path) -> None:
        self._file = Path(folder) / "theirs" / "documents.json"

    @cached_property
    def _documents(self) -> dict[str, dict[str, str]]:
        found = json.loads(self._file.read_text(encoding="utf-8"))
        return {one["id"]: one for one in found}

    @cached_property
    def texts(self) -> dict[str, str]:
        return {key: one["content"] for key, one in self._documents.items()}

    def search(self, query: str) -> Found:
        """All documents with a score, best first."""
        raise NotImplementedError

    def retrieve(self, query: str, top_k: int = TOP_K, *, return_timing: bool = False) -> Any:
        """The best documents for a query."""
        found = self.search(query)[:top_k] if query.strip() else []
        return Retrieved(found) if return_timing else found

    def get_document_title(self, doc_id: str) -> str | None:
        return self._documents.get(doc_id, {}).get("title")

    def get_document_content(self, doc_id: str) -> str | None:
        return self.texts.get(doc_id)


class Grep(Documents):
    """Finds the documents that match a regular expression, by the number of matches."""

    def search(self, query: str) -> Found:
        try:
            pattern = re.compile(query, re.IGNORECASE)
        except re.error:
            pattern = re.compile(re.escape(query), re.IGNORECASE)
        counts = {key: float(len(pattern.findall(text))) for key, text in self.texts.items()}
        return sorted(((key, n) for key, n in counts.items() if n), key=lambda one: one[1], reverse=True)


class BM25(Documents):
    """Finds the documents with the words of a query."""

    @cached_property
    def _frequencies(self) -> list[Counter[str]]:
        return [Counter(text.lower().split()) for text in self.texts.values()]

    @cached_property
    def _lengths(self) -> list[float]:
        lengths = [sum(words.values()) for words in self._frequencies]
        mean = sum(lengths) / len(lengths)
        return [K1 * (1 - B + B * length / mean) for length in lengths]

    @cached_property
    def _weights(self) -> dict[str, float]:
        total = len(self._frequencies)
        holders = Counter(word for words in self._frequencies for word in words)
        weights = {word: math.log(total - n + 0.5) - math.log(n + 0.5) for word, n in holders.items()}
        least = EPSILON * (sum(weights.values()) / len(weights))
        return {word: least if weight < 0 else weight for word, weight in weights.items()}

    def retrieve(self, query: str, top_k: int = TOP_K, *, return_timing: bool = False) -> Any:
        """The best documents for a query; none for no query, whatever stands in its place."""
        return super().retrieve(query or "", top_k, return_timing=return_timing)

    def search(self, query: str) -> Found:
        scores = [0.0] * len(self._frequencies)
        for word in query.lower().split():
            weight = self._weights.get(word, 0.0)
            for at, (words, length) in enumerate(zip(self._frequencies, self._lengths, strict=True)):
                if n := words.get(word, 0):
                    scores[at] += weight * (n * (K1 + 1) / (n + length))
        return sorted(zip(self.texts, scores, strict=True), key=lambda one: one[1], reverse=True)
