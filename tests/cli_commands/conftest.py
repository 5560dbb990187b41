"""Fixtures for the tests of commands that read finished evaluations."""

import pytest
from command import Command, run_command


@pytest.fixture
def command(request: pytest.FixtureRequest) -> Command:
    """Run the command that the test's file is named after."""
    name = request.path.stem.removeprefix("test_")
    return lambda *arguments: run_command(name, *arguments)
