"""Scoring what was done on a machine."""

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._session import Session
from mcp_servers.vm._acting import Acting
from mcp_servers.vm._comparing import compare
from mcp_servers.vm._evaluator import Evaluator, Func, Getter
from mcp_servers.vm._getters import Found, look
from mcp_servers.vm._results import Evaluated, Measured
from mcp_servers.vm._steps import do_steps

__all__ = ["evaluate"]

_SHOWN = 500


async def evaluate(evaluator: Evaluator, acting: Acting, session: Session) -> Evaluated:
    """Look and compare.

    :raises ToolFailure: if something can't be looked at, or not be compared so: that is no score of 0.
    """
    await do_steps(evaluator.postconfig, acting.machine, session)
    measured: list[Measured] = []
    for func, result, expected, options in evaluator.parts():
        if func == "infeasible":
            measured.append(Measured(func=func, score=float(acting.failed)))
        else:
            measured.append(await _measure(func, result, expected, options, acting, session))
    scores = [one.score for one in measured]
    score = min(scores) if evaluator.conj == "and" else max(scores)
    details = ""
    if acting.failed and all(one.func != "infeasible" for one in measured):
        # Who gives up on a task that can be done has not done it, whatever the machine looks like.
        score, details = 0.0, "The last action was vm_fail, but the task is not impossible."
    return Evaluated(
        score=score, results=measured, conj=evaluator.conj, last_action_failed=acting.failed, details=details
    )


async def _measure(
    func: Func,
    result: Getter | None,
    expected: Getter | None,
    options: dict[str, object],
    acting: Acting,
    session: Session,
) -> Measured:
    if result is None or expected is None:
        lacking = "result" if result is None else "expected"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"vm_evaluate: {func} needs `{lacking}`.")
    try:
        found = await look(result, acting, session)
        wanted = await look(expected, acting, session)
        score, detail = await compare(func, found, wanted, options, session)
    except ToolFailure as failure:
        raise ToolFailure(failure.kind, f"vm_evaluate: {failure.message}") from None
    return Measured(func=func, score=score, result=_shown(found), expected=_shown(wanted), detail=detail)


def _shown(found: Found) -> str:
    if isinstance(found, bytes):
        try:
            text = found.decode()
        except UnicodeDecodeError:
            return f"{len(found)} bytes"
    else:
        text = found if isinstance(found, str) else repr(found)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
