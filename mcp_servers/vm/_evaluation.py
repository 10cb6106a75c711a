"""Evaluation of a task on a machine."""

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._session import Session
from mcp_servers.vm._comparisons import compare
from mcp_servers.vm._evaluation_schema import Evaluation, Func, Getter
from mcp_servers.vm._getters import Found, look
from mcp_servers.vm._results import ComparisonResult, EvaluationResult
from mcp_servers.vm._session_machine import SessionMachine
from mcp_servers.vm._steps import run_steps

_SHOWN = 500


async def evaluate(evaluator: Evaluation, acting: SessionMachine, session: Session) -> EvaluationResult:
    """Run the getters and compare.

    :raises ToolFailure: if a getter fails or a comparison is invalid: that is not a score of 0.
    """
    await run_steps(evaluator.postconfig, acting.machine, session)
    measured: list[ComparisonResult] = []
    for func, result, expected, options in evaluator.parts():
        if func == "infeasible":
            measured.append(ComparisonResult(func=func, score=float(acting.failed)))
        else:
            measured.append(await _measure(func, result, expected, options, acting, session))
    scores = [one.score for one in measured]
    score = min(scores) if evaluator.conj == "and" else max(scores)
    details = ""
    if acting.failed and all(one.func != "infeasible" for one in measured):
        # Giving up on a possible task fails it, regardless of the machine's state.
        score, details = 0.0, "The last action was vm_fail, but the task is not impossible."
    return EvaluationResult(
        score=score, results=measured, conj=evaluator.conj, last_action_failed=acting.failed, details=details
    )


async def _measure(
    func: Func,
    result: Getter | None,
    expected: Getter | None,
    options: dict[str, object],
    acting: SessionMachine,
    session: Session,
) -> ComparisonResult:
    if result is None or expected is None:
        lacking = "result" if result is None else "expected"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"vm_evaluate: {func} needs `{lacking}`.")
    try:
        found = await look(result, acting, session)
        wanted = await look(expected, acting, session)
        score, detail = await compare(func, found, wanted, options, session)
    except ToolFailure as failure:
        raise ToolFailure(failure.kind, f"vm_evaluate: {failure.message}") from None
    return ComparisonResult(
        func=func, score=score, result=_shown(found), expected=_shown(wanted), detail=detail
    )


def _shown(found: Found) -> str:
    if isinstance(found, bytes):
        try:
            text = found.decode()
        except UnicodeDecodeError:
            return f"{len(found)} bytes"
    else:
        text = found if isinstance(found, str) else repr(found)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
