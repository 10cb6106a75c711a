"""How an exception of user code is told: its type, message and traceback. Runs inside a session."""

import os
import traceback
from collections.abc import Collection, Iterator

__all__ = ["describe_error", "printable"]

TEXT = 40_000
_OWN = os.path.dirname(__file__) + os.sep


def describe_error(error: BaseException, cells: Collection[str]) -> dict[str, str]:
    """What happened, with the frames of user code and of the libraries that it called.

    `cells` are the names of the user's sources. Frames of the runtime are left out.
    """
    kind = _name(error)
    try:
        return {"type": kind, "message": _message(error), "traceback": _traceback(error, cells)}
    except BaseException:
        # User code can break what formatting needs (and interrupt it): the type alone is still a result.
        return {"type": kind, "message": "", "traceback": f"{kind} (its traceback could not be formatted)\n"}


def printable(text: str, limit: int = TEXT) -> str:
    """Text that is valid UTF-8, cut in the middle where it is longer than the limit."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _name(error: BaseException) -> str:
    return str(type.__dict__["__name__"].__get__(type(error)))


def _message(error: BaseException) -> str:
    try:
        return printable(str(error))
    except Exception:
        # A broken `__str__` is the user's.
        return "<its message could not be read: __str__ failed>"


def _traceback(error: BaseException, cells: Collection[str]) -> str:
    told = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
    for one in _linked(told):
        known = _cut_frames(one, cells)
        if one is told and not known and isinstance(error, KeyboardInterrupt):
            # It came while the event loop waited, and where that was says nothing.
            told.stack.clear()
    alone = not told.stack and told.__cause__ is None and told.__context__ is None
    lines = told.format_exception_only() if alone else told.format()
    return printable("".join(lines))


def _linked(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    waiting, seen = [told], set[int]()
    while waiting:
        current = waiting.pop()
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            linked = (current.__cause__, current.__context__, *(current.exceptions or ()))
            waiting.extend(link for link in linked if link is not None)


def _cut_frames(told: traceback.TracebackException, cells: Collection[str]) -> bool:
    frames = [frame for frame in told.stack if not frame.filename.startswith(_OWN)]
    first = next((place for place, frame in enumerate(frames) if frame.filename in cells), None)
    told.stack[:] = frames[first or 0 :]
    return first is not None
