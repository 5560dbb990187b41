"""``reward-kit view``: pages over HTTP, and as files."""

import http.client
import json
import re
import signal
import socket
from pathlib import Path
from urllib.parse import unquote, urlsplit

from command import Command, run_command, serving
from flight_bundle import Bundle
from planned_agent import evaluate

HREF = re.compile(r'href="([^"#]+)')


def get(address: str, host: str | None = None) -> tuple[http.client.HTTPResponse, str]:
    parts = urlsplit(address)
    assert parts.hostname == "127.0.0.1"
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection.request("GET", target, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer, answer.read().decode()


def test_the_pages_are_served_to_browsers_of_this_machine_alone(bundle: Bundle) -> None:
    evaluate(bundle, "first", {"a": [1, 0]})
    with serving("view", "latest") as (process, address):
        assert address.endswith("/evals/first.html")
        answer, html = get(address)
        assert answer.status == 200
        assert "1 of 2 judged rollouts passed" in html
        policy = answer.getheader("Content-Security-Policy") or ""
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "1 rollout" in get(f"{address}?by=rollouts&result=failed")[1]
        assert get(f"{address}?sort=nothing")[0].status == 404
        raw, text = get(address.replace(".html", ".json"))
        assert raw.getheader("Content-Type") == "application/json"
        assert json.loads(text)["successes"] == 1
        assert get(address.replace("first", "second"))[0].status == 404
        assert get(address, host="elsewhere.example")[0].status == 400
        evaluate(bundle, "second", {"a": [1, 1]})
        assert get(address.replace("first", "second"))[0].status == 200
        assert get(address.replace("evals/first.html", "compare/first/second"))[0].status == 200
        root = address.removesuffix("evals/first.html")
        names = re.findall(r'type="checkbox" name="pick" value="(\w+)"', get(root)[1])
        assert names == ["second", "first"]
        ticked = get(f"{root}compare?pick=second&pick=first")[0]
        assert (ticked.status, ticked.getheader("Location")) == (303, "/compare/first/second")
        assert get(f"{root}compare?pick=second")[0].status == 404
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert "Traceback" not in errors


def test_a_file_outside_of_a_runs_folder_is_refused_with_the_reason(bundle: Bundle, command: Command) -> None:
    file = evaluate(bundle, "first", {"a": [1]}).log_path
    Path("solo.db").write_bytes(file.read_bytes())
    ran = run_command("view", "solo.db", "--out", "pages")
    assert (ran.code, "it lies in no runs folder. Put it there: RUNS/evals/NAME.db" in ran.err) == (2, True)


def test_pages_as_files_lead_to_each_other(bundle: Bundle, command: Command) -> None:
    result = evaluate(bundle, "first", {"a": [1, 0], "b": [1]})
    evaluate(bundle, "second", {"b": [1]})
    done = command("first", "--out", "pages")
    assert (done.code, done.out, done.err) == (0, "5 pages, beginning with pages/index.html\n", "")
    written = {path for path in Path("pages").rglob("*") if path.is_file()}
    assert {path.stem for path in written} >= {f"roll_{one.id}" for one in result.outcomes}
    for path in written:
        for link in HREF.findall(path.read_text()):
            assert (path.parent / unquote(link)).resolve() in {one.resolve() for one in written}
    assert command("--out", "pages").out.startswith("7 pages")


def test_faults_are_one_line(bundle: Bundle, command: Command, tmp_path: Path) -> None:
    evaluate(bundle, "first", {"a": [1]})
    evaluate(bundle, "other", {"a": [1]}, output_dir=str(tmp_path / "elsewhere"))
    Path("file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, words in (
            (["-o", "empty"], "there are no evaluations in this folder"),
            (["first", "elsewhere/evals/other.json"], "several runs folders"),
            (["--port", port], f"cannot listen on 127.0.0.1 port {port}"),
            (["--out", "file"], "file"),
        ):
            done = command(*arguments)
            assert done.code == 2, arguments
            assert words in done.err
            assert "Traceback" not in done.err
