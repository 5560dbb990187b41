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
