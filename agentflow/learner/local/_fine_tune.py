"""Supervised fine-tuning with the optimizer steps of a backbone."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Thread
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from pydantic import Field

from agentflow._typeguards import is_list, is_mapping
from agentflow.errors import ConfigurationError, error_line
from agentflow.learner._backbone import Backbone, Figures
from agentflow.learner._checkpoints import Checkpoints
from agentflow.learner.losses import LossSettings
from agentflow.learner.packing import Row
from agentflow.settings import Section
from agentflow.text import escape_special_tokens

_DATA: Final = ("tools", "documents")
"""Arguments of chat templates that hold data."""
TEMPLATE_SECONDS: Final = 60.0
"""Time limit for rendering one prompt by a chat template."""


class Lesson(NamedTuple):
    """One supervised example: a prompt and its completion."""

    prompt: tuple[int, ...]
    """Prompt tokens; not trained."""
    completion: tuple[int, ...]
    """Completion tokens; trained."""


Conversation: TypeAlias = Sequence[Lesson]
"""Lessons of one conversation: they stay in one step, where their common prefix is computed once."""
Watch: TypeAlias = Callable[[int, Figures], bool | None]
"""Receives the number of steps made and the figures of the last one; returning `True` stops."""


class FineTuneSettings(Section):
    """Length and batch size of fine-tuning."""

    renamed: ClassVar[dict[str, str]] = {
        "batch": "batch_size",
        "evaluate_every": "eval_steps",
        "save_every": "save_steps",
    }

    epochs: int = Field(default=3, ge=1)
    """Passes over the data."""
    batch_size: int = Field(default=32, ge=1)
    """Conversations per step."""
    eval_steps: int = Field(default=0, ge=0)
    """Steps between evaluations on the held-out conversations; 0: only at the end."""
    save_steps: int = Field(default=0, ge=0)
    """Steps between checkpoints, if a folder is given; 0: none."""
    seed: int = 0
    """Seed of the order of conversations."""

    def steps(self, conversations: int) -> int:
        """Return the number of steps for that many conversations, for the learning-rate schedule."""
        return self.epochs * -(-conversations // self.batch_size)


class FineTuned(NamedTuple):
    """Result of fine-tuning."""

    steps: int
    """Total number of steps made."""
    losses: list[float]
    """Mean token loss of each step made by this call."""
    held_out: list[tuple[int, float]]
    """Number of steps, and the held-out loss after them."""


def fine_tune(
    backbone: Backbone,
    conversations: Sequence[Conversation],
    settings: FineTuneSettings | None = None,
    *,
    held_out: Sequence[Conversation] = (),
    checkpoints: Checkpoints | None = None,
    watch: Watch | None = None,
) -> FineTuned:
    """Fine-tune on conversations. The same call resumes from the last checkpoint, with bit-identical results.

    See docs/backbones.md.

    :param held_out: conversations for evaluation only.
    :param checkpoints: folder of checkpoints.
    :param watch: called after every step; may stop.
    :raises ConfigurationError: if there is nothing to train on.
    :raises CheckpointError: if a checkpoint can't be written.
    """
    settings = settings or FineTuneSettings()
    if not any(lesson.completion for conversation in conversations for lesson in conversation):
        raise ConfigurationError("conversations: there are no completions to train on; add some")
    loss = LossSettings(name="cross_entropy")
    position = (checkpoints.load(backbone) if checkpoints else None) or {}
    done = msgspec.convert(position.get("step", 0), int)
    losses, measured = list[float](), list[tuple[int, float]]()
    total = settings.steps(len(conversations))
    for step, chosen in _batches(conversations, settings, done):
        figures = backbone.step(lesson_rows(chosen), loss)
        losses.append(figures["step/loss"])
        if held_out and settings.eval_steps and step % settings.eval_steps == 0:
            measured.append((step, mean_loss(backbone, held_out)))
            figures["validation/loss"] = measured[-1][1]
        if checkpoints and settings.save_steps and step % settings.save_steps == 0:
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
    """Return lessons as rows of one step, whose loss is the mean over all trained tokens. See docs/backbones.md."""
    lessons = [lesson for conversation in conversations for lesson in conversation if lesson.completion]
    total = sum(len(lesson.completion) for lesson in lessons)
    return [_row(unit, lesson, total) for unit, lesson in enumerate(lessons)]


def mean_loss(backbone: Backbone, conversations: Sequence[Conversation]) -> float:
    """Return the mean loss over all completion tokens. See docs/backbones.md."""
    values = np.concatenate(backbone.log_probs(lesson_rows(conversations)))
    return float(-values.astype(np.float64).mean())


def lessons_of(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Any,  # noqa: ANN401 - any of transformers
    *,
    role: str = "assistant",
    **template: Any,  # noqa: ANN401 - whatever the chat template takes, such as tools
) -> list[Lesson]:
    """Return the lessons of a conversation: one for each message of that role, with everything before it as the prompt.

    Prompts are rendered exactly as at inference time; special tokens in the messages are escaped. A message with
    `"trainable": False` is context only. See docs/backbones.md.

    :raises ConfigurationError: if the chat template changes the prompt once the message is added.
    """
    lessons = list[Lesson]()
    own = _special_tokens(tokenizer)
    context = [message.get("trainable") is False for message in messages]
    messages = [
        _escaped({name: entry for name, entry in message.items() if name != "trainable"}, own)
        for message in messages
    ]
    template |= {name: _escaped(template[name], own) for name in _DATA if name in template}
    for place, message in enumerate(messages):
        if message["role"] != role or context[place]:
            continue
        prompt = _text(tokenizer, messages[:place], add_generation_prompt=True, **template)
        whole = _text(tokenizer, messages[: place + 1], **template)
        if not whole.startswith(prompt):
            raise ConfigurationError(
                f"chat template: message {place} does not continue the prompt before it; use another template"
            )
        lessons.append(
            Lesson(_tokens(tokenizer, prompt), _tokens(tokenizer, whole[len(prompt) :].rstrip("\n")))
        )
    return lessons


def _special_tokens(tokenizer: Any) -> re.Pattern[str]:  # noqa: ANN401
    """Return the pattern of the tokenizer's own special tokens that a space can separate."""
    added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    names = sorted({*tokenizer.all_special_tokens, *added}, key=len, reverse=True)
    return re.compile("|".join(re.escape(name) for name in names if len(name) > 1) or "(?!)")


