# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers is partially typed)
"""From a scripted teacher to a fine-tuned model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from agentflow.trace import Task
from examples.library.example import Example, Messages
from examples.library.plan import ExamplePlan, model_folder

if TYPE_CHECKING:
    from agentflow.learner.local import FineTuneSettings, OptimizerSettings, PolicySettings

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
    """Fine-tune the base model, or a new tiny one, on the teacher's answers, write it to a folder, and return the folder."""
    # This imports torch.
    from agentflow.learner.local import FineTuneSettings, OptimizerSettings, PolicySettings
    from examples.library.tiny import make_model

    if plan.base_model is None:
        texts = [message["content"] for each in shown for step in each.steps for message in step]
        start = make_model(tuned.with_name("model"), texts, plan.model, seed, numbers=example.words)
    else:
        start = model_folder(plan.base_model)
    teaching = plan.teaching
    settings = FineTuneSettings(epochs=teaching.epochs, batch_size=teaching.batch, seed=seed)
    total = settings.steps(len(shown))
    policy = PolicySettings(model=str(start), dtype="float32", seed=seed, threads=plan.threads)
    optimizer = OptimizerSettings(
        learning_rate=teaching.rate,
        betas=(0.9, 0.98),
        warmup_steps=min(30, total // 10),
        lr_scheduler_type="linear",
        decay_steps=total,
        min_lr_ratio=0.05,
    )

    def watch(step: int, figures: dict[str, float]) -> None:
        if step % _REPORTS == 0:
            say(f"fine-tuning: step {step} of {total}, loss {figures['step/loss']:.3f}")

    return fine_tune_on([each.steps for each in shown], policy, optimizer, settings, tuned, watch)


def fine_tune_on(
    episodes: Sequence[Sequence[Messages]],
    policy: "PolicySettings",
    optimizer: "OptimizerSettings",
    settings: "FineTuneSettings",
    tuned: Path,
    watch: Callable[[int, dict[str, float]], None] | None = None,
) -> Path:
    """Fine-tune a model on the last message of each conversation, and write it to a folder; return the folder."""
    # These import torch.
    from transformers import AutoTokenizer

    from agentflow.learner.local import LocalBackbone, fine_tune, lessons_of

    tokenizer = AutoTokenizer.from_pretrained(policy.model)
    lessons = [[lessons_of(messages, tokenizer)[-1] for messages in episode] for episode in episodes]
    backbone = LocalBackbone(policy, optimizer)
    try:
        fine_tune(backbone, lessons, settings, watch=watch)
        return backbone.export(tuned)
    finally:
        backbone.close()
