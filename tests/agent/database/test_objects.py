"""JSON objects as a table: what a dict does, with as few rows read and written as it takes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from reward_kit.agent import Database, ToolRegistry
from reward_kit.agent.objects import Objects, on_objects, seed_objects
from reward_kit.errors import BundleError

DATA = {
    "tickets": {"T1": {"subject": "Fire", "tags": ["a"]}, "T2": {"subject": "Slow", "price": 1.0}},
    "users": {"ann": {"name": "Ann", "age": 60}},
}


class User(BaseModel):
    name: str
    age: int | float


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Database.seed(
        tmp_path_factory.mktemp("objects") / "base.db", script=lambda db: seed_objects(db, DATA)
    ) as made:
        yield made


@pytest.fixture
def database(base: Database) -> Any:
    with base.fork() as fork:
        yield fork


def plain(database: Database) -> dict[str, dict[str, Any]]:
    return {kind: dict(values) for kind, values in Objects(database.sync).items()}


def test_touched_objects_are_written_and_no_others(database: Database) -> None:
    with Objects(database.sync) as data:
        data["tickets"]["T1"]["tags"].append("b")
        assert data.users["ann"] is data["users"]["ann"]
        assert data["tickets"]["T2"]["subject"] == "Slow"
    changes = [(change.op, change.key) for change in database.sync.changes()]
    assert changes == [("update", {"kind": "tickets", "id": "T1"})]
    assert plain(database)["tickets"]["T1"]["tags"] == ["a", "b"]


def test_an_object_that_a_model_writes_otherwise_is_only_read(database: Database) -> None:
    class Ticket(BaseModel):
        subject: str
        is_open: bool = True

    with Objects(database.sync, {"tickets": Ticket}) as data:
        assert data["tickets"]["T2"].is_open
        data["tickets"]["T1"].subject = "Water"
    assert [change.key for change in database.sync.changes()] == [{"kind": "tickets", "id": "T1"}]


def test_a_kind_is_replaced_as_an_attribute_too(database: Database) -> None:
    with Objects(database.sync) as data:
        data.tickets = {"T2": {"price": 2}, "T3": {}}
    assert plain(database)["tickets"] == {"T2": {"price": 2}, "T3": {}}


def test_an_id_that_is_no_text_is_refused(database: Database) -> None:
    with Objects(database.sync) as data, pytest.raises(TypeError, match=r"tickets are texts, .* not 7"):
        data["tickets"][7] = {}


def test_a_kind_that_is_not_there_is_not_in_it(database: Database) -> None:
    with Objects(database.sync) as data:
        assert ("tickets" in data, "nope" in data) == (True, False)


def test_an_exception_writes_nothing(database: Database) -> None:
    def fail(data: Objects) -> None:
        del data["tickets"]["T1"]
        data["tickets"]["T3"] = {}
        raise LookupError

    with pytest.raises(LookupError), Objects(database.sync) as data:
        fail(data)
    assert not database.sync.changes()


async def test_a_missing_object_is_told_to_the_model_in_words(database: Database) -> None:
    def close(data: Any, ticket: str) -> None:
        data["tickets"][ticket]["closed"] = True

    registry = ToolRegistry("tickets")
    registry.tool(on_objects(close, errors=(KeyError,)))
    result = await registry.call("close", {"ticket": "T9"}, db=database)
    assert (result.status, result.content) == ("refused", "Error: there is no 'T9'")


async def test_an_object_that_does_not_fit_its_model_is_no_refusal(database: Database) -> None:
    def name(data: Any, key: str) -> str:
        return str(data.tickets[key].name)

    registry = ToolRegistry("tickets")
    registry.tool(on_objects(name, models={"tickets": User}))
    result = await registry.call("name", {"key": "T1"}, db=database)
    assert result.status == "failed"
    fault = "tickets 'T1' cannot be read: 2 validation errors for User name Field required"
    assert result.content == f"Error: {fault}"


@pytest.mark.parametrize("objects", [[{"id": "T1"}], "T1", 3, None])
def test_objects_without_ids_are_not_seeded(database: Database, objects: Any) -> None:
    with pytest.raises(
        BundleError, match=r"the objects of 'boats' have no ids: they are of the type \w+\. Give"
    ):
        seed_objects(database.sync, {"boats": objects})


def test_an_async_function_on_objects_is_refused() -> None:
    async def close(data: Any) -> None: ...

    with pytest.raises(BundleError, match="takes no async function"):
        on_objects(close)


def test_models_are_made_and_written(database: Database) -> None:
    with Objects(database.sync, {"users": User}) as data:
        user = data["users"]["ann"]
        assert isinstance(user, User)
        user.age = 61
        data["users"]["bob"] = User(name="Bob", age=1.5)
    assert plain(database)["users"] == {"ann": {"name": "Ann", "age": 61}, "bob": {"name": "Bob", "age": 1.5}}


def test_a_number_of_another_type_is_a_change(database: Database) -> None:
    with Objects(database.sync) as data:
        data["tickets"]["T2"]["price"] = 1
    assert len(database.sync.changes()) == 1


def test_what_json_cannot_hold_is_named(database: Database) -> None:
    data = Objects(database.sync)
    data["tickets"]["T1"]["tags"] = {1}
    with pytest.raises(BundleError, match="tickets 'T1' cannot be written as JSON: set is no JSON value"):
        data.write()


KEYS = st.sampled_from(["T1", "T2", "T3", "T4"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers() | st.text() | st.lists(st.floats(allow_nan=False))),
        st.tuples(st.just("delete"), KEYS, st.none()),
        st.tuples(st.just("pop"), KEYS, st.none()),
        st.tuples(st.just("read"), KEYS, st.none()),
        st.tuples(st.just("list"), KEYS, st.none()),
        st.tuples(st.just("clear"), KEYS, st.none()),
        st.tuples(st.just("popitem"), KEYS, st.none()),
        st.tuples(st.just("write"), KEYS, st.none()),
    ),
    max_size=12,
)


@given(STEPS)
def test_it_does_what_a_dict_does(base: Database, steps: list[tuple[str, str, Any]]) -> None:
    with base.fork() as fork:
        expected = json.loads(json.dumps(DATA["tickets"]))
        data = Objects(fork.sync)
        for step, key, value in steps:
            found = []
            for tickets in (expected, data["tickets"]):
                try:
                    if step == "set":
                        tickets[key] = {"value": value}
                    elif step == "delete":
                        del tickets[key]
                    elif step == "pop":
                        found.append(tickets.pop(key, "none"))
                    elif step == "read":
                        found.append(tickets[key])
                    elif step == "list":
                        backwards = list(reversed(tickets))
                        found.append((len(tickets), list(tickets.items()), key in tickets, backwards))
                    elif step == "clear":
                        tickets.clear()
                    elif step == "popitem" and tickets:
                        found.append(tickets.popitem())
                    elif step == "write" and tickets is not expected:
                        data.write()
                except KeyError as error:
                    found.append(str(error))
            assert len(found) != 2 or found[0] == found[1]
        data.write()
        stored = Objects(fork.sync)["tickets"]
        assert list(stored.items()) == list(expected.items())


def test_an_empty_kind_has_no_last_object(database: Database) -> None:
    with pytest.raises(KeyError, match="there are no boats"):
        Objects(database.sync)["boats"].popitem()


def test_a_kind_is_replaced_without_a_query_for_each_pair_of_objects(database: Database) -> None:
    data = Objects(database.sync)
    data["tickets"] = {f"T{n}": {"n": n} for n in range(300)}
    data.write()
    listed = 0

    class Counted:
        def fetch_all(self, sql: str, *values: Any) -> Any:
            nonlocal listed
            listed += 1
            return database.sync.fetch_all(sql, *values)

        def __getattr__(self, name: str) -> Any:
            return getattr(database.sync, name)

    with Objects(Counted()) as data:
        data["tickets"] = {key: value for key, value in data["tickets"].items() if value["n"] % 2}
    assert listed < 10
    assert list(plain(database)["tickets"]) == [f"T{n}" for n in range(1, 300, 2)]


def test_reading_one_object_of_many_reads_one(tmp_path: Path) -> None:
    many = {"flights": {f"F{n}": {"n": n, "text": "x" * 500} for n in range(2000)}}
    with (
        Database.seed(tmp_path / "many.db", script=lambda db: seed_objects(db, many)) as base,
        base.fork() as fork,
    ):
        data = Objects(fork.sync)
        assert data["flights"]["F1999"]["n"] == 1999
        assert "F5" in data["flights"]
        assert len(data["flights"]._known) == 1
