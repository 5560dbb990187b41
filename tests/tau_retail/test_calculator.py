"""The calculator: Python's results and Python's words, without running anything, and always at once."""

import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from thorough import often

LEADING_ZEROS = (
    "leading zeros in decimal integer literals are not permitted; use an 0o prefix for octal integers"
)
INVALID = "invalid syntax (<string>, line 1)"


async def calculate(expression: str) -> str:
    from tau_retail_task.tools import R

    return await R.execute_tool("calculate", {"expression": expression})


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("2 + 2", "4.0"),
        ("0.1 + 0.2", "0.3"),
        ("(1200.5 - 0.5) * 2 / 3", "800.0"),
        ("-7 // 2", "-4.0"),
        ("2 ** 3 ** 2", "512.0"),
        ("1.005", "1.0"),
        ("2.675", "2.67"),
        ("0.005", "0.01"),
        ("10 ** 16", "1e+16"),
        ("10000000000000000000000", "1e+22"),
        ("10 ** 400 / 10 ** 399", "10.0"),
        ("1" + "0" * 400 + ".0", "inf"),
    ],
)
async def test_results_are_rounded_floats(expression: str, result: str) -> None:
    assert await calculate(expression) == result


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("2 + x", "invalid characters in expression"),
        ("1e5", "invalid characters in expression"),
        ("1\n", "invalid characters in expression"),
        ("1 / 0", "division by zero"),
        ("0 ** -133225", "0.0 cannot be raised to a negative power"),
        ("1 +", INVALID),
        ("", "invalid syntax (<string>, line 0)"),
        ("(1 + 2", "'(' was never closed (<string>, line 1)"),
        ("1 + 2)", "unmatched ')' (<string>, line 1)"),
        ("007", f"{LEADING_ZEROS} (<string>, line 1)"),
        ("(1)(2)", "'int' object is not callable"),
        ("...", "float() argument must be a string or a real number, not 'ellipsis'"),
        ("10 ** 400", "int too large to convert to float"),
        ("9.9 ** 400", "(34, 'Numerical result out of range')"),
    ],
)
async def test_errors_are_told_in_python_s_words(expression: str, error: str) -> None:
    assert await calculate(expression) == f"Error: {error}"


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "*".join(["9**5000"] * 1200),
        "+".join(["9**5000//9**2500"] * 500),
        "(" * 5000 + "1" + ")" * 5000,
        "-" * 9000 + "1",
        "1" * 9999,
        "+".join(["1"] * 100_000),
    ],
    ids=lambda expression: f"{expression[:12]} {len(expression)}",
)
async def test_what_would_take_long_is_answered_at_once(expression: str) -> None:
    """Each takes minutes, or memory without end, or is at the edge of it, where Python computes it."""
    said = await calculate(expression)
    assert said.startswith("Error: ") or float(said) != 0


numbers = st.one_of(
    st.integers(0, 1000).map(str),
    st.decimals(0, 1000, places=2).map(str),
    st.sampled_from(["0", "0.0", "1", ".5", "3.", "()", "...", "007"]),
)


def _grown(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["+", "-", "*", "/", "//", " + ", " - ", " * ", " / ", " "])
    return st.one_of(
        st.tuples(smaller, operators, smaller).map("".join),
        st.tuples(smaller, st.sampled_from(["**2", "**0.5", "**-1", " ** 3", "(2)", "()"])).map("".join),
        smaller.map("({})".format),
        smaller.map("-{}".format),
    )


expressions = st.one_of(
    st.recursive(numbers, _grown, max_leaves=12), st.text("0123456789+-*/(). ", max_size=6)
)


def as_python_does(expression: str) -> str:
    try:
        return str(round(float(eval(expression, {"__builtins__": None}, {})), 2))  # the test's own text
    except Exception as error:  # noqa: BLE001 - whatever it is, the benchmark tells it
        return f"Error: {error}"


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@settings(max_examples=often(400))
@given(expression=expressions.filter(lambda text: text.count("**") < 3))
@example("...-1")
@example("(1)(*2)")
@example("(1)(**2)")
async def test_results_and_errors_are_those_of_python(expression: str) -> None:
    said = await calculate(expression)
    expected = as_python_does(expression)
    if sys.version_info[:2] == (3, 11) or not expected.startswith("Error: "):
        assert said == expected
    else:
        assert said.startswith("Error: ")
