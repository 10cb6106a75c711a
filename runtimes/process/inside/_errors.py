"""Description of an exception of user code: type, message and traceback. Runs inside a session."""

import os
import traceback
from collections.abc import Collection, Iterator

TEXT = 40_000
_OWN = os.path.dirname(__file__) + os.sep


def describe_error(error: BaseException, cells: Collection[str]) -> dict[str, str]:
    """Describe an exception, with the frames of user code and of the libraries that it called.

    `cells` are the names of the user's sources. Frames of the runtime are left out.
    """
    kind = _name(error)
    try:
        return {"type": kind, "message": _message(error), "traceback": _traceback(error, cells)}
    except BaseException:
        # User code can break or interrupt the formatting; the type alone is still a result.
        return {"type": kind, "message": "", "traceback": f"{kind} (its traceback could not be formatted)\n"}


def printable(text: str, limit: int = TEXT) -> str:
    """Return valid UTF-8 text, cut in the middle if it is longer than the limit."""
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
        return "<no message: __str__ failed>"


def _traceback(error: BaseException, cells: Collection[str]) -> str:
    report = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
    for one in _linked(report):
        known = _cut_frames(one, cells)
        if one is report and not known and isinstance(error, KeyboardInterrupt):
            # It interrupted the event loop while it waited; those frames are irrelevant.
            report.stack.clear()
    alone = not report.stack and report.__cause__ is None and report.__context__ is None
    lines = report.format_exception_only() if alone else report.format()
    return printable("".join(lines))


def _linked(report: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    pending, seen = [report], set[int]()
    while pending:
        current = pending.pop()
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            linked = (current.__cause__, current.__context__, *(current.exceptions or ()))
            pending.extend(link for link in linked if link is not None)


def _cut_frames(report: traceback.TracebackException, cells: Collection[str]) -> bool:
    frames = [frame for frame in report.stack if not frame.filename.startswith(_OWN)]
    first = next((index for index, frame in enumerate(frames) if frame.filename in cells), None)
    report.stack[:] = frames[first or 0 :]
    return first is not None