def _escaped(value: Any, special: re.Pattern[str]) -> Any:  # noqa: ANN401 - JSON
    """Return a value in which no text is a special token, except the role of a message, which is part of the template."""
    if isinstance(value, str):
        return special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", escape_special_tokens(value))
    if is_list(value):
        return [_escaped(member, special) for member in value]
    if is_mapping(value):
        return {key: member if key == "role" else _escaped(member, special) for key, member in value.items()}
    return value


def _text(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **template: Any) -> str:  # noqa: ANN401
    """Render messages. The template is a program of the model's author: it can loop, or fail in any way."""
    rendered: list[str] = []
    failed: list[Exception] = []

    def render() -> None:
        try:
            shown = [dict(message) for message in messages]
            rendered.append(tokenizer.apply_chat_template(shown, tokenize=False, **template))
        except Exception as error:  # boundary: the library passes on what a template raises
            failed.append(error)

    thread = Thread(target=render, daemon=True)
    thread.start()
    thread.join(TEMPLATE_SECONDS)
    if failed:
        raise ConfigurationError(f"chat template: {error_line(failed[0])}") from failed[0]
    if not rendered:
        raise ConfigurationError(
            f"chat template: not rendered within {TEMPLATE_SECONDS:g} s; use another template"
        )
    return rendered[0]


def _tokens(tokenizer: Any, text: str) -> tuple[int, ...]:  # noqa: ANN401
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _row(unit: int, lesson: Lesson, total: int) -> Row:
    count = len(lesson.completion)
    if not lesson.prompt:
        raise ConfigurationError("a lesson has no prompt to predict its first token; add one")
    return Row(
        ids=np.array(lesson.prompt + lesson.completion, np.int32),
        trained=np.arange(len(lesson.prompt) + count) >= len(lesson.prompt),
        # No engine sampled it.
        behaviour=np.full(count, np.nan, np.float32),
        advantages=np.ones(count, np.float32),
        weights=np.full(count, 1.0 / total, np.float64),
        units=np.full(count, unit, np.int32),
    )


def _batches(
    conversations: Sequence[Conversation], settings: FineTuneSettings, done: int
) -> Iterator[tuple[int, list[Conversation]]]:
    """Yield the remaining steps: the order of each epoch depends on the seed and the epoch's number."""
    step = 0
    for epoch in range(settings.epochs):
        order = np.random.default_rng((settings.seed, epoch)).permutation(len(conversations))
        for begin in range(0, len(order), settings.batch_size):
            step += 1
            if step > done:
                yield step, [conversations[number] for number in order[begin : begin + settings.batch_size]]
