"""The planner: what to do next."""

from typing import cast

from agentflow.models import Call, Model
from agentflow.team._asking import ReadBlob, ask_model, broken, pictures_of
from agentflow.team._messages import plan_messages
from agentflow.team._pool import Pool, Worker
from agentflow.team._schemas import plan_schema
from agentflow.trajectory import Plan, PlanRequest, Proposal, Reply, ToolCard

__all__ = ["Planner", "Planners"]


class Planner(Worker[PlanRequest, Reply[Plan]]):
    """Asks a model for the next actions of one path."""

    def __init__(self, model: Model, blob: ReadBlob) -> None:
        super().__init__()
        self._model = model
        self._blob = blob

    async def work(self, about: PlanRequest) -> Reply[Plan]:
        """Propose actions: at most as many as asked for, without arguments that say nothing."""
        if not about.tools or about.count < 1:
            return Reply(value=Plan(()))
        call = Call(
            role="planner",
            messages=plan_messages(about, await pictures_of(about.path, self._model, self._blob)),
            reply=Plan,
            schema=plan_schema(about.tools, about.count),
            request=about,
        )
        reply = await ask_model(self._model, call)
        if reply.value is None:
            return reply
        cards = {card.name: card for card in about.tools}
        proposals = reply.value.proposals[: about.count]
        plan = Plan(tuple(_tidy(proposal, cards.get(proposal.tool)) for proposal in proposals))
        return Reply(value=plan, usage=reply.usage)


class Planners(Pool[PlanRequest, Reply[Plan]]):
    """All planners."""

    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        """Different actions, as many as asked for where there are so many. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return await self.ask(request)

    def fallen(self, why: str) -> Reply[Plan]:
        """No plan."""
        return Reply(failure=broken(why))


def _tidy(proposal: Proposal, card: ToolCard | None) -> Proposal:
    """Without nulls for optional arguments: strict schemas ask for every argument."""
    required: list[str] = card.schema.get("required", []) if card is not None else []
    given = proposal.arguments.items()
    arguments = {name: _told(value) for name, value in given if value is not None or name in required}
    return Proposal(proposal.intent, proposal.tool, arguments)


def _told(value: object) -> object:
    if isinstance(value, dict):
        members = cast("dict[str, object]", value).items()
        return {name: _told(member) for name, member in members if member is not None}
    if isinstance(value, list):
        return [_told(member) for member in cast("list[object]", value)]
    return value
