"""In the bundles that are shipped, what a model writes reaches SQL as parameters only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUNDLES = [
    ROOT / "tau_retail_task",
    *sorted(path.parent for path in (ROOT / "examples").glob("*/task.jsonl")),
]
FILES = [file for bundle in BUNDLES for file in sorted(bundle.rglob("*.py"))]
ASKS = frozenset({"execute", "executemany", "executescript", "fetch_all", "fetch_one", "fetch_val"})
GOAL = "end_goal_sql"


def unfixed_sql(source: str) -> list[str]:
    """The lines of ``source`` whose SQL is put together from something else than constants of the module.

    The SQL is the first argument of a call of one of ``ASKS``. Fixed are string literals, names that the
    module's top level assigns once (and no function again) from fixed parts, what is joined from these, and
    a local name that is assigned fixed SQL wherever it is assigned. Constants of other modules count as
    fixed (their own module is looked at too), and so does the row's own ``end_goal_sql`` in a reward.
    """
    tree = ast.parse(source)
    top = _assigned(tree.body)
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            constants = (alias.asname or alias.name for alias in statement.names)
            top.update({name: [ast.Constant("")] for name in constants if name.isupper()})
    faults = []
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            continue
        inside = [node for statement in scope.body for node in _own_nodes(statement)]
        local = {} if scope is tree else _assigned([n for n in inside if isinstance(n, ast.stmt)])
        given = set() if isinstance(scope, ast.Module) else {a.arg for a in _arguments(scope.args)}
        if getattr(scope, "name", "") == "evaluate" and GOAL in given:
            given.remove(GOAL)
            local = {**local, GOAL: local.get(GOAL, [ast.Constant("")])}
        for node in inside:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKS:
                sql = (
                    node.args[0]
                    if node.args
                    else next((k.value for k in node.keywords if k.arg == "sql"), None)
                )
                if sql is None or not _is_fixed(sql, local, top, given):
                    faults.append(f"{node.lineno}: {ast.unparse(node)[:100]}")
    return faults


def _own_nodes(statement: ast.AST) -> list[ast.AST]:
    """The node and those in it, but not in functions of its own."""
    found = [statement]
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        for child in ast.iter_child_nodes(statement):
            found.extend(_own_nodes(child))
    return found


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    every = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    return [argument for argument in every if argument is not None]


def _assigned(statements: list[ast.stmt]) -> dict[str, list[ast.expr | None]]:
    """What is assigned to each name; None for anything that is no plain assignment."""
    names: dict[str, list[ast.expr | None]] = {}
    for statement in statements:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                plain = isinstance(target, ast.Name)
                for node in ast.walk(target):
                    if isinstance(node, ast.Name):
                        names.setdefault(node.id, []).append(statement.value if plain else None)
        elif isinstance(statement, ast.AugAssign | ast.For | ast.AsyncFor | ast.With | ast.AsyncWith):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.setdefault(node.id, []).append(None)
    return names


def _is_fixed(
    node: ast.expr,
    local: dict[str, list[ast.expr | None]],
    top: dict[str, list[ast.expr | None]],
    given: set[str],
) -> bool:
    def fixed(inner: ast.expr) -> bool:
        return _is_fixed(inner, local, top, given)

    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Name):
        if node.id in given:
            return False
        sources = local.get(node.id) or top.get(node.id) or [None]
        here = local if node.id in local else {}
        return all(value is not None and _is_fixed(value, here, top, given) for value in sources)
    if isinstance(node, ast.JoinedStr):
        return all(fixed(part.value) for part in node.values if isinstance(part, ast.FormattedValue))
    if isinstance(node, ast.BinOp):
        return fixed(node.left) and fixed(node.right)
    if isinstance(node, ast.IfExp):
        return fixed(node.body) and fixed(node.orelse)
    return isinstance(node, ast.Tuple | ast.List) and all(map(fixed, node.elts))


def test_there_are_bundles_to_look_at() -> None:
    assert len(BUNDLES) >= 2
    assert sum(any(f".{ask}(" in file.read_text(encoding="utf-8") for ask in ASKS) for file in FILES) >= 3


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_sql_is_fixed_and_arguments_are_parameters(file: Path) -> None:
    assert unfixed_sql(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("body", "is_fault"),
    [
        ("db.execute('SELECT 1 FROM t WHERE x = :x', {'x': x})", False),
        ("db.execute(QUERY, [x])", False),
        ("db.execute(f'SELECT {COLUMNS} FROM t')", False),
        ("db.execute('SELECT ' + COLUMNS + ' FROM t')", False),
        ("sql = QUERY if x else 'SELECT 2'; db.execute(sql)", False),
        ("db.execute(f'SELECT {x} FROM t')", True),
        ("db.execute('SELECT ' + x)", True),
        ("db.execute('SELECT %s' % x)", True),
        ("db.execute('SELECT {}'.format(x))", True),
        ("db.execute(x)", True),
        ("db.fetch_all(sql=f'{x}')", True),
        ("sql = f'SELECT {x}'; db.execute(sql)", True),
        ("sql = QUERY; sql += x; db.execute(sql)", True),
        ("COLUMNS = x; db.execute(f'SELECT {COLUMNS}')", True),
        ("for q in [x]: db.execute(q)", True),
        ("db.execute(''.join([x]))", True),
    ],
)
def test_the_check_sees_what_it_should(body: str, is_fault: bool) -> None:
    module = f"COLUMNS = 'a, b'\nQUERY = f'SELECT {{COLUMNS}} FROM t'\ndef tool(x, db):\n    {body}\n"
    assert bool(unfixed_sql(module)) == is_fault
