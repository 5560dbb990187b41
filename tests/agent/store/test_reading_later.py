"""A stored evaluation can be read whatever has become of its bundle, and without importing it."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from flight_bundle import GOLD, Bundle
from stored_rollouts import edit

from reward_kit.agent import compare, evaluate, export, load_evaluation
from reward_kit.agent.reports.pages.site import page_at

ROW = "flight.booking.001"
LATER = "UPDATE evaluation SET configuration = json_set(configuration, '$.of_a_later_version', json('[1]'))"
CHANGES: dict[str, Callable[[Bundle], object]] = {
    "nothing": lambda bundle: None,
    "the bundle is deleted": lambda bundle: shutil.rmtree(bundle.folder),
    "its tools do not import any more": lambda bundle: bundle.write("tools.py", "raise SystemExit"),
    "its row has another id": lambda bundle: bundle.rows({"id": "new", "seed_sql": "nonsense"}),
    "its dataset is no JSON": lambda bundle: bundle.write("task.jsonl", "{"),
    "it has an option of a later version": lambda bundle: edit(Path("runs/evals/old.db"), LATER),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_is_read_as_before(bundle: Bundle, change: Callable[[Bundle], object]) -> None:
    bundle.rows({"actions": GOLD, "n_rollouts": 2})
    result = evaluate(bundle.dataset, agent="gold", eval_id="old")
    change(bundle)
    before = {*sys.modules}
    stored = load_evaluation("old")
    assert (stored.status, stored.score, stored.usage) == ("complete", 1.0, result.usage)
    assert stored.to_table() == result.to_table()
    assert stored.fields_of(ROW) is not None
    assert [tool["function"]["name"] for tool in stored.tools_of(ROW) or ()][1:] == [
        "create_booking",
        "pay_booking",
    ]
    assert [len(record.tool_calls) for record in stored.records()] == [2, 2]
    assert compare("old", result).success.value == 0
    assert [line["reward"] for line in export("old")] == [1.0, 1.0]
    for page in (
        "index.html",
        "evals/old.html",
        "evals/old.json",
        f"{ROW}/roll_{result.outcomes[0].id}.html",
    ):
        assert page_at(Path("runs"), page).status == 200
    assert not [name for name in {*sys.modules} - before if name.startswith("flight_task")]
