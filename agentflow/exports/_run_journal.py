"""Trees and episodes from the journal of a run, which may be active, finished or killed."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from agentflow.exports._records import (
    ExportAnswer,
    ExportCall,
    ExportImage,
    ExportNode,
    ExportTree,
)
from agentflow.exports._run_files import json_lines
from agentflow.inspection import RunKind, RunReader, SeedSummary
from agentflow.inspection._reader import damage_reported
from agentflow.models import ToolSpec
from agentflow.rollouts import TaskResult
from agentflow.runs import image_file
from agentflow.synthesis import SURPLUS, TASKS, SeedResult, TrajectoryNode, pair_of_task
from agentflow.tasks import VerifiableTask
from agentflow.team import fixed_names
from agentflow.trace import Blob, Exchange, Task, Tree, Turn, Verdict, digest, node_id

_PAGE: Final = 200
_WHOLE: Final = 100.0
"""Highest score of a path."""

T = TypeVar("T", bound=Struct)


class _SurplusLine(Struct):
    qa_id: str


class _TaskLine(Struct):
    id: str


class RunJournal:
    """A synthesis or a rollout, read from its journal."""

    def __init__(self, reader: RunReader) -> None:
        """Read the kind of the run."""
        self._reader = reader
        summary = reader.summary()
        self._folder = Path(summary.folder) if summary.folder else None
        self._place = summary.folder or reader.name
        self.kind = summary.kind.value
        """`synthesis` or `rollout`."""
        self.key = digest(summary.settings, 16)
        """Key of the run, from which its ids derive."""

    def tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools of the run; empty: it kept no schemas."""
        return self._reader.tools()

    def image(self, image: ExportImage) -> bytes | None:
        """Return the bytes of an image; `None`: it is missing."""
        with suppress(KeyError):
            return self._reader.blob(image.hash)[0]
        return None

    def trees(self) -> Iterator[ExportTree]:
        """Yield the trees or episodes in the order of the run, the unfinished ones as far as they are known."""
        after = ""
        while page := self._seeds(after):
            for seed in page:
                with damage_reported(f"{self._place}: {seed.id}"):
                    exported = self._exported(seed)
                if exported is not None:
                    yield exported
            after = page[-1].id

    def _seeds(self, after: str) -> list[SeedSummary]:
        with damage_reported(self._place):
            return self._reader.seeds(after=after, limit=_PAGE)

    def _exported(self, seed: SeedSummary) -> ExportTree | None:
        """Return a tree or an episode; `None`: nothing of the tree is known."""
        result = self._reader.result(seed.id)
        if self.kind == RunKind.ROLLOUT:
            if isinstance(result, TaskResult):
                return _episode(result)
            return ExportTree(id=seed.id, group=seed.task, text=seed.text, is_episode=True)
        if (tree := self._reader.tree(seed.id)) is None:
            return None
        return self._tree(seed, tree, result if isinstance(result, SeedResult) else None)

    def _tree(self, seed: SeedSummary, tree: Tree, result: SeedResult | None) -> ExportTree:
        facts: dict[str, Any] = {
            "kwargs": tree.seed.kwargs,
            "stalled": tree.stalled,
            "duplicates": tree.duplicates,
        }
        tasks = () if result is None else result.tasks
        written = tuple(task for task in tasks if self._tasks is None or task.id in self._tasks)
        return ExportTree(
            id=tree.id,
            group=seed.id,
            text=tree.seed.content,
            nodes=tuple(
                msgspec.convert(msgspec.to_builtins(TrajectoryNode.of(tree, node)), ExportNode)
                for node in tree.nodes
            ),
            is_episode=False,
            answers=() if result is None else tuple(_answers(result, written, self._surplus)),
            tasks=written,
            surplus_tasks=tuple(task.id for task in tasks if task not in written),
            calls=tuple(
                ExportCall(
                    id=id,
                    role=voice.role,
                    tokens=tokens,
                    node=node_id(tree.id, _path_of(id)),
                )
                for id, tokens, voice in self._reader.planner_calls(seed.id)
            ),
            facts=facts,
        )

    @cached_property
    def _surplus(self) -> frozenset[str]:
        """Ids of accepted pairs that the files of the run leave out; empty as long as there are no files."""
        return frozenset(line.qa_id for line in self._lines(SURPLUS, _SurplusLine) or ())

    @cached_property
    def _tasks(self) -> frozenset[str] | None:
        """Ids of the tasks in the files of the run; `None` as long as there are no files: all."""
        lines = self._lines(TASKS, _TaskLine)
        return None if lines is None else frozenset(line.id for line in lines)

    def _lines(self, name: str, kind: type[T]) -> Iterator[T] | None:
        """Return the lines of a file of the run; `None`: there is none."""
        if self._folder is None or not (self._folder / name).exists():
            return None
        return json_lines(self._folder, name, kind)


