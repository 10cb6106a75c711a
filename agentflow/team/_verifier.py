"""The verifier: what an observation is worth."""

from typing import Literal, TypeAlias

from agentflow.models import Call, Model
from agentflow.team._asking import ReadBlob, ask_model, broken, pictures_of
from agentflow.team._messages import judge_messages
from agentflow.team._pool import Pool, Worker
from agentflow.team._rules import judge_by_rule, judge_plainly
from agentflow.team._schemas import answer_schema
from agentflow.trajectory import Judgement, JudgementRequest, Reply, Verdict

__all__ = ["Verifier", "Verifiers", "Verify"]

Verify: TypeAlias = Literal["rule", "model", "off"]
"""By rule; by a model where it is not plain to see; not at all."""


class Verifier(Worker[JudgementRequest, Reply[Judgement]]):
    """Judges by rule, or asks a model."""

    def __init__(self, verify: Verify, model: Model | None, blob: ReadBlob) -> None:
        super().__init__()
        self._verify = verify
        self._model = model
        self._blob = blob

    async def work(self, about: JudgementRequest) -> Reply[Judgement]:
        """Say what it is worth."""
        if self._verify == "off":
            return Reply(value=Judgement(Verdict.NEW))
        if self._verify == "rule" or self._model is None:
            return Reply(value=judge_by_rule(about))
        plain = judge_plainly(about)
        if plain is not None:
            return Reply(value=plain)
        steps = (*about.path, about.step)
        call = Call(
            role="verifier",
            messages=judge_messages(about, await pictures_of(steps, self._model, self._blob)),
            reply=Judgement,
            schema=answer_schema(Judgement),
            request=about,
        )
        return await ask_model(self._model, call)


class Verifiers(Pool[JudgementRequest, Reply[Judgement]]):
    """All verifiers."""

    async def judge(self, request: JudgementRequest) -> Reply[Judgement]:
        """What the observation is worth. A failed call is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return await self.ask(request)

    def fallen(self, why: str) -> Reply[Judgement]:
        """No judgement."""
        return Reply(failure=broken(why))
