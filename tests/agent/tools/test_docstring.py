from __future__ import annotations

import pytest

from reward_kit.agent.tools.parameters import parse_docstring

GOOGLE = """List flights that have
    seats left.

    Sorted by departure.

    Args:
        origin (str): Airport code,
            three letters: SFO.
        dest: Airport code.
        *limits: Ignored.

    Returns:
        rows: The flights.
    """

NUMPY = """List flights that have seats left.

    Parameters
    ----------
    origin, dest : str
        Airport code, three letters: SFO.
    limit : int, optional
        How many
        at most.

    Returns
    -------
    rows
        The flights.
    """

REST = """List flights that have seats left.

    :param str origin: Airport code,
        three letters: SFO.
    :param dest: Airport code.
    :type dest: str
    :returns: the flights
    """


@pytest.mark.parametrize(
    ("docstring", "more"),
    [
        (GOOGLE, {"dest": "Airport code.", "limits": "Ignored."}),
        (NUMPY, {"dest": "Airport code, three letters: SFO.", "limit": "How many at most."}),
        (REST, {"dest": "Airport code."}),
    ],
)
def test_sections_give_the_first_paragraph_and_the_parameters(docstring: str, more: dict[str, str]) -> None:
    summary, parameters = parse_docstring(docstring)
    assert summary == "List flights that have seats left."
    assert parameters == {"origin": "Airport code, three letters: SFO.", **more}


def test_a_docstring_of_sections_only_has_no_summary() -> None:
    assert parse_docstring("\n    Args:\n        booking: Its id.\n    ") == ("", {"booking": "Its id."})
