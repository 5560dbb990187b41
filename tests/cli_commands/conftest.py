"""Fixtures for the tests of commands that read finished evaluations."""

from collections.abc import Callable

import pytest
from command import Finished, run_command
from flight_bundle import Bundle


@pytest.fixture
def command(request: pytest.FixtureRequest, bundle: Bundle) -> Callable[..., Finished]:
    """Run the command that the test's file is named after."""
    name = request.path.stem.removeprefix("test_")
    return lambda *arguments: run_command(name, *arguments)
