"""The verifier: what an observation is worth, and whether memory answers a question."""

from collections.abc import Callable
from typing import Literal, TypeAlias, cast

from agentflow.models import Call, Model
from agentflow.team._asking import ReadBlob, ask_model, broken, pictures_of, seen_by
from agentflow.team._messages import judge_messages
from agentflow.team._pool import Pool, Worker
from agentflow.team._rules import judge_by_rule, judge_plainly
from agentflow.team._schemas import answer_schema
from agentflow.team._task_messages import verification_messages
from agentflow.trajectory import Decision, Judgement, JudgementRequest, Reply, Verdict, VerificationRequest

__all__ = ["Verifier", "Verifiers", "Verify"]

Verify: TypeAlias = Literal["rule", "model", "off"]
"""By rule; by a model where it is not plain to see; not at all."""


Wish: TypeAlias = JudgementRequest | VerificationRequest
Given: TypeAlias = Reply[Judgement] | Reply[Decision]


class Verifier(Worker[Wish, Given]):
    """Judges by rule, or asks a model."""

    def __init__(self, verify: Verify, model: Model | None, blob: ReadBlob) -> None:
        super().__init__()
        self._verify: Verify = verify
        self._model = model
        self._blob = blob

    async def work(self, about: Wish) -> Given:
        """Say what it is worth."""
        if isinstance(about, VerificationRequest):
            return await self._decide(about)
        told = by_rule(self._verify, about)
        if told is not None:
            return Reply(value=told)
        assert self._model is not None, "only a model can tell"
        steps = (*about.path, about.step)
        call = Call(
            role="verifier",
            messages=judge_messages(about, await pictures_of(steps, self._model, self._blob)),
            reply=Judgement,
            schema=answer_schema(Judgement),
            request=about,
        )
        return await ask_model(self._model, call)

    async def _decide(self, about: VerificationRequest) -> Reply[Decision]:
        assert self._model is not None, "a team that solves has a model to verify"
        images = [*about.images, *(blob for turn in about.memory.turns for blob in turn.images)]
        call = Call(
            role="verifier",
            messages=verification_messages(about, await seen_by(self._model, images, self._blob)),
            reply=Decision,
            schema=answer_schema(Decision),
            request=about,
        )
        return await ask_model(self._model, call)


def by_rule(verify: Verify, request: JudgementRequest) -> Judgement | None:
    """The verdict, where no model is to be asked."""
    match verify:
        case "off":
            return Judgement(Verdict.NEW)
        case "rule":
            return judge_by_rule(request)
        case "model":
            return judge_plainly(request)


class Verifiers(Pool[Wish, Given]):
    """All verifiers."""

    def __init__(self, verify: Verify, make: Callable[[], Verifier], *, workers: int) -> None:
        super().__init__("verifiers", make, workers=workers)
        self._verify: Verify = verify

    def by_rule(self, request: JudgementRequest) -> Judgement | None:
        """What the observation is worth, where no model is to be asked."""
        return by_rule(self._verify, request)

    async def judge(self, request: JudgementRequest) -> Reply[Judgement]:
        """What the observation is worth. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return cast("Reply[Judgement]", await self.ask(request))

    async def decide(self, request: VerificationRequest) -> Reply[Decision]:
        """Whether memory answers the question. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return cast("Reply[Decision]", await self.ask(request))

    def fallen(self, why: str) -> Given:
        """No judgement."""
        failed: Reply[Judgement] = Reply(failure=broken(why))
        return failed