def _path_of(key: str) -> tuple[int, ...]:
    """Return the position of the node in the key of a planner's call: `plan/PATH/NUMBER`."""
    path = key.split("/")[1]
    return () if path == "root" else tuple(map(int, path.split("-")))


def _answers(
    result: SeedResult, tasks: Sequence[VerifiableTask], surplus: Collection[str]
) -> Iterator[ExportAnswer]:
    """Yield the pairs of tasks and the accepted pairs: first those of the file."""
    for task in tasks:
        if (own := pair_of_task(task, result.trajectories)) is not None:
            yield ExportAnswer(
                id=own.id,
                question=own.question,
                answer=own.answer,
                nodes=own.path.nodes,
                score=own.path.score.total / _WHOLE,
                right=True,
                references=(own.answer,),
            )
    paths = {path.id: path for path in result.trajectories}
    for pair in sorted(result.pairs, key=lambda pair: pair.id in surplus):
        path = paths[pair.trajectory_id]
        cited = [step.citations for step in pair.reasoning_steps if step.citations]
        yield ExportAnswer(
            id=pair.id,
            question=pair.question,
            answer=pair.answer,
            nodes=pair.path,
            whole_path=path.nodes,
            documents=tuple(document.id for document in pair.documents),
            score=path.score.total / _WHOLE,
            right=pair.id not in surplus,
            surplus=pair.id in surplus,
            is_shown=all(any(span.region is None for span in spans) for spans in cited),
            references=(pair.answer,),
            quotes=tuple(span.quote for spans in cited for span in spans if span.quote),
        )


def _episode(result: TaskResult) -> ExportTree:
    """Return the result of a task, with the ids of `trajectories.jsonl`."""
    task, episode = result.task, result.episode
    key = [task.index, task.id, task.question, result.sample]
    ids = [f"node_{digest([*key, number])}" for number in range(len(result.turns) + 1)]
    root = ExportNode(
        node_id=ids[0],
        depth=0,
        intent="Understand the question",
        observation=f"Starting point: {task.question}",
        verdict=Verdict.NEW,
        images=_images(task.images),
    )
    turns = [
        _turn(task, turn, ids[place - 1 : place + 1], place) for place, turn in enumerate(result.turns, 1)
    ]
    id = f"traj_{digest(key)}"
    score = None if result.scored is None else result.score
    answer = ExportAnswer(
        id=id,
        question=task.question,
        answer=result.answer,
        nodes=tuple(ids),
        score=score,
        right=bool(result.answer) and score is not None and score >= 1.0,
        references=task.references,
    )
    facts: dict[str, Any] = {
        "sample": result.sample,
        "agent": "" if episode is None else episode.agent,
        "ending": None if episode is None else episode.ending.value,
        **({"kwargs": task.kwargs} if task.kwargs else {}),
    }
    return ExportTree(
        id=id,
        group=task.id,
        text=task.question,
        nodes=(root, *turns),
        is_episode=True,
        answers=(answer,),
        calls=() if episode is None else tuple(_calls(episode.exchanges)),
        reward=score,
        facts=facts,
    )


def _turn(task: Task, turn: Turn, ids: list[str], place: int) -> ExportNode:
    action = turn.action
    fixed = () if action is None else tuple(fixed_names(action.arguments, task.kwargs))
    return ExportNode(
        node_id=ids[1],
        parent_id=ids[0],
        depth=place,
        intent=turn.step.sub_goal,
        action=None if action is None else {"tool": action.tool, "args": action.arguments},
        observation=turn.result,
        verdict=Verdict.ERROR if turn.failed else Verdict.NEW,
        failure=turn.failure,
        images=_images(turn.images),
        reasoning=turn.reasoning,
        trainable=not turn.failed,
        fixed=fixed or None,
        trouble=turn.trouble,
    )


def _images(blobs: tuple[Blob, ...]) -> tuple[ExportImage, ...]:
    return tuple(ExportImage(blob.hash, blob.mime, image_file(blob)) for blob in blobs)


def _calls(exchanges: tuple[Exchange, ...]) -> Iterator[ExportCall]:
    for one in exchanges:
        for number, tokens in enumerate(one.unusable, 1):
            yield ExportCall(id=f"{one.key}/unusable/{number}", role=one.role, tokens=tokens)
        if one.tokens is not None:
            yield ExportCall(id=one.key, role=one.role, tokens=one.tokens)
