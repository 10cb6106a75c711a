"""The planner: proposes actions during growth, and the next step of an episode."""

from collections.abc import Mapping
from functools import partial
from typing import Literal, TypeAlias

from msgspec.structs import replace

from agentflow.models import Call, Model, ask_model
from agentflow.team._labelled_steps import labelled_step_messages, read_labelled_step
from agentflow.team._messages import analysis_messages, plan_messages, step_messages
from agentflow.team._pool import Role, answer_request, in_worker
from agentflow.team._rendering import ObservationLimits, episode_images, visible_images
from agentflow.team._schemas import decided_schema, drop_unused_nulls, plan_schema, step_schema
from agentflow.trace import (
    AnalysisRequest,
    BlobStore,
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

PlannerFormat: TypeAlias = Literal["json", "labelled"]
"""Format of the planner's steps: JSON, or lines with labels as the released planners of AgentFlow write them."""


class Planner(Role):
    """Role that decides what to do next. A failed model call is a failed reply; only `RunStopped` is raised.

    See docs/team.md.
    """

    def __init__(
        self,
        model: Model,
        analyst: Model,
        blobs: BlobStore,
        *,
        short_prompts: bool,
        format: PlannerFormat,
        workers: int,
        observations: ObservationLimits,
    ) -> None:
        """Create the role.

        :param model: model that plans.
        :param analyst: model that analyses questions.
        :param blobs: store of images, for models with vision.
        :param short_prompts: see `Team`.
        :param format: see `Team`.
        :param workers: maximum number of workers.
        :param observations: room for observations in a prompt.
        """
        super().__init__("planners", workers=workers)
        self._model = model
        self._analyst = analyst
        self._blobs = blobs
        self._observations = observations
        self._short_prompts = short_prompts
        self._format: PlannerFormat = format

    @in_worker
    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        """Propose different actions: at most as many as requested, without unused null arguments."""
        if not request.tools or request.count < 1:
            return Reply(value=Plan(()))
        images = (blob for step in request.path for blob in step.images)
        visible = await visible_images(self._model, images, self._blobs)
        messages = plan_messages(request, visible, self._observations)
        schema = plan_schema(request.tools, request.count)
        reply = await answer_request(self._model, request, Plan, messages, role="planner", schema=schema)
        if reply.value is None:
            return reply
        cards = {card.name: card for card in request.tools}
        plan = Plan(
            tuple(
                Proposal(
                    proposal.intent,
                    proposal.tool,
                    drop_unused_nulls(proposal.arguments, cards.get(proposal.tool)),
                )
                for proposal in reply.value.proposals[: request.count]
            )
        )
        return replace(reply, value=plan)

    @in_worker
    async def analyse(self, request: AnalysisRequest) -> Reply[QueryAnalysis]:
        """Analyse a question before the first turn."""
        images = await visible_images(self._analyst, request.images, self._blobs)
        messages = analysis_messages(request, images)
        return await answer_request(self._analyst, request, QueryAnalysis, messages, role="analyst")

    @in_worker
    async def next_step(self, request: NextStepRequest) -> Reply[NextStep]:
        """Choose the next step of an episode."""
        images = await self._images(request)
        names = tuple(tool.name for tool in request.tools)
        if self._format == "labelled":
            messages, parse = (
                labelled_step_messages(request, images),
                partial(read_labelled_step, names=names),
            )
            call = Call(role="planner", messages=messages, reply=NextStep, request=request, parse=parse)
            return await ask_model(self._model, call)
        messages = step_messages(request, images, merged=False, short=self._short_prompts)
        schema = step_schema(names)
        return await answer_request(self._model, request, NextStep, messages, role="planner", schema=schema)

    @in_worker
    async def decide(self, request: DecisionRequest) -> Reply[DecidedStep]:
        """Decide whether the memory suffices, and choose the next step if not."""
        images = await self._images(request.next)
        messages = step_messages(request.next, images, merged=True, short=self._short_prompts)
        schema = decided_schema(tuple(tool.name for tool in request.next.tools))
        return await answer_request(
            self._model, request, DecidedStep, messages, role="planner", schema=schema
        )

    async def _images(self, request: NextStepRequest) -> Mapping[str, bytes]:
        images = episode_images(request.images, request.memory.turns)
        return await visible_images(self._model, images, self._blobs)
