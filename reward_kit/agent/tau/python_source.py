"""Values from Python files that are parsed and never run."""

from __future__ import annotations

import ast
import json
import warnings
from dataclasses import dataclass
from typing import Any

from reward_kit.agent.tau.source import SourceError, SourceFiles

_QUOTED = 70


@dataclass(frozen=True, slots=True)
class PythonFile:
    """A parsed file; ``place`` names it in errors."""

    place: str
    body: list[ast.stmt]

    @classmethod
    def read(cls, files: SourceFiles, path: str, what: str) -> PythonFile:
        """Parse the file at ``path``; ``what`` is the expected content, for errors."""
        text = files.text(path, what)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the file's author sees those about escapes
                return cls(files.place(path), ast.parse(text).body)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise SourceError(
                f"{files.place(path)} is not Python: {error}. Expected there: {what}"
            ) from error

    def fault(self, node: ast.AST, expected: str) -> SourceError:
        """Make an error about ``node``: its line, its text, the expected text."""
        found = " ".join(ast.unparse(node).split())
        if len(found) > _QUOTED:
            found = f"{found[: _QUOTED - 3]}..."
        line = getattr(node, "lineno", 0)
        return SourceError(f"{self.place}:{line}: found `{found}`. Expected there: {expected}")

    def assigned(self, name: str, expected: str) -> ast.expr:
        """Return the value of ``name``; raise ``SourceError`` unless one assignment is its only mention."""
        mentions = [statement for statement in self.body if _mentions(statement, name)]
        if not mentions:
            raise SourceError(f"{self.place} has no {name}. Expected there: {expected}")
        first, *others = mentions
        if others:
            raise self.fault(others[0], f"no other mention of {name} after line {first.lineno}")
        value = first.value if isinstance(first, (ast.Assign, ast.AnnAssign)) else None
        if value is None:
            raise self.fault(first, expected)
        return value

    def absent(self, expected: str) -> SourceError:
        """Make an error about something that the file lacks."""
        return SourceError(f"{self.place} has no {expected}")

    def value(self, name: str, expected: str) -> ast.expr:
        """Return the value that is first assigned to ``name``."""
        for statement in self.body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
                return statement.value
        raise self.absent(f"{name}, {expected}")

    def elements(self, node: ast.expr, expected: str) -> list[ast.expr]:
        """Return the elements of a list literal."""
        if not isinstance(node, (ast.List, ast.Tuple)) or any(isinstance(e, ast.Starred) for e in node.elts):
            raise self.fault(node, expected)
        return node.elts

    def arguments(self, node: ast.expr, function: str) -> dict[str, ast.expr]:
        """Return the keyword arguments of a call of ``function`` or ``anything.function``."""
        expected = f"{function}(name=value, ...)"
        if not isinstance(node, ast.Call) or node.args or _last_name(node.func) != function:
            raise self.fault(node, expected)
        named = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
        if len(named) != len(node.keywords):
            raise self.fault(node, expected)
        return named

    def literal(self, node: ast.expr, expected: str) -> Any:
        """Return the value of a literal that JSON can represent."""
        try:
            value = ast.literal_eval(node)
            json.dumps(value, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise self.fault(node, f"{expected}, as a literal") from error
        return value

    def text(self, node: ast.expr, expected: str) -> str:
        value = self.literal(node, expected)
        if not isinstance(value, str):
            raise self.fault(node, expected)
        return value


def _mentions(statement: ast.stmt, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement))


def _last_name(function: ast.expr) -> str | None:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None
