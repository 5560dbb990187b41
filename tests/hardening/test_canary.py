"""Keys planted everywhere a person may give one are found nowhere but in what the model's server received."""

import base64
import json
import os
from pathlib import Path

import pytest
from command import WITH_LITELLM, run_command
from flight_bundle import Bundle
from stub_server import Answer, StubServer

KEY = "canary-key-4711-environment"
TOKEN = "canary-token-4712-environment"
ARGUMENT = "canary-argument-4713-option"
HEADER = "canary-header-4714-option"
PASSWORD = "canary-password-4715-address"
CANARIES = (KEY, TOKEN, ARGUMENT, HEADER, PASSWORD)
ECHO = " ".join(["denied:", *CANARIES, f"Bearer {KEY}", base64.b64encode(f"me:{PASSWORD}".encode()).decode()])
RUN = ("-d", "task.jsonl", "--model", "openai/gpt-4o-mini", "--no-sim-user", "--n-rollouts", "2")
EVERYWHERE = ("--debug", "--json", "all.json", "--cache", "--retries", "0", "--eval-id", "one")


def address(stub: StubServer) -> str:
    return stub.url.replace("http://", f"http://me:{PASSWORD}@")


def run(bundle: Bundle, *arguments: str, verbose: bool = False, **variables: str) -> tuple[int, str]:
    environment = {name: one for name, one in os.environ.items() if not name.startswith(("OPENAI", "MODEL"))}
    environment.update(OPENAI_API_KEY=KEY, MY_OWN_TOKEN=TOKEN, **variables)
    options = ["-v"] if verbose else []
    ran = run_command(*options, "agent-eval", *arguments, cwd=bundle.folder, env=environment)
    return ran.code, ran.out + ran.err


def assert_no_canary(folder: Path, said: str) -> None:
    encoded = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" and path.parent.name == "evals" for path in files)
    for canary in (*CANARIES, encoded):
        assert canary not in said
        assert [str(path) for path in files if canary.encode() in path.read_bytes()] == [], canary
        assert [str(path) for path in files if canary in path.name] == []


@pytest.mark.parametrize(
    ("status", "client"), [*((status, "direct") for status in (200, 400, 401, 429)), (401, "litellm")]
)
def test_no_key_reaches_any_file(bundle: Bundle, stub_llm: StubServer, status: int, client: str) -> None:
    faults = [Answer(status=status, error=ECHO, headers={"Retry-After": "0"})]
    stub_llm.script("gpt-4o-mini", ["No."] if status == 200 else faults)
    headers = json.dumps({"X-Auth": HEADER, "Proxy-Authorization": f"Bearer {HEADER}"})
    given = (f"api_key={ARGUMENT}", f"api_base={stub_llm.url}", f"extra_headers={headers}")
    options = ("--client", client, *(part for one in given for part in ("--model-arg", one)))
    elsewhere = {"OPENAI_API_BASE": address(stub_llm), **(WITH_LITELLM if client == "litellm" else {})}
    code, said = run(bundle, *RUN, *EVERYWHERE, *options, verbose=True, **elsewhere)
    assert code == {200: 0, 429: 1}.get(status, 2), said
    sent = json.dumps(stub_llm.request_headers)
    assert ARGUMENT in sent
    assert HEADER in sent
    assert_no_canary(bundle.folder, said)
    if client == "litellm":
        return  # the same from here on

    code, said = run(bundle, "--resume", "one", "--debug", **elsewhere)
    assert code == 2
    assert "is a secret, which is not stored" in said
    code, said = run(bundle, "--resume", "one", *options, **elsewhere)
    assert_no_canary(bundle.folder, said)


@pytest.mark.parametrize("status", [200, 401])
def test_nor_does_a_password_in_the_address(bundle: Bundle, stub_llm: StubServer, status: int) -> None:
    refusal = Answer(status=status, error=f"{KEY} {PASSWORD}")
    stub_llm.script("gpt-4o-mini", ["No."] if status == 200 else [refusal])
    code, said = run(bundle, *RUN, *EVERYWHERE, OPENAI_API_BASE=address(stub_llm), verbose=True)
    assert code == {200: 0, 500: 1}.get(status, 2), said
    expected = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    assert {headers["Authorization"] for headers in stub_llm.request_headers} == {f"Basic {expected}"}
    assert_no_canary(bundle.folder, said)


def test_nor_does_one_in_an_option_or_of_a_server_that_is_down(bundle: Bundle) -> None:
    gone = f"http://me:{PASSWORD}@127.0.0.1:9/v1"
    code, said = run(bundle, *RUN, *EVERYWHERE, "--model-arg", f"api_base={gone}")
    assert code == 1, said
    assert "cannot connect to http://" in said
    assert_no_canary(bundle.folder, said)


def test_an_agent_behind_http_with_a_password_in_its_address(bundle: Bundle) -> None:
    agent = f"http://me:{PASSWORD}@127.0.0.1:9/agent"
    code, said = run(bundle, "-d", "task.jsonl", "--agent", agent, "--no-sim-user", *EVERYWHERE, verbose=True)
    assert code != 0
    assert PASSWORD not in said
    files = [path for path in bundle.folder.rglob("*") if path.is_file()]
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


def test_a_key_in_dot_env_stays_there(bundle: Bundle, stub_llm: StubServer) -> None:
    stub_llm.script("gpt-4o-mini", [Answer(status=500, error=f"no {HEADER}")])
    (bundle.folder / ".env").write_text(f"HOUSE_SECRET={HEADER}\n")
    code, said = run(bundle, *RUN, *EVERYWHERE, OPENAI_API_BASE=stub_llm.url)
    assert code == 1
    (bundle.folder / ".env").unlink()
    assert_no_canary(bundle.folder, said)
