# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers is partially typed)
"""From a scripted teacher to a fine-tuned model."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from agentflow.trajectory import Task
from examples.library.example import Example, Messages
from examples.library.plan import ExamplePlan

__all__ = ["Demonstration", "demonstrate", "fine_tune_on", "make_and_fine_tune"]

_REPORTS = 100


class Demonstration(NamedTuple):
    """An episode of the teacher."""

    steps: list[list[dict[str, str]]]
    """Conversations, each ending with an answer of the teacher."""
    reward: float
    """Reward of the episode."""


async def demonstrate(example: Example, tasks: Sequence[Task], seed: int) -> list[Demonstration]:
    """Let the teacher play; the same seed gives the same episodes."""
    return [await _episode(example, task, Random(f"{seed} {number}")) for number, task in enumerate(tasks)]


async def _episode(example: Example, task: Task, random: Random) -> Demonstration:
    steps: list[list[dict[str, str]]] = []

    async def ask(messages: Messages) -> str:
        answer = example.teach(messages, random)
        steps.append([*messages, {"role": "assistant", "content": answer}])
        return answer

    return Demonstration(steps, await example.play(task, ask))


def make_and_fine_tune(
    example: Example,
    plan: ExamplePlan,
    shown: Sequence[Demonstration],
    tuned: Path,
    seed: int,
    say: Callable[[str], None],
) -> Path:
    """Make a tiny model, fine-tune it on the teacher's answers, and write it to a folder; return the folder."""
    # These import torch.
    from transformers import AutoTokenizer

    from agentflow.learner.local import (
        FineTuneSettings,
        LocalBackbone,
        OptimizerSettings,
        PolicySettings,
        fine_tune,
    )
    from examples.library.tiny import make_model

    texts = [message["content"] for each in shown for step in each.steps for message in step]
    start = make_model(tuned.with_name("model"), texts, plan.model, seed, numbers=example.words)
    tokenizer = AutoTokenizer.from_pretrained(str(start))
    teaching = plan.teaching
    settings = FineTuneSettings(epochs=teaching.epochs, batch_size=teaching.batch, seed=seed)
    total = settings.steps(len(shown))
    policy = PolicySettings(model=str(start), dtype="float32", seed=seed, threads=plan.threads)
    optimizer = OptimizerSettings(
        learning_rate=teaching.rate,
        betas=(0.9, 0.98),
        warmup_steps=min(30, total),
        lr_scheduler_type="linear",
        decay_steps=total,
        min_lr_ratio=0.05,
    )
    backbone = LocalBackbone(policy, optimizer)

    def watch(step: int, figures: dict[str, float]) -> None:
        if step % _REPORTS == 0:
            say(f"fine-tuning: step {step} of {total}, loss {figures['step/loss']:.3f}")

    try:
        fine_tune(backbone, [_lessons(tokenizer, each) for each in shown], settings, watch=watch)
        return backbone.export(tuned)
    finally:
        backbone.close()


def fine_tune_on(
    chats: Sequence[Messages], policy: Mapping[str, object], tuned: Path, learning_rate: float
) -> Path:
    """Fine-tune a model on the last message of each chat, eight at a time, each once; return the folder it is written to."""
    # These import torch.
    from transformers import AutoTokenizer

    from agentflow.learner.local import (
        FineTuneSettings,
        LocalBackbone,
        OptimizerSettings,
        PolicySettings,
        fine_tune,
        lessons_of,
    )

    settings = PolicySettings.model_validate(policy)
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    # The examples in the prompt are context.
    conversations = [lessons_of(chat, tokenizer)[-1:] for chat in chats]
    backbone = LocalBackbone(settings, OptimizerSettings(learning_rate=learning_rate, weight_decay=0.0))
    try:
        fine_tune(backbone, conversations, FineTuneSettings(epochs=1, batch_size=8, seed=settings.seed))
        return backbone.export(tuned)
    finally:
        backbone.close()


def _lessons(tokenizer: Any, shown: Demonstration) -> list[Any]:  # noqa: ANN401 - any of transformers
    """Return a lesson for each answer of an episode."""
    from agentflow.learner.local import lessons_of

    return [lessons_of(step, tokenizer)[-1] for step in shown.steps]
