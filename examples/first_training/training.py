"""The first training, from nothing to an improved planner. Finished stages are skipped."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from pydantic import SecretStr

from agentflow.learner import atrain
from agentflow.models import Accounts, Model, ModelSettings, make_model
from agentflow.serving import ModelServer, ServingSettings, Weights
from agentflow.trace import Task
from examples.first_training.family import AMOUNTS, Family, make_family
from examples.first_training.plan import TrainingPlan
from examples.first_training.play import Seeded, TaskOutcome, play
from examples.first_training.teacher import CODE, SEARCH, Guesser, Teacher, TeacherStep
from examples.library.tiny import make_model as make_tiny_model

__all__ = ["LONGEST", "PlannerResults", "first_training"]

LONGEST = 48
"""Maximum number of tokens of a step; the right ones need half of it."""

Say = Callable[[str], None]


class PlannerResults(Struct, frozen=True, kw_only=True):
    """Results of a planner on tasks."""

    planner: str
    """Name of the planner."""
    outcomes: list[TaskOutcome]
    """TaskOutcome of each task."""

    @property
    def success(self) -> float:
        """Fraction of tasks answered exactly right."""
        return sum(one.right for one in self.outcomes) / len(self.outcomes)

    @property
    def error_rate(self) -> float:
        """Fraction of steps that were invalid, named no tool, or led to a failed call."""
        return sum(one.errors for one in self.outcomes) / max(1, sum(one.steps for one in self.outcomes))


class _Site(NamedTuple):
    """Folders and tools of a training."""

    plan: TrainingPlan
    folder: Path
    seed: int
    family: Family
    corpus: Path
    say: Say

    def tasks(self, part: Any) -> list[Task]:  # noqa: ANN401 - checked by the family
        return self.family.tasks(part)


async def first_training(
    plan: TrainingPlan, folder: Path, seed: int = 0, *, say: Say = print
) -> dict[str, PlannerResults]:
    """Run all stages, or resume them in the same folder; return the results of every planner on the held-out tasks.

    :raises ConfigurationError: one line, if something is missing.
    :raises RunStopped: if it ended early.
    """
    clusters = plan.clusters
    family = make_family(seed, train=clusters.train, choose=clusters.choose, held_out=clusters.held_out)
    corpus = family.write(folder / "family")
    site = _Site(plan, folder, seed, family, corpus, say)
    judged = {
        "constant": _constant(site),
        "guesser": await _judge(site, "guesser", "held_out", Guesser(seed)),
        "teacher": await _judge(site, "teacher", "held_out", Teacher(plan.teacher, seed)),
    }
    trained = ["fine_tuned", "flow", *plan.variants, *(["single"] if plan.single else [])]
    finished = {name: known for name in trained if (known := _known(site, f"{name}-held_out")) is not None}
    if len(finished) == len(trained):
        return {**judged, **finished}
    checkpoints = await _fine_tuned(site, await _demonstrations(site))
    async with _served(site, checkpoints[-1]) as server:
        best = await _best(site, server, checkpoints)
        judged["fine_tuned"] = await _judged(site, server, "fine_tuned", "held_out", best)
        flow = await _trained(site, server, "flow", best, {})
        judged["flow"] = await _judged(site, server, "flow", "held_out", flow)
        for name, changes in [*plan.variants.items(), *([("single", _single(site))] if plan.single else [])]:
            variant = await _trained(site, server, name, best, changes)
            judged[name] = await _judged(site, server, name, "held_out", variant)
    return judged


def _constant(site: _Site) -> PlannerResults:
    """Return the results of always giving one answer: the most frequent right one among the evaluated tasks."""
    tasks = site.tasks("held_out")
    answers = [task.references[0] for task in tasks]
    most = max(answers, key=answers.count)
    outcomes = [
        TaskOutcome(
            task=task.id,
            kind=task.metadata["kind"],
            right=most in task.references,
            answer=most,
            steps=0,
            errors=0,
        )
        for task in tasks
    ]
    return _kept(site, "constant-held_out", PlannerResults(planner="constant", outcomes=outcomes))


async def _demonstrations(site: _Site) -> list[list[TeacherStep]]:
    """Return the teacher's steps on the training tasks, by episode."""
    path = site.folder / "demonstrations.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=list[list[TeacherStep]])
    found: list[list[TeacherStep]] = []
    rounds = site.plan.fine_tuning.rounds.model_dump()
    for number in range(max(rounds.values())):
        teacher = Teacher(site.plan.teacher, site.seed * 1000 + number)
        tasks = [task for task in site.tasks("train") if rounds[task.metadata["kind"]] > number]
        await play(teacher, tasks, site.corpus, max_turns=site.plan.max_turns, at_once=site.plan.at_once)
        # Episodes ran concurrently; steps of one episode have the same question.
        shown = sorted(teacher.shown, key=lambda one: (one.episode, len(one.messages)))
        found += [list(episode) for _, episode in groupby(shown, key=lambda one: one.episode)]
    site.say(f"the teacher showed {len(found)} episodes")
    _write(path, found)
    return found


