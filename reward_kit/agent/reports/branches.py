"""The tree of a rollout: the branches that continue from its steps, and the branches of those."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from reward_kit.agent.base.text import count
from reward_kit.agent.reports.facts import strategy
from reward_kit.agent.scoring.numbers import bracketed, score
from reward_kit.agent.store.stored_evaluation import Origin, branches_in, load_evaluation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from reward_kit.agent.store.stored_evaluation import StoredEvaluation

Place = tuple[str, str]
"""A rollout: the name of its evaluation, and its id."""
DEEPEST = 20
"""Generations of branches that are shown; forged files may name each other."""


class TreeLine(NamedTuple):
    """A line of the tree: ``stem`` is drawn before the ``name``, which links to a page, and the ``text``.

    ``page`` is the address of that page without its ending; empty for a rollout that is gone.
    """

    stem: str
    name: str
    text: str
    page: str
    evaluation: str
    is_here: bool

    def __str__(self) -> str:
        return f"{self.stem}{self.name}: {self.text}{'  <- this one' if self.is_here else ''}"


def trees_of(evals: Path, evaluation: str, rollout: str | None = None) -> list[TreeLine]:
    """The tree that holds a rollout, or of an evaluation: that of its origin, or those of its rollouts.

    Empty for a rollout that has no branches and is none. Raises ``StorageError`` for a damaged file.
    """
    grown: dict[Place, list[tuple[Origin, Path]]] = {}
    origins: dict[str, Origin] = {}
    for origin, file in branches_in(evals):
        grown.setdefault((origin.evaluation, origin.rollout), []).append((origin, file))
        origins[file.stem] = origin
    here = (evaluation, rollout)
    if evaluation in origins:
        roots = [_root(origins, evaluation)]
    else:
        roots = [place for place in grown if place[0] == evaluation and rollout in (None, place[1])]
    return [line for root in roots for line in _Tree(evals, grown, here).lines(root)]


def _root(origins: dict[str, Origin], evaluation: str) -> Place:
    place = evaluation, ""
    for _ in range(DEEPEST):
        if (origin := origins.get(place[0])) is None:
            break
        place = origin.evaluation, origin.rollout
    return place


def tree_lines(lines: Iterable[TreeLine], width: int | None) -> Iterator[str]:
    """The tree for a terminal, long lines folded."""
    for line in lines:
        below = line.stem.replace("├─", "│ ").replace("└─", "  ")
        yield from wrap(str(line), width or 1000, subsequent_indent=f"{below}  ", break_on_hyphens=False)


class _Tree:
    def __init__(
        self, evals: Path, grown: dict[Place, list[tuple[Origin, Path]]], here: tuple[str, str | None]
    ) -> None:
        self._evals, self._grown, self._here = evals, grown, here

    def lines(self, root: Place) -> Iterator[TreeLine]:
        found = Origin(*root, 0).outcome(self._evals)
        if found is None:
            yield TreeLine("", root[0], "the rollout is gone", "", root[0], is_here=False)
        else:
            text = f"{found.verdict}, {count(found.steps, 'step')}"
            page = f"{found.row_id}/roll_{found.id}"
            name = f"{root[0]} {found.row_id}#{found.index + 1}"
            yield TreeLine("", name, text, page, root[0], is_here=root == self._here)
        yield from self._branches(self._grown.get(root, []), "", DEEPEST)

    def _branches(
        self, branches: Sequence[tuple[Origin, Path]], stem: str, depth: int, of: str = ""
    ) -> Iterator[TreeLine]:
        """The evaluations of these branches, and below each the branches of its rollouts."""
        ordered = sorted(branches, key=lambda one: (one[0].step, one[1].stem))
        for number, (origin, file) in enumerate(ordered, 1):
            is_last = number == len(ordered)
            stored = load_evaluation(file)
            name = f"{of}@{origin.step} {stored.eval_id}"
            text = _standing(stored, origin)
            drawn = f"{stem}{'└─ ' if is_last else '├─ '}"
            is_here = self._here[0] == stored.eval_id
            yield TreeLine(drawn, name, text, f"evals/{stored.eval_id}", stored.eval_id, is_here)
            if depth:
                below = f"{stem}{'   ' if is_last else '│  '}"
                numbers = {one.id: f"#{one.index + 1}" for one in stored.outcomes}
                for place in [one for one in self._grown if one[0] == stored.eval_id]:
                    of_rollout = numbers.get(place[1], "gone ")
                    yield from self._branches(self._grown[place], below, depth - 1, of_rollout)


def _standing(stored: StoredEvaluation, origin: Origin) -> str:
    """The number of branches that passed, with its interval, their mean reward, and who played them."""
    first = stored.pass_power.get(1)
    these = first.intervals.these_tasks if first else None
    reward = stored.averages.reward
    rate = f" {bracketed(these)}" if these else ""
    replaced = ", another tool result" if origin.tool_result is not None else ""
    return (
        f"{stored.passed} of {stored.n_scored} passed{rate}, reward {score(reward.value if reward else None)}"
        f", {strategy(stored)}{replaced}"
    )
