"""``reward-kit init``, ``validate``, ``tools``, ``play``, ``pack`` and ``list``."""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command import run_command, run_python, stand_in

from reward_kit.agent.bundles.new_bundle import tools_of_openapi, tools_source

STRING, PET = {"type": "string"}, {"$ref": "#/components/schemas/Pet"}
PROPERTIES = {"age": {"type": "integer"}, "name": STRING, "parent": PET}
PET_ID = {"name": "pet-id", "in": "path", "required": True, "schema": STRING}
GET = {"operationId": "pets/get", "summary": "Get a pet", "parameters": [PET_ID]}
POST = {"summary": "Add a pet", "requestBody": {"content": {"application/json": {"schema": PET}}}}
OPENAPI = {
    "openapi": "3.1.0",
    "paths": {"/pets/{pet-id}": {"get": GET}, "/pets": {"post": POST}},
    "components": {"schemas": {"Pet": {"type": "object", "required": ["name"], "properties": PROPERTIES}}},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def library() -> Path:
    assert run_command("init", "library_task").code == 0
    return Path("library_task")


def test_a_new_bundle_is_right_and_can_be_played(library: Path) -> None:
    checked = run_command("validate", "library_task")
    assert checked.code == 0, checked.out + checked.err
    assert "warning" not in checked.out + checked.err
    told = run_command("validate", "--deep", "library_task", "--strict").out
    assert told.endswith("doing nothing in none\n"), told
    assert not any("NAME" in path.read_text() for path in library.iterdir())
    ran = run_command("agent-eval", "-d", "library_task", "--agent", "gold", "--quiet")
    assert "Pass^1 1.000" in ran.out


def test_the_schema_of_a_row_fits_the_rows(library: Path) -> None:
    schema = json.loads(run_command("validate", "--schema").out)
    validator = jsonschema.Draft202012Validator(schema)
    task = {"id": "a", "toolset": ".tools", "actions": [{"name": "find", "arguments": {}}], "own": 1}
    assert validator.is_valid(task)
    for wrong in ({"id": 1}, {"n_rollouts": 0}, {"actions": [{"arguments": {}}]}, {"outputs": [1]}):
        assert not validator.is_valid({**task, **wrong}), wrong


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("a b", "NAME: 'a b' cannot be used"),
        ("json", "NAME: 'json' is a module of Python's"),
        ("reward_kit", "NAME: 'reward_kit' is a module of Python's or this package"),
        ("library_task", "library_task: exists already"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(library: Path, name: str, fault: str) -> None:
    made = run_command("init", name)
    assert (made.code, made.out) == (2, "")
    assert made.err.startswith(f"Error: {fault}")


def test_a_name_with_a_hyphen_is_one_for_all_commands() -> None:
    for command in (["init"], ["validate"], ["pack"], ["agent-eval", "--agent", "gold", "--quiet", "-d"]):
        ran = run_command(*command, "clinic-task")
        assert ran.code == 0, ran


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"required_calls": ["find_books"]}, "never called: find_books"),
        ({"forbidden_calls": ["lend_book"]}, "called lend_book, which is forbidden"),
        ({"outputs": ["done"], "max_steps": 1}, "the conversation was cut off: max_steps"),
    ],
)
def test_the_reward_of_a_new_bundle_reads_the_row(library: Path, fields: dict[str, Any], fault: str) -> None:
    row = {"id": "a", "toolset": ".tools", "initial_messages": [{"role": "user", "content": "?"}]}
    lend = {"name": "lend_book", "arguments": {"book_id": 3, "member": "Ada"}}
    (library / "task.jsonl").write_text(json.dumps({**row, "actions": [lend], **fields}))
    assert run_command("agent-eval", "-d", library, "--agent", "gold", "--eval-id", "x").code == 0
    assert fault in run_command("show", "x a#1").out.replace("\n", " ")


def test_the_documented_call_of_a_reward_says_what_it_needs(library: Path) -> None:
    called = run_python("from library_task.reward import evaluate\nevaluate([])")
    needed = "evaluate() needs db, the data that it judges. An episode has them, and asks the reward: "
    helper = "TaskBundle.load('library_task').episode(0).finish_sync()"
    assert called.err.splitlines()[-1] == f"TypeError: {needed}{helper}"
    helped = run_python(f"from reward_kit.agent import TaskBundle\nprint({helper}.reason)")
    assert helped.out == "loans #3: missing row (book_id=3, member='Ada')\n", helped.err


