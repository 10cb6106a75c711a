"""Roles whose first drafts break a rule."""

from typing import Any

from msgspec.structs import replace

from agentflow.questions import ProposalRequest, QuestionProposal, RepairRequest
from agentflow.testing import ScriptedRoles
from agentflow.trace import Reply
from tests.agentflow.synthesis._grown import drafts_of


class Careless(ScriptedRoles):
    """Names documents in its questions until it is told not to, or always."""

    def __init__(self, *, always: bool = False) -> None:
        super().__init__(drafts_of)
        self._always = always
        self.repairs: list[RepairRequest] = []

    async def propose_questions(self, request: ProposalRequest) -> Reply[QuestionProposal]:
        """Return questions that refer to documents."""
        reply = await super().propose_questions(request)
        proposal = reply.value or QuestionProposal((), (), ())
        drafts = tuple(
            replace(draft, question=f"According to the documents, {draft.question}")
            for draft in proposal.drafts
        )
        return Reply(QuestionProposal((), (), drafts), usage=reply.usage)

    async def repair_questions(self, request: RepairRequest) -> Reply[Any]:
        """Return what the questions say without it."""
        self.repairs.append(request)
        plain = tuple(
            replace(
                each,
                draft=replace(
                    each.draft, question=each.draft.question.removeprefix("According to the documents, ")
                ),
            )
            for each in request.fallen
        )
        return await super().repair_questions(request if self._always else replace(request, fallen=plain))
