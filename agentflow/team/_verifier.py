"""The verifier: judges observations, and decides whether the memory answers a question."""

from typing import Literal, TypeAlias

from agentflow.models import Model
from agentflow.team._messages import judge_messages, verification_messages
from agentflow.team._model_calls import answer_request, visible_images
from agentflow.team._observations import ObservationLimits
from agentflow.team._pool import Role, in_worker
from agentflow.team._rendering import episode_images
from agentflow.team._rules import judge_by_rule, judge_obvious
from agentflow.trace import (
    BlobStore,
    Decision,
    Judgement,
    JudgementRequest,
    Reply,
    Verdict,
    VerificationRequest,
)

Verify: TypeAlias = Literal["rule", "model", "off"]
"""Judge by rule; by a model unless the verdict is obvious; or not at all."""


class Verifier(Role):
    """Role that judges results. A failed model call is a failed reply; only `RunStopped` is raised.

    See docs/team.md.
    """

    def __init__(
        self,
        verify: Verify,
        model: Model,
        blobs: BlobStore,
        *,
        workers: int,
        observations: ObservationLimits,
    ) -> None:
        """Create the role.

        :param verify: method for judging observations during growth.
        :param model: model that judges and verifies.
        :param blobs: store of images, for models with vision.
        :param workers: maximum number of workers.
        :param observations: room for observations in a prompt.
        """
        super().__init__("verifiers", workers=workers)
        self._verify: Verify = verify
        self._model = model
        self._blobs = blobs
        self._observations = observations

    def by_rule(self, request: JudgementRequest) -> Judgement | None:
        """Judge an observation without a model; `None` if a model is required."""
        match self._verify:
            case "off":
                return Judgement(Verdict.NEW)
            case "rule":
                return judge_by_rule(request)
            case "model":
                return judge_obvious(request)

    @in_worker
    async def judge(self, request: JudgementRequest) -> Reply[Judgement]:
        """Judge an observation, by rule where possible."""
        judgement = self.by_rule(request)
        if judgement is not None:
            return Reply(value=judgement)
        images = (blob for step in (*request.path, request.step) for blob in step.images)
        visible = await visible_images(self._model, images, self._blobs)
        messages = judge_messages(request, visible, self._observations)
        return await answer_request(self._model, request, Judgement, messages, role="verifier")

    @in_worker
    async def decide(self, request: VerificationRequest) -> Reply[Decision]:
        """Decide whether the memory answers the question."""
        images = episode_images(request.images, request.memory.turns)
        messages = verification_messages(request, await visible_images(self._model, images, self._blobs))
        return await answer_request(self._model, request, Decision, messages, role="verifier")