def test_results_inside_a_bundle_are_kept_out_of_its_history(library: Path) -> None:
    run_command("agent-eval", "-d", ".", "--agent", "gold", cwd=library.resolve())
    assert (library / "runs" / ".gitignore").read_text() == "*\n"
    run_command("agent-eval", "-d", library, "--agent", "gold")
    assert not Path("runs/.gitignore").exists()


def test_rows_that_the_agent_cannot_play_are_left_out_if_asked(library: Path) -> None:
    with (library / "task.jsonl").open("a") as file:
        file.write('{"id": "open.1", "initial_messages": [{"role": "user", "content": "?"}]}\n')
    gold = ["agent-eval", "-d", "library_task", "--agent", "gold", "--quiet"]
    fault = "task.jsonl:15: row open.1 has no actions, which the gold agent replays"
    refused = run_command(*gold)
    assert (refused.code, f"Error: {fault}" in refused.error) == (2, True)
    assert "skip such rows with --skip-unplayable" in refused.error
    ran = run_command(*gold, "--skip-unplayable")
    assert (ran.code, f"warning: skipped: {fault}" in ran.error) == (0, True), ran
    none = run_command(*gold, "--skip-unplayable", "--task-ids", "open.1")
    assert (none.code, f"Error: {fault}" in none.error) == (2, True)


def test_schemas_that_refer_to_each_other_are_read_to_their_end() -> None:
    chain = {f"S{n}": {"properties": {"inner": {"$ref": f"#/components/schemas/S{n + 1}"}}} for n in range(8)}
    chain["S8"] = {"enum": ["end"]}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
    paths = {"/a": {"post": {"requestBody": body}}}
    Path("api.json").write_text(json.dumps({"paths": paths, "components": {"schemas": chain}}))
    (tool,) = tools_of_openapi(Path("api.json"))
    assert '{"enum": ["end"]}' in json.dumps(tool.schema)
    money = {"$ref": "#/components/schemas/S8"}
    chain["S0"] = {"properties": {f"p{n}": money for n in range(300)}}
    Path("api.json").write_text(json.dumps({"paths": paths, "components": {"schemas": chain}}))
    (tool,) = tools_of_openapi(Path("api.json"))
    assert json.dumps(tool.schema).count('{"enum": ["end"]}') == 300
    inner = {f"p{n}": {"$ref": f"#/components/schemas/S{n}"} for n in range(9)}
    everybody = {f"S{n}": {"properties": inner} for n in range(9)}
    Path("api.json").write_text(json.dumps({"paths": paths, "components": {"schemas": everybody}}))
    (tool,) = tools_of_openapi(Path("api.json"))
    assert len(json.dumps(tool.schema)) < 100_000


def test_tools_of_an_openapi_file() -> None:
    Path("api.json").write_text(json.dumps(OPENAPI))
    assert run_command("init", "pets", "--from-openapi", "api.json").code == 0
    shown = json.loads(run_command("tools", "pets", "--json").out)
    get, post = (tool["function"] for tool in shown)
    assert (get["name"], get["description"]) == ("pets_get", "Get a pet")
    assert get["parameters"]["required"] == ["pet-id"]
    assert post["name"] == "post_pets"
    assert post["parameters"]["properties"]["parent"] == {}, "a type that holds itself ends"
    called = run_command("tools", "pets", "--call", "post_pets", '{"name": "Rex", "age": 3}')
    assert (called.code, called.out.splitlines()[0]) == (1, "post_pets: refused")
    assert "not written yet" in called.out


AGE, AGES = {"type": "integer", "minimum": 3}, {"type": "array", "items": {"type": "integer"}}
NAMED = {"type": "object", "required": ["name"], "properties": {"name": STRING}}


@pytest.mark.parametrize(
    ("kind", "schema", "required", "properties"),
    [
        ("application/json", {"properties": {"age": {**AGE, "exclusiveMinimum": True}}}, [],
         {"age": {"type": "integer", "exclusiveMinimum": 3}}),
        ("application/json", {"properties": {"age": {**AGE, "exclusiveMinimum": False}}}, [], {"age": AGE}),
        ("application/x-www-form-urlencoded", NAMED, ["name"], {"name": STRING}),
        ("application/json", AGES, ["body"], {"body": AGES}),
    ],
)  # fmt: skip
def test_a_body_of_an_openapi_3_0_file_becomes_arguments(
    kind: str, schema: Any, required: list[str], properties: Any
) -> None:
    body = {"required": True, "content": {kind: {"schema": schema}}}
    Path("api.json").write_text(json.dumps({"paths": {"/a": {"post": {"requestBody": body}}}}))
    (tool,) = tools_of_openapi(Path("api.json"))
    assert tool.schema == {"type": "object", "properties": properties, "required": required}


