"""``reward-kit card``: what a published score claims, in one file that can be checked."""

from __future__ import annotations

from pathlib import Path

import click

from reward_kit.agent.base.files import TO_OUTPUT, check_target, write_output
from reward_kit.agent.base.printing import print_lines, say, warn
from reward_kit.agent.base.text import count
from reward_kit.cli.common_options import runs_option


@click.command()
@click.argument("evaluation", metavar="[EVALUATION]", required=False)
@runs_option
@click.option(
    "--output", metavar="FILE", help="Write it there (-: to the output). Default: EVALUATION.card.json."
)
@click.option("--audit", metavar="FILE", help="Keep the JSON result of an audit of the bundle in the card.")
@click.option("--verify", metavar="FILE", help="Check a card instead: against itself and its evaluation.")
def card(
    evaluation: str | None, output_dir: str, output: str | None, audit: str | None, verify: str | None
) -> int:
    """Write the card of an evaluation: hashes, settings, counts, scores, costs.

    EVALUATION is the name of an evaluation (latest: the last), or the path of its file. With --verify it
    may be left out: the card names its evaluation. The exit code is 1 if the card differs from it or
    contradicts itself, and 2 after an error.
    """
    from reward_kit.agent.base.encoding import readable_json
    from reward_kit.agent.comparison.card import card_of
    from reward_kit.agent.store.stored_evaluation import load_evaluation

    if verify is not None:
        if output is not None or audit is not None:
            raise click.UsageError("--verify goes with neither --output nor --audit.")
        return _verified(Path(verify), evaluation, output_dir)
    if evaluation is None:
        raise click.UsageError("Name the evaluation, or the card: --verify FILE.")
    check_target("--output", output)
    stored = load_evaluation(evaluation, output_dir)
    made = card_of(stored, None if audit is None else _audit(Path(audit)))
    path = output or f"{stored.eval_id}.card.json"
    write_output(readable_json(made), path)
    if path != TO_OUTPUT:
        say(f"{path}: {count(len(made['rows']), 'row')}, {made['denominators']['judged']} judged rollouts")
    return 0


def _verified(path: Path, evaluation: str | None, output_dir: str) -> int:
    from reward_kit.agent.comparison.card import differences_from, faults_of, read_card
    from reward_kit.agent.store.stored_evaluation import load_evaluation
    from reward_kit.errors import UsageError

    card = read_card(path)
    lines = faults_of(card)
    name = evaluation or str(card.get("evaluation"))
    try:
        stored = load_evaluation(name, output_dir)
    except UsageError as error:
        if evaluation is not None:
            raise
        warn(f"only the card itself was checked, for its evaluation is not here: {error}")
    else:
        lines += [line for line in differences_from(card, stored) if line not in lines]
    print_lines(lines)
    say(f"{path}: {count(len(lines), 'difference') if lines else 'nothing differs'}")
    return int(bool(lines))


def _audit(path: Path) -> object:
    from reward_kit.agent.base.strict_json import parsed_json
    from reward_kit.errors import UsageError

    try:
        return parsed_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"is no JSON result of an audit: {error}", place=str(path)) from error
