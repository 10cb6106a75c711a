"""Supervised fine-tuning, by the same steps: what was written becomes more likely."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field

from agentflow.errors import ConfigurationError
from agentflow.learner._backbone import Backbone, Figures
from agentflow.learner._checkpoints import Checkpoints
from agentflow.learner._rows import Row
from agentflow.learner.losses import LossSettings
from agentflow.settings import Section

__all__ = [
    "FineTuneSettings",
    "FineTuned",
    "Lesson",
    "Watch",
    "fine_tune",
    "lesson_rows",
    "lessons_of",
    "mean_loss",
]


class Lesson(NamedTuple):
    """One thing to say: the tokens that are read, and those that shall be written then."""

    prompt: tuple[int, ...]
    """What is read; never learned."""
    completion: tuple[int, ...]
    """What is learned."""


Conversation: TypeAlias = Sequence[Lesson]
"""The lessons of one conversation: they stay in one step, where what they share is computed once."""
Watch: TypeAlias = Callable[[int, Figures], bool | None]
"""Is given the number of steps made and the figures of the last one; `True` ends it."""


class FineTuneSettings(Section):
    """How long, and how much at a time."""

    epochs: int = Field(default=3, ge=1)
    """How often everything is read."""
    batch: int = Field(default=32, ge=1)
    """Conversations in a step."""
    evaluate_every: int = Field(default=0, ge=0)
    """Steps between two evaluations on what is held out; 0: only at the end."""
    save_every: int = Field(default=0, ge=0)
    """Steps between two checkpoints, where there is a place for them; 0: none."""
    seed: int = 0
    """The order of conversations follows from it."""

    def steps(self, conversations: int) -> int:
        """How many steps that many conversations make; what a schedule of the optimiser wants to know."""
        return self.epochs * -(-conversations // self.batch)


class FineTuned(NamedTuple):
    """What came of it."""

    steps: int
    """Steps that were made in all."""
    losses: list[float]
    """The loss of each step that was made now: the mean over its tokens."""
    held_out: list[tuple[int, float]]
    """Steps made, and the loss on what is held out then."""


def fine_tune(
    backbone: Backbone,
    conversations: Sequence[Conversation],
    settings: FineTuneSettings | None = None,
    *,
    held_out: Sequence[Conversation] = (),
    checkpoints: Checkpoints | None = None,
    watch: Watch | None = None,
) -> FineTuned:
    """Learn conversations. The same call goes on from the last checkpoint, and ends with the same bits.

    :param held_out: conversations that are not learned; only their loss is taken.
    :param checkpoints: where checkpoints are kept.
    :param watch: is told of every step, and may end it.
    :raises ConfigurationError: if there is nothing to learn.
    :raises CheckpointError: if a checkpoint can't be written.
    """
    settings = settings or FineTuneSettings()
    if not any(lesson.completion for conversation in conversations for lesson in conversation):
        raise ConfigurationError(
            "conversations: there is nothing in them to learn; give some with completions"
        )
    loss = LossSettings(name="cross_entropy")
    done = _position(checkpoints.load(backbone) if checkpoints else None)
    losses, measured = list[float](), list[tuple[int, float]]()
    total = settings.steps(len(conversations))
    for step, chosen in _batches(conversations, settings, done):
        figures = backbone.step(lesson_rows(chosen), loss)
        losses.append(figures["step/loss"])
        if held_out and settings.evaluate_every and step % settings.evaluate_every == 0:
            measured.append((step, mean_loss(backbone, held_out)))
            figures["validation/loss"] = measured[-1][1]
        if checkpoints and settings.save_every and step % settings.save_every == 0:
            checkpoints.save(backbone, step, {"step": step})
        done = step
        if watch and watch(step, figures):
            break
    if held_out and (not measured or measured[-1][0] != done):
        measured.append((done, mean_loss(backbone, held_out)))
    if checkpoints and losses and done == total:
        checkpoints.save(backbone, done, {"step": done})
    return FineTuned(done, losses, measured)


def lesson_rows(conversations: Sequence[Conversation]) -> list[Row]:
    """Lessons as rows of one step, whose loss is the mean over all tokens that are learned."""
    lessons = [lesson for conversation in conversations for lesson in conversation if lesson.completion]
    total = sum(len(lesson.completion) for lesson in lessons)
    return [_row(unit, lesson, total) for unit, lesson in enumerate(lessons)]


def mean_loss(backbone: Backbone, conversations: Sequence[Conversation]) -> float:
    """The mean loss over all tokens that could be learned from these."""
    values = np.concatenate(backbone.log_probs(lesson_rows(conversations)))
    return float(-values.astype(np.float64).mean())


def lessons_of(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Any,  # noqa: ANN401 - any of transformers
    *,
    role: str = "assistant",
    **template: Any,  # noqa: ANN401 - whatever the chat template takes, such as tools
) -> list[Lesson]:
    """The lessons of a conversation: one for each message of that role, after all that came before it.

    Prompts are what an engine is given at that moment, so what is learned is what will be asked.

    :raises ConfigurationError: if the chat template does not write a message after its own opening.
    """
    lessons = list[Lesson]()
    for place, message in enumerate(messages):
        if message["role"] != role:
            continue
        prompt = _text(tokenizer, messages[:place], add_generation_prompt=True, **template)
        whole = _text(tokenizer, messages[: place + 1], **template)
        if not whole.startswith(prompt):
            raise ConfigurationError(
                f"chat template: message {place} does not go on from the prompt before it; use another template"
            )
        lessons.append(
            Lesson(_tokens(tokenizer, prompt), _tokens(tokenizer, whole[len(prompt) :].rstrip("\n")))
        )
    return lessons


def _text(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **template: Any) -> str:  # noqa: ANN401
    return tokenizer.apply_chat_template([dict(message) for message in messages], tokenize=False, **template)


def _tokens(tokenizer: Any, text: str) -> tuple[int, ...]:  # noqa: ANN401
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _row(unit: int, lesson: Lesson, total: int) -> Row:
    count = len(lesson.completion)
    if not lesson.prompt:
        raise ConfigurationError("a lesson has no prompt: nothing would predict its first token; give it one")
    return Row(
        ids=np.array(lesson.prompt + lesson.completion, np.int32),
        trained=np.arange(len(lesson.prompt) + count) >= len(lesson.prompt),
        # No engine drew it.
        behaviour=np.full(count, np.nan, np.float32),
        advantages=np.ones(count, np.float32),
        weights=np.full(count, 1.0 / total, np.float64),
        units=np.full(count, unit, np.int32),
    )


def _batches(
    conversations: Sequence[Conversation], settings: FineTuneSettings, done: int
) -> Iterator[tuple[int, list[Conversation]]]:
    """The steps that are left: the order of each epoch is a function of the seed and its number."""
    step = 0
    for epoch in range(settings.epochs):
        order = np.random.default_rng((settings.seed, epoch)).permutation(len(conversations))
        for begin in range(0, len(order), settings.batch):
            step += 1
            if step > done:
                yield step, [conversations[number] for number in order[begin : begin + settings.batch]]


def _position(found: Mapping[str, object] | None) -> int:
    step = (found or {}).get("step", 0)
    assert isinstance(step, int), "as it was saved"
    return step
