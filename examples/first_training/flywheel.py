"""The start of `configs/supervisor/flywheel.yaml`: a corpus, seeds, and a planner fine-tuned on a teacher's demonstrations.

python examples/first_training/flywheel.py [--seed N] [--out DIR] [key=value ...]
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import anyio
import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentflow.errors import AgentFlowError
from agentflow.trace import Task
from examples.first_training.family import AMOUNTS, Family, make_family
from examples.first_training.plan import HERE, TrainingPlan, read_plan
from examples.first_training.play import play
from examples.first_training.teacher import SEARCH, Teacher, TeacherStep
from examples.library.tiny import make_model

__all__ = ["prepare_flywheel", "seeds_of"]

SETTINGS = HERE / "flywheel.yaml"


def seeds_of(family: Family) -> list[str]:
    """Return the seeds of the rounds: the ships of clusters that the teacher does not show.

    Example::

        assert len(seeds_of(make_family(train=2, choose=0, held_out=3))) == 3
    """
    return [_topic(cluster.ship) for cluster in family.clusters if cluster.part == "held_out"]


async def prepare_flywheel(
    plan: TrainingPlan, folder: Path, seed: int = 0, *, say: Callable[[str], None] = print
) -> Path:
    """Write corpus and seeds, and fine-tune the planner on the teacher's steps; return its folder.

    See docs/supervisor.md.
    """
    from examples.first_training.tuning import fine_tuned_checkpoints  # imports torch

    clusters = plan.clusters
    family = make_family(seed, train=clusters.train, choose=clusters.choose, held_out=clusters.held_out)
    corpus = family.write(folder)
    lines = [msgspec.json.encode({"content": content}) for content in seeds_of(family)]
    (folder / "seeds.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    shown = await _demonstrations(plan, family, corpus, seed)
    say(f"the teacher showed {len(shown)} episodes")
    start = folder / "model"
    if not (start / "config.json").exists():
        texts = [document.text for document in family.documents()]
        steps = [text for episode in shown for text in _texts(episode)]
        make_model(start, [*texts, *steps], plan.model, seed, numbers=AMOUNTS)
    (policy,) = fine_tuned_checkpoints(start, folder / "policy", family, shown, plan, seed, say)
    return policy


async def _demonstrations(
    plan: TrainingPlan, family: Family, corpus: Path, seed: int
) -> list[list[TeacherStep]]:
    """Return the teacher's steps at questions and seeds about its clusters, by episode."""
    kinds = plan.fine_tuning.rounds.model_dump()
    tasks = [task for task in family.tasks("train") if kinds[task.metadata["kind"]]]
    topics = [_topic(cluster.ship) for cluster in family.clusters if cluster.part == "train"]
    tasks += [Task(index=index, id=f"topic-{index}", question=topic) for index, topic in enumerate(topics)]
    teacher = Teacher(plan.teacher, seed)
    await play(teacher, tasks, corpus, max_turns=plan.max_turns, at_once=plan.at_once, tools=[SEARCH])
    # Episodes ran concurrently; steps of one episode have the same question.
    shown = sorted(teacher.shown, key=lambda step: (step.episode, len(step.messages)))
    return [list(episode) for _, episode in groupby(shown, key=lambda step: step.episode)]


def _topic(ship: str) -> str:
    return f"Explore the home port of the {ship} and its mayor."


def _texts(episode: Sequence[TeacherStep]) -> list[str]:
    return [*(step.answer for step in episode), *(message["content"] for message in episode[-1].messages)]


def main() -> int:
    """Prepare it; a folder that is complete is left as it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    parser.add_argument("--out", type=Path, default=Path("flywheel_start"), help="output folder")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that override the file")
    arguments = parser.parse_args()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {line}", flush=True)

    async def work() -> None:
        plan = read_plan(SETTINGS, arguments.overrides)
        policy = await prepare_flywheel(plan, arguments.out, arguments.seed, say=say)
        say(f"the planner is in {policy}")

    try:
        anyio.run(work)
    except AgentFlowError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
