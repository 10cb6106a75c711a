# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers is partially typed)
"""Supervised fine-tuning on the teacher's steps."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from agentflow.learner.local import (
    FineTuneSettings,
    Lesson,
    LocalBackbone,
    OptimizerSettings,
    PolicySettings,
    fine_tune,
    lessons_of,
)
from examples.first_training.family import Family
from examples.first_training.plan import TrainingPlan
from examples.first_training.teacher import TeacherStep

__all__ = ["fine_tuned_checkpoints"]

REPORTS = 50


def fine_tuned_checkpoints(
    start: Path,
    folder: Path,
    family: Family,
    shown: Sequence[Sequence[TeacherStep]],
    plan: TrainingPlan,
    seed: int,
    say: Callable[[str], None],
) -> list[Path]:
    """Fine-tune; return a folder of weights for each of the last epochs."""
    settings = plan.fine_tuning
    made = [folder / str(number) for number in range(1, settings.epochs + 1)][-settings.kept :]
    if all((each / "config.json").exists() for each in made):
        return made
    tokenizer = AutoTokenizer.from_pretrained(str(start))
    once = FineTuneSettings(epochs=1, batch_size=settings.batch).steps(len(shown))
    policy = PolicySettings(model=str(start), dtype=plan.dtype, seed=seed)
    optimizer = OptimizerSettings(
        learning_rate=settings.rate,
        betas=(0.9, 0.98),
        warmup_steps=min(30, once),
        lr_scheduler_type="linear",
        decay_steps=once * settings.epochs,
        min_lr_ratio=0.05,
    )
    backbone = LocalBackbone(policy, optimizer)

    def watch(step: int, figures: dict[str, float]) -> None:
        if step % REPORTS == 0:
            say(f"fine-tuning: step {step}, loss {figures['step/loss']:.3f}")

    for epoch in range(settings.epochs):
        rename = family.renaming(seed * 1000 + epoch)
        talks = [_lessons(tokenizer, episode, rename) for episode in shown]
        order = FineTuneSettings(epochs=1, batch_size=settings.batch, seed=seed * 1000 + epoch)
        fine_tune(backbone, talks, order, watch=watch)
        if (place := folder / str(epoch + 1)) in made:
            backbone.export(place)
    backbone.close()
    return made


def _lessons(
    tokenizer: Any,  # noqa: ANN401 - any of transformers
    episode: Sequence[TeacherStep],
    rename: Callable[[str], str],
) -> list[Lesson]:
    """Return the prompts and outputs of the teacher, step by step, with other names."""
    talks = [[*step.messages, {"role": "assistant", "content": step.answer}] for step in episode]
    return [
        lessons_of([{**each, "content": rename(each["content"])} for each in talk], tokenizer)[-1]
        for talk in talks
    ]
