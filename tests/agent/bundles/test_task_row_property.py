"""What holds for every row, whatever a dataset says."""

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reward_kit.agent.bundles.files import BundleFiles
from reward_kit.agent.rows.dataset import read_dataset
from reward_kit.agent.rows.task_row import INJECTED, KNOWN_FIELDS, FaultyRowError, TaskRow

KNOWN = list(KNOWN_FIELDS)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
IDS = st.from_regex(r"[A-Za-z0-9._][A-Za-z0-9._-]{0,19}", fullmatch=True).filter(
    lambda row_id: row_id not in {".", ".."} and row_id.lower() not in {"evals", ".bases", ".cache"}
)
OWN_FIELDS = st.dictionaries(TEXT.filter(lambda name: name not in {*KNOWN, *INJECTED}), JSON, max_size=3)
MESSAGES = st.builds(lambda text: {"role": "user", "content": text}, TEXT)
ARGUMENTS = st.dictionaries(st.just("x"), SCALARS)
ACTIONS = st.fixed_dictionaries({"name": TEXT.filter(bool), "arguments": ARGUMENTS})
VALID = st.fixed_dictionaries(
    {"id": IDS, "toolset": st.just("my_task.tools")},
    optional={
        "n_rollouts": st.integers(1, 10**6),
        "max_steps": st.integers(1, 10**6),
        "outputs": st.lists(TEXT, max_size=3),
        "metadata": st.dictionaries(TEXT, JSON, max_size=3),
        "initial_messages": st.lists(MESSAGES, max_size=3),
        "actions": st.lists(ACTIONS, max_size=3),
        "system_prompt": TEXT.filter(lambda text: not text.startswith("file:")),
    },
)
FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@FOLDER
@given(row=VALID, own=OWN_FIELDS, wrapped=st.booleans())
def test_a_valid_row_reaches_the_reward_as_it_was_written(
    tmp_path: Path, row: dict[str, Any], own: dict[str, Any], wrapped: bool
) -> None:
    written = {**own, **row}
    (tmp_path / "task.jsonl").write_text(json.dumps(written, indent=1 if wrapped else None), newline="")
    (read,) = read_dataset(tmp_path / "task.jsonl", BundleFiles(tmp_path)).rows
    fields = read.reward_fields()
    assert written.items() <= fields.items()
    defaults = {"initial_messages", "n_rollouts", "outputs", "max_steps", "metadata"}
    assert set(fields) - set(written) <= defaults


@given(data=st.dictionaries(st.sampled_from([*KNOWN, "messages", "own"]), JSON) | JSON)
def test_every_object_is_either_a_row_or_has_faults(data: Any) -> None:
    try:
        row = TaskRow.from_json(data)
    except FaultyRowError as error:
        faults = [fault for _, fault in error.faults]
    else:
        faults = ["none"] if row.id == data["id"] else []
    assert faults
    assert all(faults)
