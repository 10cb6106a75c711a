"""Runs the search program inside the session."""

import inspect
import json
from functools import cache

from pydantic import BaseModel, ValidationError

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._running import check_outcome
from mcp_servers.files import _search_program
from mcp_servers.files._paths import short
from mcp_servers.files._results import SearchMatches
from runtimes import Instance


class _SearchAnswer(BaseModel):
    found: SearchMatches | None = None
    wrong: str | None = None
    errno: int | None = None


async def find(instance: Instance, request: dict[str, object], timeout: float | None) -> SearchMatches:
    """Search files; see `_search_program` for the request.

    :raises OSError: if the path cannot be searched.
    :raises ToolFailure: `bad_arguments` for an invalid pattern, or the limit that was reached.
    """
    done = await instance.exec(
        ["python3", "-I", "-S", "-c", _program()], input=json.dumps(request).encode(), timeout=timeout
    )
    nothing = SearchMatches(matches=[], files_searched=0, truncated=True)
    check_outcome("files_search", done.outcome, done.detail, "", nothing)
    answer = _read(done.stdout)
    if answer is None:
        told = done.stderr.decode("utf-8", "replace")[-300:]
        raise ToolFailure(ErrorKind.FAILED, f"files_search: the search failed: {told or done.detail}")
    if answer.wrong is not None:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"files_search: {answer.wrong}.")
    if answer.found is None:
        raise OSError(answer.errno or 0, "the path cannot be searched")
    matches = [match.model_copy(update={"path": short(match.path)}) for match in answer.found.matches]
    return answer.found.model_copy(update={"matches": matches})


def _read(output: bytes) -> _SearchAnswer | None:
    try:
        return _SearchAnswer.model_validate_json(output)
    except ValidationError:
        return None


@cache
def _program() -> str:
    return inspect.getsource(_search_program)
