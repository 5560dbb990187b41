"""The same trajectory has the same answers, states and rewards on a ported bundle and in τ²-bench's own code.

``make test-tau2`` compares a sample of the trajectories; with ``TAU2_ARGS=--thorough`` all of them, which
takes an hour. The deviations that are kept are counted in the summary, and named in the bundles' README.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import oracle
import pytest
from compare import KEPT, differences
from our_code import Bundle
from trajectories import QUICK, THOROUGH

CHUNK = 500
pytestmark = pytest.mark.skipif(oracle.missing() is not None, reason=oracle.missing() or "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundles, ported from the oracle's source."""
    folder = tmp_path_factory.mktemp("ported")
    source = ["--source", oracle.CHECKOUT] if oracle.CHECKOUT else []
    command = [sys.executable, "-m", "reward_kit", "port", "tau2", "--domain", "all", str(folder), *source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def bundle(folder: Path, domain: str) -> Iterator[Bundle]:
    if domain not in oracle.domains():
        pytest.skip(f"the oracle's source has no {domain}")
    place = folder / f"tau2_{domain}"
    file = place / "task_full.jsonl"
    with Bundle(file if file.is_file() else place / "task.jsonl", oracle.domains()[domain]) as bundle:
        yield bundle


@pytest.mark.parametrize("domain", THOROUGH)
def test_answers_states_and_rewards_are_the_same(
    domain: str, bundle: Bundle, report: list[str], deviations: Counter[str], pytestconfig: pytest.Config
) -> None:
    known, every = oracle.domains()[domain], range(THOROUGH[domain])
    thorough = pytestconfig.getoption("--thorough")
    numbers = list(every) if thorough else sorted(Random(0).sample(every, QUICK[domain]))
    calls, different = 0, {}
    with oracle.Oracle(domain) as theirs:
        for start in range(0, len(numbers), CHUNK):
            chunk = [known.trajectory(number) for number in numbers[start : start + CHUNK]]
            theirs.keep(chunk)
            for number, trajectory in zip(numbers[start:], chunk, strict=False):
                answer = theirs.answer(trajectory)
                calls += sum("name" in entry for entry in trajectory["calls"])
                if found := differences(answer, bundle.play(trajectory), deviations, known):
                    different[number] = found
    counts = ", ".join(f"{number} times: {name}" for name, number in sorted(deviations.items()))
    report.append(f"{domain}: {len(numbers)} trajectories, {calls} calls, {len(different)} differ; {counts}")
    assert different == {}
    assert set(deviations) <= KEPT[domain]


@pytest.mark.parametrize("domain", QUICK)
def test_the_oracle_without_shortcuts_answers_the_same(domain: str) -> None:
    if domain not in oracle.domains():
        pytest.skip(f"the oracle's source has no {domain}")
    some = [oracle.domains()[domain].trajectory(number) for number in (0, 3456)]
    with oracle.Oracle(domain) as kept, oracle.Oracle(domain, "--plain") as plain:
        assert [plain.answer(each) for each in some] == [kept.answer(each) for each in some]
