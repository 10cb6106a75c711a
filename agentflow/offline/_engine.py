import re
from typing import Any

import msgspec
from msgspec import Struct

from agentflow.offline._planner import plan
from agentflow.offline._solving import (
    analyse,
    command,
    decide,
    decided_step,
    next_step,
    solve,
    summarise,
)
from agentflow.offline._verifier import judge
from agentflow.offline._writer import write
from agentflow.trajectory import (
    AnalysisRequest,
    Answer,
    AnswerRequest,
    CommandRequest,
    DecisionRequest,
    JudgementRequest,
    Look,
    LookRequest,
    NextStepRequest,
    PlanRequest,
    Request,
    SolutionRequest,
    SummaryRequest,
    Usage,
    VerificationRequest,
    WriteRequest,
)

_BYTES_PER_TOKEN = 4
_ENCODER = msgspec.json.Encoder()
_SECONDS = re.compile(rb',"seconds":[-+.0-9eE]+')
"""Time stamps of turns. No role is shown them, so they are not counted as tokens."""


def answer(request: Request[Any]) -> Struct:
    """Return the offline engine's answer to a typed request; equal requests have equal answers.

    Example::

        plan = answer(PlanRequest(...))
    """
    match request:
        case PlanRequest():
            return plan(request)
        case JudgementRequest():
            return judge(request)
        case WriteRequest():
            return write(request)
        case AnswerRequest():
            # The request shows no text, and the engine knows nothing else.
            return Answer("")
        case LookRequest():
            # The engine has no vision.
            return Look(shows=False)
        case AnalysisRequest():
            return analyse(request)
        case NextStepRequest():
            return next_step(request)
        case CommandRequest():
            return command(request)
        case VerificationRequest():
            return decide(request)
        case DecisionRequest():
            return decided_step(request)
        case SolutionRequest():
            return solve(request)
        case SummaryRequest():
            return summarise(request)
        case _:
            raise TypeError(f"the offline engine cannot answer {type(request).__name__}")


def usage_of(request: Request[Any], value: Struct) -> Usage:
    """Return the usage to account for one answer: four bytes of JSON are one token. See docs/offline.md."""
    return Usage(1, _tokens(_SECONDS.sub(b"", _ENCODER.encode(request))), _tokens(_ENCODER.encode(value)))


def _tokens(text: bytes) -> int:
    return -(-len(text) // _BYTES_PER_TOKEN)