def test_operations_of_one_name_become_tools_of_different_names() -> None:
    operations = {method: {"operationId": "pets"} for method in ("get", "post", "put")}
    Path("api.json").write_text(json.dumps({"paths": {"/pets": operations}}))
    made: dict[str, Any] = {}
    exec(tools_source(tools_of_openapi(Path("api.json")), "api.json"), made)
    assert len(made["R"].tools) == 3


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "is not JSON"),
        ("{}", "describes no operations"),
        ('{"swagger": "2.0", "paths": {"/a": {"get": {}}}}', "It is no OpenAPI 3 file"),
        ('{"paths": {"/a": {"get": {"requestBody": {"$ref": "#/b"}}}}}', "'#/b'"),
    ],
)
def test_a_faulty_openapi_file_is_one_error(text: str, fault: str) -> None:
    Path("api.json").write_text(text)
    made = run_command("init", "pets", "--from-openapi", "api.json")
    assert made.code == 2
    assert fault in made.err
    assert not Path("pets").exists()


def test_tools_of_an_mcp_server(library: Path) -> None:
    stand_in(Path())
    made = run_command("init", "copied", "--from-mcp", "./reward-kit mcp library_task")
    assert made.code == 0, made.err
    assert run_command("tools", "copied").out == run_command("tools", "library_task").out
    for program in ("false", "'unclosed"):
        failed = run_command("init", "other", "--from-mcp", program)
        assert failed.code == 2
        assert failed.error.startswith(f"Error: {program}: the MCP server does not answer")


def test_calls_by_hand_show_results_and_changed_rows(library: Path) -> None:
    lend = '{"book_id": 1, "member": "Ada"}'
    called = run_command("tools", "library_task", "--call", "lend_book", lend, "--call", "lend_book", lend)
    assert called.code == 1
    assert called.out.splitlines() == [
        "lend_book:", "lent", "  loans #1: inserted (book_id=1, member='Ada')",
        "lend_book: refused", "Error: book 1 is lent already",
    ]  # fmt: skip
    faulty = run_command("tools", "library_task", "--call", "lend_book", "{")
    assert (faulty.code, "--call lend_book: its arguments are not JSON" in faulty.err) == (2, True)
    missing = run_command("tools", "library_task", "--row", "none")
    assert (missing.code, "none" in missing.err) == (2, True)


def test_a_call_after_the_end_of_the_rollout_is_an_error(library: Path) -> None:
    tools = library / "tools.py"
    tools.write_text(tools.read_text().replace("@R.tool\n", "@R.tool(terminal=True)\n"))
    find = ("--call", "find_books", '{"title": "x"}')
    ran = run_command("tools", "library_task", *find, *find)
    assert (ran.code, ran.out) == (2, "find_books:\n[]\n")
    assert ran.error.startswith("Error: --call find_books: the rollout is over (")


def test_tools_are_shown_with_the_values_that_they_take(library: Path) -> None:
    with (library / "tools.py").open("a") as file:
        file.write("from typing import Literal\n@R.tool\ndef seat(kind: Literal['aisle', 'window'],")
        file.write(
            " near: list[Literal[1, 2]] = [], meal: Literal['none', 'veg'] | None = None):\n    'Seat.'\n"
        )
    assert run_command("tools", "library_task").out.splitlines()[-4:] == [
        "seat: Seat.",
        '  kind (string, one of ["aisle", "window"])',
        "  near (array, one of [1, 2], optional)",
        '  meal (string/null, one of ["none", "veg"], optional)',
    ]


def test_what_a_bundle_prints_is_not_in_the_json_of_its_tools(library: Path) -> None:
    with (library / "tools.py").open("a") as file:
        file.write("print('imported')\n")
    shown = run_command("tools", "library_task", "--json", "-")
    assert [tool["function"]["name"] for tool in json.loads(shown.out)] == ["find_books", "lend_book"]
    assert "imported" in shown.err


