"""Errors that a person can mend: what they say, and that another process can be told of them."""

import json

import pytest

from reward_kit.agent.rows.task_row import FaultyBundleError
from reward_kit.errors import ModelSetupError, RewardKitError, StorageError, ToolError, UsageError


def told(error: RewardKitError) -> RewardKitError:
    """The error as another process raises it."""
    return RewardKitError.from_json(json.loads(json.dumps(error.to_json())))


@pytest.mark.parametrize("kind", [RewardKitError, UsageError, ModelSetupError, StorageError, ToolError])
def test_another_process_raises_the_same_error(kind: type[RewardKitError]) -> None:
    error = told(kind("the fault", place="here", remedy="Mend it."))
    assert type(error) is kind
    assert str(error) == "here: the fault. Mend it."


def test_place_and_remedy_may_be_missing() -> None:
    assert str(told(StorageError("the disk is full"))) == "the disk is full"


def test_a_kind_that_is_defined_elsewhere_is_told_as_one_of_the_tree() -> None:
    error = told(FaultyBundleError(["row 1: faulty"]))
    assert type(error) is RewardKitError
    assert "row 1: faulty" in str(error)


def test_a_kind_that_was_not_expected_is_told_as_the_one_that_was() -> None:
    assert type(StorageError.from_json(UsageError("wrong").to_json())) is StorageError
