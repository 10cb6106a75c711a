"""Checked augmentation: variants of tasks that a model writes, kept if all checks pass."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from agentflow.actors import together
from agentflow.errors import ConfigurationError
from agentflow.models import Call, Message, Sampling, TextPart
from agentflow.readers._filters import answer_value, attempt_answer
from agentflow.readers._replies import KeptReplies
from agentflow.readers._settings import AugmentSettings
from agentflow.scoring import make_metric
from agentflow.synthesis import QuestionIndex
from agentflow.text import PromptFiles, contains_phrase
from agentflow.trace import Task

_PROMPTS: Final = PromptFiles(Path(__file__).parent / "prompts")
_MARK: Final = re.compile(r"<(?=/?(?:question|answer)\b)", re.IGNORECASE)
_ORIGINS: Final = ("reasoning_gym",)
"""Fields by which the scorer of the original would judge a variant."""
_RIGHT: Final = 0.99
_TEMPERATURE: Final = 1.0


class _Paraphrase(Struct, frozen=True):
    question: str


class _Variant(Struct, frozen=True):
    working: str
    question: str
    answer: str


def _schema(*names: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": list(names),
        "additionalProperties": False,
    }


class Augmenter:
    """Writes variants of tasks and checks each: no near-duplicate, no answer in the question, solved independently."""

    def __init__(self, settings: AugmentSettings, writer: KeptReplies, solver: KeptReplies) -> None:
        """:param writer: model that writes.
        :param solver: model that solves; it sees a question alone.
        :raises ConfigurationError: one line, if the metric is unknown.
        """
        self.rejected: Counter[str] = Counter()
        """Number of rejected variants by reason."""
        self._settings = settings
        self._writer = writer
        self._solver = solver
        self._metric = make_metric(settings.metric)
        self._index = QuestionIndex(settings.similarity)

    async def variants(self, tasks: Sequence[Task]) -> list[list[Task]]:
        """Return the accepted variants of each task, in order.

        :raises ConfigurationError: one line, if a task has no reference answer.
        :raises RunStopped: if a model can't be used.
        """
        for task in tasks:
            if not task.references:
                raise ConfigurationError(
                    f"augment: task {task.id} has no reference answer, so no variant can be checked"
                )
            self._index.add(task.question, answer_value(task), task.id)
        numbers = range(1, self._settings.variants + 1)
        drafts = await together([partial(self._draft, task, number) for task in tasks for number in numbers])
        # In order, so that of two near-duplicates the first is kept whatever arrives first.
        fresh = [draft if isinstance(draft, str) else self._new(draft) for draft in drafts]
        checked = await together([partial(self._checked, draft) for draft in fresh])
        kept: list[list[Task]] = []
        width = self._settings.variants
        for start in range(0, len(checked), width):
            made = checked[start : start + width]
            self.rejected.update(variant for variant in made if isinstance(variant, str))
            kept.append([variant for variant in made if isinstance(variant, Task)])
        return kept

    async def _draft(self, task: Task, number: int) -> Task | str:
        """Return a variant as written, or the reason for its rejection."""
        paraphrase = self._settings.kind == "paraphrase"
        values = {"question": _safe(task.question), "number": str(number)}
        name = "writer_paraphrase" if paraphrase else "writer_variant"
        if not paraphrase:
            values["answer"] = _safe(task.references[0])
        messages = (
            Message("system", (TextPart(_PROMPTS.fill(name, "system")),)),
            Message("user", (TextPart(_PROMPTS.fill(name, "ask", **values)),)),
        )
        sampling = Sampling(temperature=_TEMPERATURE, seed=number)
        if paraphrase:
            call = Call(
                role="writer",
                messages=messages,
                reply=_Paraphrase,
                schema=_schema("question"),
                sampling=sampling,
            )
            paraphrased, _ = await self._writer.ask(call, task.id, number)
            question, references = ("" if paraphrased is None else paraphrased.question), task.references
        else:
            call = Call(
                role="writer",
                messages=messages,
                reply=_Variant,
                schema=_schema("working", "question", "answer"),
                sampling=sampling,
            )
            written, _ = await self._writer.ask(call, task.id, number)
            question = "" if written is None else written.question
            references = (written.answer.strip(),) if written is not None else ()
        if not question.strip() or not any(references):
            return "not written"
        # A question that states its answer by itself, such as one with options, may do so in other words, too.
        stated = any(contains_phrase(task.question, reference) for reference in task.references)
        if not stated and any(contains_phrase(question, reference) for reference in references):
            return "answer in the question"
        left_out = (
            {"pass_rate", "attempts"} if paraphrase else {"pass_rate", "attempts", "documents", *_ORIGINS}
        )
        metadata = {name: value for name, value in task.metadata.items() if name not in left_out}
        if not paraphrase and metadata.get("source") in _ORIGINS:
            del metadata["source"]
        return structs.replace(
            task,
            id=f"{task.id}~{number}",
            question=question.strip(),
            references=references,
            metadata={**metadata, "variant_of": task.id},
        )

    def _new(self, variant: Task) -> Task | str:
        answer = answer_value(variant)
        if self._index.before(variant.question, answer) is not None:
            return "near-duplicate"
        self._index.add(variant.question, answer, variant.id)
        return variant

    async def _checked(self, variant: Task | str) -> Task | str:
        """Return a variant if every independent solution gives its answer."""
        if isinstance(variant, str):
            return variant
        for number in range(self._settings.solvers):
            answer = await attempt_answer(
                self._solver, variant.question, number, _TEMPERATURE if number else 0.0
            )
            if answer is None:
                return "not solved"
            scored = await self._metric.score(answer, variant)
            if scored.failure is not None or scored.score < _RIGHT:
                return "another answer derived"
        return variant


def _safe(text: str) -> str:
    return _MARK.sub("‹", text.strip())