def test_a_packed_bundle_is_the_same_each_time_and_runs(library: Path) -> None:
    (library / "runs").mkdir()
    (library / "runs" / "old.txt").write_text("results")
    (library / ".env").write_text("KEY=x")
    first, second = (run_command("pack", "library_task", "--out", name) for name in ("a.tar.gz", "b.tgz"))
    assert (first.code, second.code) == (0, 0)
    assert first.out.startswith("a.tar.gz: 3 rows, ")
    assert "warning: README.md is still the one that reward-kit init wrote" in first.err
    assert Path("a.tar.gz").read_bytes() == Path("b.tgz").read_bytes()
    with tarfile.open("a.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = {path.name for path in library.iterdir() if path.is_file()}
    assert names == files - {".env"} | {"bundle.manifest.json"}
    shutil.rmtree(library)
    ran = run_command("agent-eval", "-d", Path("a.tar.gz").resolve().as_uri(), "--agent", "gold", "--quiet")
    assert "Pass^1 1.000" in ran.out, ran.err


def test_results_in_a_folder_of_any_name_are_not_packed(library: Path) -> None:
    before = run_command("pack", "library_task").out
    run_command("agent-eval", "-d", library, "--agent", "gold", "-o", library / "results")
    assert (library / "results" / ".bases").is_dir()
    assert run_command("pack", "library_task").out == before


def test_an_archive_in_its_own_bundle_is_not_packed_with_it(library: Path) -> None:
    archive = library / "library_task.tar.gz"
    packed = [(run_command("pack", ".", cwd=library.resolve()).code, archive.read_bytes()) for _ in range(2)]
    assert packed == [(0, archive.read_bytes())] * 2


def test_an_archive_that_needs_the_package_around_it_is_warned_of(library: Path) -> None:
    Path("bench").mkdir()
    rows = library.rename("bench/library_task") / "task.jsonl"
    rows.write_text(rows.read_text().replace('".tools"', '"bench.library_task.tools"'))
    packed = run_command("pack", "bench/library_task")
    assert (packed.code, "the toolset bench.library_task.tools is in a package" in packed.err) == (0, True)


def test_data_of_any_name_is_packed_and_another_dataset_is_refused(library: Path) -> None:
    (library / "build").mkdir()
    for name in ("build/books.json", "events.log"):
        (library / name).write_text("[]")
    run_command("pack", "library_task", "--out", "a.tar.gz")
    with tarfile.open("a.tar.gz") as archive:
        assert {"build/books.json", "events.log"} <= {name.partition("/")[2] for name in archive.getnames()}
    (library / "hard.jsonl").write_text((library / "task.jsonl").read_text())
    answered = run_command("pack", "library_task", "-o", "b.tar.gz")
    assert (answered.code, "No such option '-o'. Did you mean '--out'?" in answered.err) == (2, True)
    refused = run_command("pack", "library_task/hard.jsonl")
    assert (refused.code, "an archive is played by its task.jsonl" in refused.err) == (2, True)


def test_a_packed_bundle_that_was_changed_is_refused(library: Path) -> None:
    run_command("pack", "library_task")
    with tarfile.open("library_task.tar.gz") as archive:
        archive.extractall("unpacked", filter="data")
    with (Path("unpacked") / "library_task" / "policy.md").open("a") as file:
        file.write("Lend everything.\n")
    with tarfile.open("changed.tar.gz", "w:gz") as archive:
        archive.add("unpacked/library_task", "library_task")
    refused = run_command("validate", "changed.tar.gz")
    assert refused.code == 2
    assert "policy.md was changed or removed since the bundle was packed" in refused.err


def test_keys_are_not_packed(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "quite-a-secret-value")
    (library / "notes.md").write_text("one\nquite-a-secret-value\nsk-0123456789abcdef\n")
    (library / "id.pem").write_text("x")
    packed = run_command("pack", "library_task")
    assert packed.code == 2
    for fault in ("notes.md:2: holds a secret", "notes.md:3: holds a text that", "id.pem: holds a private"):
        assert fault in packed.err
    assert "quite-a-secret" not in packed.err
    assert not Path("library_task.tar.gz").exists()


def test_installed_bundles_are_listed(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = Path("library_task-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: library-task\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[reward_kit.bundles]\nlibrary = library_task\nno = not_there\n")
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    listed = run_command("list")
    assert listed.code == 0
    assert any(line.startswith("library_task 1.0  ") for line in listed.out.splitlines())
    assert "  task.jsonl: 3 rows" in listed.out.splitlines()
    assert "warning: not_there: " in listed.err
