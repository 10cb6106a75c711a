"""Train SmolLM2 on two cores: `python examples/real_model/run.py`."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[2]))

import anyio
import msgspec
from msgspec import Struct
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from agentflow._private_files import make_private_folder, replace_file
from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.learner.trackers import read_figures
from agentflow.scoring import confidence_interval
from agentflow.serving import ModelServer, ServingSettings, Weights
from agentflow.settings import Settings, load_settings
from agentflow.trace import Task
from agentflow.tuner import atune
from examples.library import ChatPolicy, chat
from examples.library.clients import ServedPolicy
from examples.library.plan import model_folder
from examples.library.teaching import fine_tune_on
from examples.real_model.tasks import make_tasks, messages_of, reward_of

__all__ = ["RealModelPlan", "main", "solve"]

HERE = Path(__file__).parent


class RealModelPlan(Settings):
    """Settings of the example: `settings.yaml`."""

    model_config = SettingsConfigDict(env_prefix="EXAMPLE_")

    model: str = "smollm2"
    """Folder of a chat model, or the name of a known one, which is fetched."""
    tasks: list[str] = Field(default_factory=lambda: ["reverse", "json", "tool"])
    """Tasks to train on, one after the other, each from the original model; `read` is another."""
    transfer: Path | None = None
    """File with other tasks, one JSON object of `Task` a line, that are evaluated before and after `read`, too."""
    train: int = Field(default=512, ge=1)
    """Training tasks."""
    held_out: int = Field(default=200, ge=1)
    """Tasks for the evaluation before and after; none of their words occurs in the training."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the policy and of the engine; on a GPU, bfloat16 is quicker."""
    max_tokens: int = Field(default=24, ge=1)
    """Maximum number of tokens of an answer."""
    at_once: int = Field(default=64, ge=1)
    """Maximum number of concurrent episodes."""
    demonstrations: dict[str, int] = Field(default_factory=dict[str, int])
    """Number of training tasks by task whose right answers are shown first, by supervised fine-tuning; none if it is not named."""
    teaching_rate: float = Field(default=2e-5, gt=0)
    """Learning rate of the supervised fine-tuning."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the trainer; `None`: torch's default."""
    steps: int | None = Field(default=None, ge=1)
    """Number of training steps of each task, instead of that in `tune`."""
    python: Path | None = None
    """Python of vLLM's environment; `None`: that of `agentflow serve-model`."""
    tune: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Sections of `agentflow tune`: schedule, optimizer, loss."""
    by_task: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    """The same sections for one task, over those of `tune`."""


class Accuracy(Struct, frozen=True):
    """Share of right answers to the held-out tasks."""

    mean: float
    """Share."""
    low: float
    """Lower end of its 95% interval."""
    high: float
    """Upper end."""
    by_class: dict[str, float]
    """Share by class of the task; empty: it has none."""


class TaskFigures(Struct, frozen=True, kw_only=True):
    """Figures of one task."""

    task: str
    """Name of the task."""
    without_examples: Accuracy
    """The original model without examples in the prompt."""
    before: Accuracy
    """The original model."""
    fine_tuned: Accuracy | None
    """The model after supervised fine-tuning; `None`: no demonstrations."""
    after: Accuracy
    """The trained model."""
    transfer: tuple[Accuracy, Accuracy] | None = None
    """The tasks of `transfer`, before and after; `None`: there are none."""
    steps: int
    """Number of training steps."""
    seconds: float
    """Seconds of the training, with its updates of the engine, without evaluations."""
    curve: list[tuple[float, float]]
    """Seconds and mean reward of each step."""


class RealModelFigures(Struct, frozen=True, kw_only=True):
    """Figures of one seed."""

    model: str
    """The model."""
    seed: int
    """The seed."""
    engine_start_seconds: float
    """Seconds until the engine answered."""
    tasks: list[TaskFigures]
    """Figures of each task."""


async def solve(
    task: Task, policy: ChatPolicy, *, shots: int = 3, tokens: int = 24, temperature: float | None = None
) -> float:
    """Answer one task; return the reward. Any agent that calls a model could be here."""
    ask = chat(policy, tokens, temperature=temperature)
    return reward_of(await ask(messages_of(task, shots=shots)), task)


async def evaluate(
    server: ModelServer, tasks: Sequence[Task], plan: RealModelPlan, *, shots: int = 3
) -> Accuracy:
    """Answer each task once, greedily."""
    policy, slots = ServedPolicy(server), anyio.Semaphore(plan.at_once)
    rewards = [0.0] * len(tasks)

    async def answer(index: int, task: Task) -> None:
        async with slots:
            rewards[index] = await solve(task, policy, shots=shots, tokens=plan.max_tokens, temperature=0.0)

    async with anyio.create_task_group() as group:
        for index, task in enumerate(tasks):
            group.start_soon(answer, index, task)
    interval = confidence_interval(rewards)
    classes: dict[str, list[float]] = {}
    for task, reward in zip(tasks, rewards, strict=True):
        if "class" in task.metadata:
            classes.setdefault(str(task.metadata["class"]), []).append(reward)
    return Accuracy(
        fmean(rewards),
        interval.low,
        interval.high,
        {name: fmean(values) for name, values in sorted(classes.items())},
    )


async def run_task(
    kind: str, server: ModelServer, start: Path, plan: RealModelPlan, folder: Path, seed: int
) -> TaskFigures:
    """Evaluate the original model, train it, and evaluate it again. A finished training is not repeated."""
    held_out = make_tasks(kind, "held_out", plan.held_out, seed)
    others = read_tasks(plan.transfer) if plan.transfer is not None and kind == "read" else []
    await server.publish(Weights(folder=start, version="original"))
    without = await evaluate(server, held_out, plan, shots=0)
    before = await evaluate(server, held_out, plan)
    others_before = await evaluate(server, others, plan) if others else None
    print(f"{kind}: {_shown(before)} ({_shown(without)} without examples)", flush=True)

    fine_tuned = None
    if shown := make_tasks(kind, "train", plan.train, seed)[: plan.demonstrations.get(kind, 0)]:
        start = await anyio.to_thread.run_sync(teach, shown, start, folder / f"{kind}_fine_tuned", plan, seed)
        await server.publish(Weights(folder=start, version="fine-tuned"))
        fine_tuned = await evaluate(server, held_out, plan)
        print(f"{kind}: {_shown(fine_tuned)} after {len(shown)} demonstrations", flush=True)

    async def answer(task: Task, policy: ChatPolicy) -> float:
        return await solve(task, policy, tokens=plan.max_tokens)

    sections: dict[str, Any] = {**plan.tune, **plan.by_task.get(kind, {})}
    if plan.steps is not None:
        sections["schedule"] = {**sections.get("schedule", {}), "steps": plan.steps}
    outcome = await atune(
        answer,
        make_tasks(kind, "train", plan.train, seed),
        output_dir=str(folder / kind),
        seed=seed,
        policy={"model": str(start), "seed": seed, "threads": plan.threads, "dtype": plan.dtype},
        engine={"base_url": server.url, "api_key": server.key, "served_model_name": server.model},
        episodes={"temperature": 1.0, "max_workers": plan.at_once},
        **sections,
    )
    await server.publish(Weights(folder=Path(outcome["policy"]), version="trained"))
    after = await evaluate(server, held_out, plan)
    transfer = (others_before, await evaluate(server, others, plan)) if others_before is not None else None
    curve = _curve(folder / kind / "metrics.jsonl")
    print(f"{kind}: {_shown(after)} after {outcome['steps']} steps", flush=True)
    return TaskFigures(
        task=kind,
        without_examples=without,
        before=before,
        fine_tuned=fine_tuned,
        after=after,
        transfer=transfer,
        steps=int(outcome["steps"]),
        seconds=curve[-1][0] if curve else 0.0,
        curve=curve,
    )


def read_tasks(path: Path) -> list[Task]:
    """Return the tasks of a file.

    :raises ConfigurationError: one line, if there is no such file, or it has other lines.
    """
    try:
        return [msgspec.json.decode(line, type=Task) for line in path.read_bytes().splitlines()]
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(f"transfer: {path}: {error}") from None


def teach(shown: Sequence[Task], start: Path, tuned: Path, plan: RealModelPlan, seed: int) -> Path:
    """Fine-tune on the right answers, eight at a time, each once; return the folder of the model."""
    # This imports torch.
    from agentflow.learner.local import FineTuneSettings, OptimizerSettings, PolicySettings

    return fine_tune_on(
        [[[*messages_of(task), {"role": "assistant", "content": task.references[0]}]] for task in shown],
        PolicySettings(model=str(start), dtype=plan.dtype, seed=seed, threads=plan.threads),
        OptimizerSettings(learning_rate=plan.teaching_rate, weight_decay=0.0),
        FineTuneSettings(epochs=1, batch_size=8, seed=seed),
        tuned,
    )


async def run(plan: RealModelPlan, folder: Path, seed: int) -> RealModelFigures:
    """Run all tasks with one engine."""
    make_private_folder(folder)
    start = model_folder(plan.model)
    settings = ServingSettings(
        model=str(start),
        name="policy",
        python=plan.python,
        dtype=plan.dtype,
        max_model_len=4096,
        trains=True,
        log=folder / "engine.log",
        options={"generation-config": "vllm"},
    )
    began = time.monotonic()
    async with ModelServer(settings) as server:
        seconds = time.monotonic() - began
        print(f"the engine answers after {seconds:.0f} s", flush=True)
        tasks = [await run_task(kind, server, start, plan, folder, seed) for kind in plan.tasks]
    figures = RealModelFigures(model=plan.model, seed=seed, engine_start_seconds=seconds, tasks=tasks)
    replace_file(folder / "figures.json", msgspec.json.encode(figures))
    return figures


def table_of(figures: RealModelFigures) -> str:
    """Return a Markdown table."""
    stages = "without examples | before | fine-tuned | trained"
    lines = [f"| task | {stages} | steps | minutes |", "| --- |" + " --- |" * 6]
    for each in figures.tasks:
        shown = (
            "" if accuracy is None else _shown(accuracy)
            for accuracy in (each.without_examples, each.before, each.fine_tuned, each.after)
        )
        lines.append(f"| {each.task} | {' | '.join(shown)} | {each.steps} | {each.seconds / 60:.1f} |")
        if each.transfer is not None:
            before, after = map(_shown, each.transfer)
            lines.append(f"| {each.task}: other tasks | | {before} | | {after} | | |")
        lines += [
            f"| {each.task}: {name} | | {each.before.by_class[name]:.1%} | {_class_share(each.fine_tuned, name)} | {share:.1%} | | |"
            for name, share in each.after.by_class.items()
        ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; print its table, and its figures as one line of JSON."""
    parser = argparse.ArgumentParser(prog="examples/real_model/run.py")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    parser.add_argument("--out", type=Path, help="output folder")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings that override settings.yaml"
    )
    given = parser.parse_args(arguments)
    try:
        plan = load_settings(RealModelPlan, HERE / "settings.yaml", given.overrides)
        folder = given.out or Path("example_results", "real_model", str(given.seed))
        figures = anyio.run(run, plan, folder, given.seed)
    except AgentFlowError as error:
        print(error, file=sys.stderr)
        return 1
    print(table_of(figures))
    print(msgspec.json.encode(figures).decode())
    return 0


def _curve(metrics: Path) -> list[tuple[float, float]]:
    """Return seconds and mean reward of each step."""
    seconds, curve = 0.0, list[tuple[float, float]]()
    for line in read_figures(metrics):
        seconds += sum(line.get(f"seconds/{phase}") or 0.0 for phase in ("rollout", "step", "publish"))
        if (reward := line.get("reward/mean")) is not None:
            curve.append((seconds, reward))
    return curve


def _class_share(accuracy: Accuracy | None, name: str) -> str:
    return "" if accuracy is None else f"{accuracy.by_class[name]:.1%}"


def _shown(accuracy: Accuracy) -> str:
    return f"{accuracy.mean:.1%} [{accuracy.low:.1%} to {accuracy.high:.1%}]"


if __name__ == "__main__":
    sys.exit(main())
