"""One line that says where foreign code (a tool, reward, agent or user) failed, and how."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_TEXT = 2000
"""Characters of what an exception says; it goes into each line of the log."""
_OWN_CODE = str(Path(__file__).parent.parent)
_ADVERTISEMENT = "For further information visit https://errors.pydantic.dev"
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]


def fault_line(error: BaseException) -> str:
    """``reward.py:12: KeyError: 'seat'``: the line of the foreign code, then the error.

    Errors of this package already say what is wrong in words for a person, and some say where. Of an
    exception whose own code fails when it is read, it is the name of its class.
    """
    try:
        return _fault_line(error)
    except (Exception, SystemExit):  # noqa: BLE001 - an exception's class is foreign code, too
        return class_name(error)


def class_name(error: BaseException) -> str:
    """The name of its class, without any code of that class."""
    return str(type.__getattribute__(type(error), "__name__"))


def _fault_line(error: BaseException) -> str:
    if isinstance(error, RewardKitError):
        text = str(error)
        if error.place:
            return text
    else:
        said = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
        text = "\n".join(line for line in said if not line.strip().startswith(_ADVERTISEMENT))
        if len(text) > LONGEST_TEXT:
            text = f"{text[:LONGEST_TEXT]}… [{len(text):,} characters]"
    line = line_of(error)
    return f"{line}: {text}" if line else text


def line_of(error: BaseException) -> str | None:
    """``reward.py:12``: the line of the foreign code in which it was raised."""
    frame = _foreign_frame(error)
    return f"{Path(frame.filename).name}:{frame.lineno}" if frame else None


def place_of(function: Callable[..., Any]) -> str:
    """``reward.py:5 evaluate``: where a function was written, seen through its decorators."""
    inner = inspect.unwrap(function)
    name = getattr(inner, "__qualname__", type(inner).__name__)
    code = getattr(inner, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno} {name}" if code else name


def is_of_foreign_code(error: BaseException) -> bool:
    """Whether it was raised in code that is not this package's own, nor Python's."""
    return _foreign_frame(error) is not None


def is_own_code(filename: str) -> bool:
    """Whether a person wrote these lines of Python, and not those of an installed library."""
    return _is_foreign(filename) and "site-packages" not in filename


def is_package_code(filename: str) -> bool:
    """Whether these lines are of this package."""
    return filename.startswith(_OWN_CODE)


def _foreign_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of a person's own code; else the first of an installed library's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_foreign(frame.filename)]
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    if own:
        return own[-1]
    return frames[0] if frames else None


def _is_foreign(filename: str) -> bool:
    """Whether these are lines of Python that a person wrote; libraries in C (apsw) report their own too."""
    if filename.startswith("<ipython"):
        return True
    if is_package_code(filename) or not filename.endswith(".py") or not Path(filename).is_absolute():
        return False  # code compiled from Python (SQLAlchemy's) tells a place in its own source
    return "site-packages" in filename or not filename.startswith(_STANDARD_LIBRARY)
