"""Pictures and tables from a machine, read in the session's sandbox and never in the server."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._session import Session
from runtimes import FrameError, Outcome, decode_object

_PROGRAM = (Path(__file__).parent / "_sandboxed_program.py").read_text(encoding="utf-8")
_PYTHON = f"{sys.prefix}/bin/python3"
_SECONDS = 30.0


async def cropped(session: Session, picture: bytes, box: tuple[int, int, int, int]) -> bytes:
    """Return a part of a picture."""
    return await _run(session, {"do": "crop", "box": box, "sizes": [len(picture)]}, picture)


async def compared(session: Session, one: bytes, other: bytes, tolerance: int) -> Mapping[str, Any]:
    """Compare two pictures: `sizes`, and the share `alike` of pixels within the tolerance."""
    asked = {"do": "compare", "tolerance": tolerance, "sizes": [len(one), len(other)]}
    return _object(await _run(session, asked, one + other))


async def table(session: Session, data: bytes, sheet: str | int | None) -> list[list[object]]:
    """Return the cells of a table: a sheet of an XLSX file, or CSV."""
    answer = _object(await _run(session, {"do": "table", "sheet": sheet, "sizes": [len(data)]}, data))
    rows: list[list[object]] = answer["rows"]
    return rows


async def _run(session: Session, asked: Mapping[str, object], data: bytes) -> bytes:
    instance = await session.instance()
    done = await instance.exec(
        [_PYTHON, "-E", "-s", "-c", _PROGRAM, json.dumps(asked)], input=data, timeout=_SECONDS
    )
    if done.outcome is not Outcome.OK or done.exit_code != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = done.detail or (said[-1][:300] if said else f"exit code {done.exit_code}")
        raise ToolFailure(ErrorKind.FAILED, f"it cannot be read: {why}")
    return done.stdout


def _object(answer: bytes) -> Mapping[str, Any]:
    try:
        return decode_object(answer)
    except FrameError:
        raise ToolFailure(ErrorKind.FAILED, "it cannot be read: the sandbox returned no answer") from None
