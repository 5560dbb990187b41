"""Fixtures for all tests."""

import gc
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# stub_server, small_task and answer_shapes are importable from every test folder, none of which is a package.
sys.path[:0] = [str(Path(__file__).parent / "agent" / folder) for folder in (".", "models")]

from thorough import often  # noqa: E402 - it is found there

# A busy machine takes its time.
settings.register_profile("reward-kit", deadline=None, max_examples=often(100))
settings.load_profile("reward-kit")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Read with hundreds of thousands of objects that stay, the tests are not looked through for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


NEED_LITELLM = (
    "agent/models/",
    "agent/providers/",
    "test_a_booking_is_made_and_paid_over_several_turns",
    "test_a_judge_that_cannot_be_asked_ends_the_run_before_it_begins",
    "test_a_model_without_a_price_is_named",
    "test_a_server_that_stays_broken_is_nobodys_fault",
    "test_what_is_secret_is_not_part_of_a_model_s_identity",
)
LONG = 300
"""Seconds from which a time limit says that a test is long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Play first what imports LiteLLM, so that one process of several does, then what is long.

    The import takes seconds. Each process begins with a part of the tests, and when it is through with it,
    takes over some from the end of another's.
    """

    def place(item: pytest.Item) -> int:
        limit = item.get_closest_marker("timeout")
        is_long = limit is not None and limit.args[0] >= LONG
        return 0 if any(part in item.nodeid for part in NEED_LITELLM) else 1 if is_long else 2

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """The same of LiteLLM, whose objects are as many again, after the test that has imported it."""
    before = "litellm" in sys.modules
    done = yield
    if "litellm" in sys.modules and not before:
        gc.freeze()
    return done


@pytest.fixture
def bundle(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """A ``flight_bundle.Bundle`` in the working directory, with ``ROWS`` and ``PLAYERS`` of the module."""
    from flight_bundle import flight_bundle

    monkeypatch.chdir(tmp_path)
    keys = () if "stub_llm" in request.fixturenames else ("OPENAI_API_KEY",)
    for name in ("MODEL_AGENT", "MODEL_SIM", *keys):
        monkeypatch.delenv(name, raising=False)
    made = flight_bundle(tmp_path)
    if hasattr(request.module, "ROWS"):
        made.rows(*request.module.ROWS)
    if hasattr(request.module, "PLAYERS"):
        made.players = f"players_{abs(hash(tmp_path))}"  # another module for each test
        (tmp_path / f"{made.players}.py").write_text(request.module.PLAYERS)
    return made


@pytest.fixture
def stub_llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """An OpenAI-compatible server (``stub_server.StubServer``) that the environment points at."""
    from stub_server import served

    yield from served(monkeypatch)
