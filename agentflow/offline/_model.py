"""The engine that needs no model: it answers typed requests from the text that they show."""

import re
from typing import TypeVar, cast

import msgspec
from msgspec import Struct

from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.models._accounts import Accounts
from agentflow.models._protocol import Call, Completion
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
    RoleRequest,
    SolutionRequest,
    SummaryRequest,
    TaskRequest,
    Usage,
    VerificationRequest,
    WriteRequest,
)

__all__ = ["OfflineModel"]

T = TypeVar("T")

_BYTES_PER_TOKEN = 4
_ENCODER = msgspec.json.Encoder()
_TIME = re.compile(rb',"seconds":[-+.0-9eE]+')
"""When a turn was over: no role is shown it, so it counts nothing."""


class OfflineModel:
    """Plays all roles without weights, network or chance: the same request, the same answer."""

    name = "offline"
    """What it is called in settings and reports."""
    sees = False
    """It takes no pictures."""

    def __init__(self, accounts: Accounts) -> None:
        """Open it.

        :param accounts: where its usage is accounted, and whose budgets hold for it as well.
        """
        self._accounts = accounts

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call.

        :raises ModelFailure: if the call shows no typed request, or expects another kind of answer.
        :raises RunStopped: when a budget is used up.
        """
        self._accounts.check()
        if call.request is None:
            message = "the offline engine answers typed requests only; name a model for free text"
            raise ModelFailure(ModelFailureKind.BAD_REQUEST, message)
        value = _answer(call.request)
        if not isinstance(value, call.reply):
            message = f"the offline engine answers this request by {type(value).__name__}, not {call.reply.__name__}"
            raise ModelFailure(ModelFailureKind.BAD_REQUEST, message)
        text = _ENCODER.encode(value)
        usage = Usage(1, _tokens(_TIME.sub(b"", _ENCODER.encode(call.request))), _tokens(text))
        self._accounts.add(call.role, usage, model=self.name)
        return Completion(value=cast("T", value), text=text.decode(), usage=usage, model=self.name)


def _answer(request: RoleRequest | TaskRequest) -> Struct:
    match request:
        case PlanRequest():
            return plan(request)
        case JudgementRequest():
            return judge(request)
        case WriteRequest():
            return write(request)
        case AnswerRequest():
            # It knows nothing but what it is shown, and here it is shown nothing.
            return Answer("")
        case LookRequest():
            # It sees nothing.
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


def _tokens(text: bytes) -> int:
    return -(-len(text) // _BYTES_PER_TOKEN)
