"""A language model as a judge."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
from msgspec import Struct

from agentflow.errors import ConfigurationError, ErrorKind, ModelFailure, RunStopped
from agentflow.models import Call, Message, Model, Sampling
from agentflow.scoring._answers import marked_answer
from agentflow.scoring._prompts import messages, prompt_version
from agentflow.scoring._scored import Scored
from agentflow.scoring._verdicts import Verdicts
from agentflow.scoring._words import exact_match
from agentflow.trajectory import Failure, Task, Usage, digest

__all__ = ["Judge", "Opinion", "ask", "schema_of"]


class Opinion(Struct, frozen=True):
    """What a judge answers."""

    analysis: str
    """Why, in short."""
    correct: bool
    """The answer is right."""


def schema_of(**fields: str) -> dict[str, Any]:
    """A closed schema of fields with their types."""
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


_LONGEST: Final = 20_000
"""Characters of an answer that a judge is shown; of a longer one its middle is left out."""
_SCHEMA: Final = schema_of(analysis="string", correct="boolean")


class Judge:
    """Asks a model whether an answer is right, unless a rule settles it.

    The judge sees the question, the references, and the evidence where the task has some. The same is never judged
    twice. A judge that fails says nothing about the answer: that is a `failure`, not a wrong answer.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        *,
        votes: int = 1,
        temperature: float | None = None,
        rule: Callable[[str, Sequence[str]], float] | None = exact_match,
        evidence: bool = False,
        cache: str = "",
    ) -> None:
        """Make it.

        :param votes: how many opinions are asked for; the majority decides.
        :param temperature: of the model; without one it is 0 for one vote, and the model's own for several.
        :param rule: what it finds right is right without asking; `None`: everything is asked.
        :param evidence: show the judge what the document says, from the task's `evidence`.
        :param cache: a file that keeps the verdicts; empty: they are kept in memory.
        :raises ConfigurationError: one line.
        """
        if votes < 1 or votes % 2 == 0:
            raise ConfigurationError(f"metric {name}: votes is {votes}; an odd number has a majority")
        self._name = name
        self._model = model
        self._votes = votes
        self._temperature = 0.0 if temperature is None and votes == 1 else temperature
        self._rule = rule
        self._evidence = evidence
        self._verdicts = Verdicts(Path(cache) if cache else None)
        self.by_rule = 0
        """Predictions that a rule settled."""
        self.asked = 0
        """Predictions that the model was asked about."""

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    @property
    def from_cache(self) -> int:
        """Predictions whose verdict was known already."""
        return self._verdicts.found

    async def score(self, prediction: str, task: Task) -> Scored:
        """1 if the answer is right, 0 if not; a failure if the judge can't say."""
        marked = marked_answer(prediction)
        answer = prediction if marked is None else marked
        if self._rule is not None and self._rule(answer, task.references) == 1.0:
            self.by_rule += 1
            return Scored(1.0, "a rule finds it right")
        if not prediction.strip():
            return Scored(0.0, "there is no answer")
        asked = messages(
            "judge_verdict",
            question=task.question,
            evidence=str(task.metadata.get("evidence") or "") if self._evidence else "",
            references="\n".join(task.references),
            answer=_shortened(prediction),
        )
        about = [prompt_version("judge_verdict"), self._model.name, self._votes, self._temperature, asked]
        return await self._verdicts.once(digest(about, 16), lambda: self._vote(asked))

    async def _vote(self, asked: tuple[Message, ...]) -> Scored:
        self.asked += 1
        votes: list[tuple[Opinion | Failure, Usage] | None] = [None] * self._votes

        stopped: list[RunStopped] = []

        async def vote(number: int) -> None:
            sampling = Sampling(temperature=self._temperature, seed=number if self._votes > 1 else None)
            call = Call(role="judge", messages=asked, reply=Opinion, schema=_SCHEMA, sampling=sampling)
            try:
                votes[number] = await ask(self._model, call)
            except RunStopped as stop:
                # A group of tasks would wrap it.
                stopped.append(stop)

        async with anyio.create_task_group() as group:
            for number in range(self._votes):
                group.start_soon(vote, number)
        if stopped:
            raise stopped[0]
        return _majority([vote for vote in votes if vote is not None])


def _shortened(answer: str) -> str:
    if len(answer) <= _LONGEST:
        return answer
    left_out = len(answer) - _LONGEST
    return f"{answer[: _LONGEST // 2]}\n[{left_out} characters left out]\n{answer[-_LONGEST // 2 :]}"


async def ask(model: Model, call: Call[Any]) -> tuple[Any, Usage]:
    """The model's answer, or its failure, with what it consumed.

    :raises RunStopped: if the run can't go on.
    """
    try:
        completion = await model.complete(call)
    except ModelFailure as failure:
        spent = Usage(failure.answers, failure.prompt_tokens, failure.completion_tokens)
        return Failure(failure.kind, str(failure)), spent
    return completion.value, completion.usage


def _majority(votes: list[tuple[Opinion | Failure, Usage]]) -> Scored:
    usage = sum((spent for _, spent in votes), Usage())
    opinions = [vote for vote, _ in votes if isinstance(vote, Opinion)]
    failures = [vote for vote, _ in votes if isinstance(vote, Failure)]
    if not opinions:
        return Scored(0.0, failure=failures[0], usage=usage)
    counted = Counter(opinion.correct for opinion in opinions)
    if counted[True] == counted[False]:
        undecided = Failure(ErrorKind.FAILED, "as many opinions for it as against it: some votes failed")
        return Scored(0.0, failure=undecided, usage=usage)
    correct = counted[True] > counted[False]
    reason = next(opinion.analysis for opinion in opinions if opinion.correct == correct)
    return Scored(float(correct), reason, usage=usage)
