"""The planner: what to do next, in growing and in solving."""

from collections.abc import Mapping
from typing import TypeAlias, cast

from msgspec.structs import replace

from agentflow.models import Call, Model
from agentflow.team._asking import ReadBlob, ask_model, broken, pictures_of, seen_by
from agentflow.team._cards import without_idle_nulls
from agentflow.team._messages import plan_messages
from agentflow.team._pool import Pool, Worker
from agentflow.team._schemas import answer_schema, decided_schema, plan_schema, step_schema
from agentflow.team._task_messages import analysis_messages, step_messages
from agentflow.trajectory import (
    AnalysisRequest,
    Blob,
    DecidedStep,
    DecisionRequest,
    NextStep,
    NextStepRequest,
    Plan,
    PlanRequest,
    Proposal,
    QueryAnalysis,
    Reply,
)

__all__ = ["Planner", "Planners"]

Wish: TypeAlias = PlanRequest | AnalysisRequest | NextStepRequest | DecisionRequest
Given: TypeAlias = Reply[Plan] | Reply[QueryAnalysis] | Reply[NextStep] | Reply[DecidedStep]


class Planner(Worker[Wish, Given]):
    """Asks a model for the next actions of one path, or the next step of an episode; another one what a question takes."""

    def __init__(self, model: Model, analyst: Model, blob: ReadBlob, short: bool) -> None:
        super().__init__()
        self._model = model
        self._analyst = analyst
        self._blob = blob
        self._short = short

    async def work(self, about: Wish) -> Given:
        """Propose, analyse, or say what comes next."""
        match about:
            case PlanRequest():
                return await self._plan(about)
            case AnalysisRequest():
                return await self._analyse(about)
            case NextStepRequest():
                return await self._next(about)
            case DecisionRequest():
                return await self._decide(about)

    async def _plan(self, about: PlanRequest) -> Reply[Plan]:
        """At most as many as asked for, without arguments that say nothing."""
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
        plan = Plan(
            tuple(
                Proposal(each.intent, each.tool, without_idle_nulls(each.arguments, cards.get(each.tool)))
                for each in reply.value.proposals[: about.count]
            )
        )
        return replace(reply, value=plan)

    async def _analyse(self, about: AnalysisRequest) -> Reply[QueryAnalysis]:
        call = Call(
            role="analyst",
            messages=analysis_messages(about, await seen_by(self._analyst, about.images, self._blob)),
            reply=QueryAnalysis,
            schema=answer_schema(QueryAnalysis),
            request=about,
        )
        return await ask_model(self._analyst, call)

    async def _next(self, about: NextStepRequest) -> Reply[NextStep]:
        call = Call(
            role="planner",
            messages=step_messages(about, await self._seen(about), merged=False, short=self._short),
            reply=NextStep,
            schema=step_schema(tuple(tool.name for tool in about.tools)),
            request=about,
        )
        return await ask_model(self._model, call)

    async def _decide(self, about: DecisionRequest) -> Reply[DecidedStep]:
        call = Call(
            role="planner",
            messages=step_messages(about.next, await self._seen(about.next), merged=True, short=self._short),
            reply=DecidedStep,
            schema=decided_schema(tuple(tool.name for tool in about.next.tools)),
            request=about,
        )
        return await ask_model(self._model, call)

    async def _seen(self, about: NextStepRequest) -> Mapping[str, bytes]:
        images: list[Blob] = [*about.images, *(blob for turn in about.memory.turns for blob in turn.images)]
        return await seen_by(self._model, images, self._blob)


class Planners(Pool[Wish, Given]):
    """All planners."""

    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        """Different actions, as many as asked for where there are so many. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return cast("Reply[Plan]", await self.ask(request))

    async def analyse(self, request: AnalysisRequest) -> Reply[QueryAnalysis]:
        """What a question takes. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return cast("Reply[QueryAnalysis]", await self.ask(request))

    async def next_step(self, request: NextStepRequest) -> Reply[NextStep]:
        """What comes next in an episode. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return cast("Reply[NextStep]", await self.ask(request))

    async def decide(self, request: DecisionRequest) -> Reply[DecidedStep]:
        """Whether memory is enough, and if not, what comes next. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return cast("Reply[DecidedStep]", await self.ask(request))

    def fallen(self, why: str) -> Given:
        """No plan."""
        failed: Reply[Plan] = Reply(failure=broken(why))
        return failed
