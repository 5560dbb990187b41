"""Commands whose caller has closed the standard streams, does not read on, or ignores its children."""

import signal
import subprocess
import sys

import pytest
from command import new_python
from flight_bundle import GOLD, REWARD, Bundle

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no POSIX shell")

ROWS = [{"actions": GOLD}]
EVALUATE = "agent-eval -d flight_task --agent gold --eval-id mine"


def shell(bundle: Bundle, arguments: str, rest: str) -> subprocess.CompletedProcess[str]:
    line = f"{sys.executable} -m reward_kit {arguments} {rest}"
    command = ["bash", "-o", "pipefail", "-c", line]
    return subprocess.run(command, cwd=bundle.folder.parent, capture_output=True, text=True, timeout=60)


def test_commands_do_their_work_without_the_streams(bundle: Bundle) -> None:
    bundle.write("reward.py", f"print('from the bundle')\n{REWARD}")
    runs = bundle.folder.parent / "runs"
    for arguments, closed in ((EVALUATE, "<&- >&- 2>&-"), ("show mine", ">&-")):
        done = shell(bundle, arguments, closed)
        assert done.returncode == 0, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
    assert (runs / "evals" / "mine.json").exists()
    for file in runs.rglob("*"):
        if file.is_file():
            assert b"from the bundle" not in file.read_bytes(), "it was printed into a file of the run"


def test_a_reader_that_does_not_read_on_is_no_failed_evaluation(bundle: Bundle) -> None:
    for arguments in (EVALUATE, "show mine"):
        done = shell(bundle, arguments, "| true")
        assert "Traceback" not in done.stderr
        assert done.returncode in (141, 0), done.stderr


def test_a_caller_that_ignores_its_children_is_no_trouble(bundle: Bundle) -> None:
    options = ["--n-rollouts", "3", "--workers", "2"]

    def ignores() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    done = new_python("-m", "reward_kit", *EVALUATE.split(), *options, preexec_fn=ignores)
    assert (done.code, "Error" in done.err) == (0, False), done.err
    assert "3 of 3 judged rollouts passed" in done.out