async def _fine_tuned(site: _Site, shown: Sequence[Sequence[TeacherStep]]) -> list[Path]:
    """Return the checkpoints of a model fine-tuned on the steps, the last one last."""
    from examples.first_training.tuning import fine_tuned_checkpoints  # imports torch

    start = site.folder / "model"
    if not (start / "config.json").exists():
        texts = [document.text for document in site.family.documents()]
        answers = [one.answer for episode in shown for one in episode]
        read = [message["content"] for episode in shown for message in episode[-1].messages]
        make_tiny_model(start, [*texts, *answers, *read], site.plan.model, site.seed, numbers=AMOUNTS)
    return fine_tuned_checkpoints(
        start, site.folder / "fine_tuned", site.family, shown, site.plan, site.seed, site.say
    )


@asynccontextmanager
async def _served(site: _Site, model: Path) -> AsyncGenerator[ModelServer]:
    engine = site.plan.engine
    given: dict[str, Any] = {
        "model": str(model),
        "name": "policy",
        "python": site.plan.python,
        "dtype": site.plan.dtype,
        "max_model_len": 1024,
        "trains": True,
        "log": site.folder / "engine.log",
        **engine,
        "options": {"generation-config": "vllm", **engine.get("options", {})},
    }
    async with ModelServer(ServingSettings(**given)) as server:
        yield server


async def _best(site: _Site, server: ModelServer, checkpoints: Sequence[Path]) -> Path:
    """Return the checkpoint that does best on the tasks for choosing."""
    scores = [
        (await _judged(site, server, f"checkpoint-{path.name}", "choose", path)).success
        for path in checkpoints
    ]
    place = scores.index(max(scores))
    site.say(f"fine-tuned: {', '.join(f'{score:.0%}' for score in scores)} of the tasks for choosing")
    return checkpoints[place]


async def _judged(site: _Site, server: ModelServer, name: str, part: str, folder: Path) -> PlannerResults:
    """Return the results of a model on the tasks of a part."""
    if (known := _known(site, f"{name}-{part}")) is not None:
        return known
    await server.publish(Weights(folder=folder, version=f"{name}-{part}"))
    settings = ModelSettings(
        name=server.model,
        base_url=server.url,
        api_key=SecretStr(server.key),
        temperature=site.plan.temperature,
        max_tokens=LONGEST,
        structured="known",
        max_attempts=1,
    )
    async with make_model(settings, Accounts()) as model:
        return await _judge(site, name, part, Seeded(model, site.seed))


async def _judge(site: _Site, name: str, part: str, planner: Model) -> PlannerResults:
    if (known := _known(site, f"{name}-{part}")) is not None:
        return known
    plan = site.plan
    outcomes = await play(
        planner, site.tasks(part), site.corpus, max_turns=plan.max_turns, at_once=plan.at_once
    )
    judged = PlannerResults(planner=name, outcomes=outcomes)
    site.say(f"{name}: {judged.success:.1%} right, {judged.error_rate:.1%} of steps failed ({part})")
    return _kept(site, f"{name}-{part}", judged)


async def _trained(site: _Site, server: ModelServer, name: str, start: Path, changes: dict[str, Any]) -> Path:
    """Return the policy after Flow-GRPO training."""
    plan, folder = site.plan, site.folder / name
    done = folder / "policy"
    if (done / "config.json").exists():
        return done
    flow = {section: {**dict(values)} for section, values in plan.flow.items()}
    sections: dict[str, Any] = {
        **flow,
        "episodes": {
            "available_tools": [SEARCH, CODE],
            "resource_types": ["rag", "code"],
            "resource_init_configs": {"rag": {"index_path": str(site.corpus), "top_k": 1}},
            "short_prompts": True,
            "structured": "known",
            "max_attempts": 1,
            "max_tokens": LONGEST,
            "temperature": plan.temperature,
            "max_turns": plan.max_turns,
            "max_workers": plan.at_once,
            **flow.get("episodes", {}),
        },
        "policy": {"model": str(start), "dtype": plan.dtype, "seed": site.seed, **flow.get("policy", {})},
        "engine": {"base_url": server.url, "api_key": server.key, "served_model_name": server.model},
    }
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    # The tasks are set by that keyword, so the rest of the section is given as overrides.
    validation = sections.pop("validation", {})
    outcome = await atrain(
        tasks=site.tasks("train"),
        validation=site.tasks("choose"),
        overrides=[
            f"validation.{key}={value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
            for key, value in validation.items()
        ],
        output_dir=str(folder),
        seed=site.seed,
        **sections,
    )
    return Path(outcome["policy"])


def _single(site: _Site) -> dict[str, dict[str, Any]]:
    """Train on first steps only, with as many planner calls as Flow-GRPO."""
    schedule = site.plan.flow.get("schedule", {})
    judged = _known(site, "fine_tuned-held_out")
    calls = 2.0 if judged is None else sum(one.steps for one in judged.outcomes) / len(judged.outcomes)
    episodes = round(schedule.get("episodes_per_task", 8) * calls)
    return {"episodes": {"max_turns": 1}, "schedule": {**schedule, "episodes_per_task": episodes}}


def _known(site: _Site, name: str) -> PlannerResults | None:
    path = site.folder / "judged" / f"{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=PlannerResults) if path.exists() else None


def _kept(site: _Site, name: str, judged: PlannerResults) -> PlannerResults:
    _write(site.folder / "judged" / f"{name}.json", judged)
    return judged


def _write(path: Path, value: object) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(msgspec.json.encode(value))
    draft.replace(path)
