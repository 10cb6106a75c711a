"""An example from nothing to an improved agent: teacher, fine-tuning, tuning. Finished stages are skipped."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import anyio
import anyio.to_thread
import msgspec

from agentflow._private_files import make_private_folder, replace_file
from agentflow.errors import ConfigurationError
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.serving import ModelServer, ServingSettings, Weights
from agentflow.trace import Task
from agentflow.tuner import atune
from examples.library.clients import ServedPolicy
from examples.library.example import Example, reward_of
from examples.library.plan import ExamplePlan
from examples.library.teaching import demonstrate, make_and_fine_tune

__all__ = ["Played", "run_example"]

T = TypeVar("T")

Say = Callable[[str], None]


class Played(NamedTuple):
    """Rewards on the held-out tasks, in their order."""

    teacher: list[float]
    """Of the teacher."""
    fine_tuned: list[float]
    """Of the model that imitates it."""
    tuned: list[float]
    """Of the model after tuning."""


async def run_example(
    example: Example, plan: ExamplePlan, folder: Path, seed: int = 0, *, say: Say = print
) -> Played:
    """Run all stages, or resume them in the same folder.

    :raises ConfigurationError: one line, if something is missing.
    :raises RunStopped: if it ended early.
    """
    _claim(folder, example.name, seed)
    kept = folder / "played.json"
    if (known := _stored(kept, Played)) is not None:
        return known
    held_out = example.make_tasks("held_out", plan.held_out, seed)
    teacher = [each.reward for each in await demonstrate(example, held_out, seed)]
    say(f"the teacher: {fmean(teacher):.1%} of {len(held_out)} held-out tasks")
    start = await _taught(example, plan, folder, seed, say)
    async with AsyncExitStack() as stack:
        frozen = None
        if example.frozen:
            frozen = await stack.enter_async_context(_server(plan, start, "frozen", folder))
        server = await stack.enter_async_context(_server(plan, start, "policy", folder, trains=True))
        course = _Course(example, plan, folder, seed, server, frozen)
        before = await course.evaluated("fine_tuned", start, held_out)
        say(f"fine-tuned: {fmean(before):.1%}")
        tuned = await course.tuned(start)
        after = await course.evaluated("tuned", tuned, held_out)
        say(f"tuned: {fmean(after):.1%}")
    played = Played(teacher, before, after)
    replace_file(kept, msgspec.json.encode(played))
    return played


def _claim(folder: Path, name: str, seed: int) -> None:
    """Refuse the folder of another run.

    :raises ConfigurationError: if it belongs to another example or seed, or can't be written.
    """
    file, own = folder / "run.json", [name, seed]
    known = _stored(file, list[str | int])
    if known not in (None, own):
        raise ConfigurationError(f"{folder}: it has the run {known}, not {own}; choose another --out")
    try:
        make_private_folder(folder)
        replace_file(file, msgspec.json.encode(own))
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: can't be written: {error.strerror}; choose another --out"
        ) from error


def _stored(path: Path, kind: type[T]) -> T | None:
    """Return what an earlier run has stored, if anything.

    :raises ConfigurationError: if it can't be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"{path}: can't be read: {error}; remove it") from error


async def _taught(example: Example, plan: ExamplePlan, folder: Path, seed: int, say: Say) -> Path:
    """Return the folder of the fine-tuned model."""
    tuned = folder / "fine_tuned"
    if (tuned / "config.json").exists():
        return tuned
    # Other tasks than those of the tuning, of the same part.
    tasks = example.make_tasks("train", plan.teaching.episodes, seed + 1000)
    shown = await demonstrate(example, tasks, seed)
    return await anyio.to_thread.run_sync(make_and_fine_tune, example, plan, shown, tuned, seed, say)


def _server(plan: ExamplePlan, model: Path, name: str, folder: Path, *, trains: bool = False) -> ModelServer:
    return ModelServer(
        ServingSettings(
            model=str(model),
            name=name,
            python=plan.python,
            device="cpu",
            dtype="float32",
            max_model_len=1024,
            trains=trains,
            log=folder / f"{name}.log",
            options={"generation-config": "vllm"},
        )
    )


class _Course:
    """Evaluations and the tuning with one served model."""

    def __init__(
        self,
        example: Example,
        plan: ExamplePlan,
        folder: Path,
        seed: int,
        server: ModelServer,
        frozen: ModelServer | None,
    ) -> None:
        self._example = example
        self._plan = plan
        self._folder = folder
        self._seed = seed
        self._server = server
        self._frozen = frozen

    async def evaluated(self, name: str, model: Path, tasks: Sequence[Task]) -> list[float]:
        """Return the reward of each task, played once by a model."""
        kept = self._folder / f"{name}.json"
        if (known := _stored(kept, list[float])) is not None:
            return known
        await self._server.publish(Weights(folder=model, version=name))
        rewards = [0.0] * len(tasks)
        slots = anyio.Semaphore(self._plan.at_once)
        async with AsyncExitStack() as stack:
            sandbox = None
            if self._example.backends:
                settings = SandboxSettings(backends={each: {} for each in self._example.backends})
                sandbox = await stack.enter_async_context(Sandbox(settings))

            async def one(number: int, task: Task) -> None:
                async with slots:
                    rewards[number] = await self._solved(task, sandbox)

            async with anyio.create_task_group() as group:
                for number, task in enumerate(tasks):
                    group.start_soon(one, number, task)
        replace_file(kept, msgspec.json.encode(rewards))
        return rewards

    async def _solved(self, task: Task, sandbox: Sandbox | None) -> float:
        policy = ServedPolicy(self._server, self._frozen, self._example.frozen)
        if sandbox is None:
            outcome = await self._example.solve(task, policy)
        else:
            async with await sandbox.fork() as own:
                outcome = await self._example.solve(task, policy, own)
        return reward_of(outcome, self._example.trained)

    async def tuned(self, start: Path) -> Path:
        """Return the folder of the tuned model."""
        example, plan = self._example, self._plan
        agents: dict[str, dict[str, Any]] = {name: {"trained": True} for name in example.trained}
        if self._frozen is not None:
            place = {"model_name": "frozen", "base_url": self._frozen.url, "api_key": self._frozen.key}
            agents |= dict.fromkeys(example.frozen, place)
        episodes: dict[str, Any] = {"temperature": plan.temperature, "max_workers": plan.at_once}
        if example.backends:
            episodes["resource_types"] = list(example.backends)
        server = self._server
        outcome = await atune(
            example.solve,
            example.make_tasks("train", plan.train, self._seed),
            agents=agents or None,
            output_dir=str(self._folder / "tuned"),
            seed=self._seed,
            policy={
                "model": str(start),
                "dtype": "float32",
                "seed": self._seed,
                "threads": plan.threads,
            },
            engine={"base_url": server.url, "api_key": server.key, "served_model_name": server.model},
            episodes=episodes,
            **plan.tune,
        )
        # backbone=debug trains nothing.
        return Path(outcome["policy"]) if outcome["policy"] else start
