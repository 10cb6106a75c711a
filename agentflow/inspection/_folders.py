"""Runs without a journal, read from the files of their folders: of a synthesis, a rollout, or a gateway alone."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from msgspec import Struct, field

from agentflow._folder_files import read_file
from agentflow.errors import ConfigurationError
from agentflow.gateway import recorded_image
from agentflow.inspection._reader import RunRecords, json_lines
from agentflow.inspection._recorded import content_key, unused_episodes
from agentflow.inspection._rollouts import episode_record
from agentflow.inspection._trainings import GATEWAY, ROLLOUTS, TrainingFolder
from agentflow.inspection._trees import PairLine
from agentflow.inspection._types import AnswerRecord, RunKind, SeedRecord
from agentflow.runs import image_file
from agentflow.synthesis import PAIRS, SURPLUS, TASKS, TRAJECTORIES, TREES, TreeRecord
from agentflow.tasks import VerifiableTask
from agentflow.trace import Blob, Exchange

_RESULTS: Final = "results.jsonl"
_EPISODES: Final = "episodes.db"


class _NodeName(Struct):
    node_id: str


class _SelectedPathLine(Struct):
    trajectory_id: str
    nodes: list[_NodeName]


class _EpisodeLine(TreeRecord, kw_only=True):
    sample: int = 0
    answer: str = ""
    score: float | None = None
    agent: str = ""
    ending: str | None = None
    exchanges: list[Exchange] = field(default_factory=list[Exchange])


class _TaskReferencesLine(Struct):
    task_id: str
    sample: int = 0
    references: tuple[str, ...] = ()


class _RunFolder(RunRecords):
    """A finished run, read from its output directory."""

    files: ClassVar[Sequence[str]] = ()
    """Files that decide its content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gateway = folder / GATEWAY

    @property
    def key(self) -> str:
        """Digest of the files that are read: the same content gives the same key."""
        return content_key(self._folder, [self._folder / name for name in self.files], self._gateway)

    @abstractmethod
    def records(self) -> Iterator[SeedRecord]:
        """Yield the trees or episodes in the order of the files."""

    def image(self, image: Blob) -> bytes | None:
        """Return the bytes of an image; `None`: it is missing."""
        with suppress(OSError, ValueError):
            return read_file(self._folder / image_file(image), self._folder)
        with suppress(KeyError):
            return recorded_image(self._gateway, image.hash)
        return None


class SynthesisFolder(_RunFolder):
    """A synthesis without its journal."""

    kind = RunKind.SYNTHESIS
    files = (TREES, TRAJECTORIES, PAIRS, SURPLUS, TASKS)

    def records(self) -> Iterator[SeedRecord]:
        """Yield the trees in the order of `trees.jsonl`."""
        folder = self._folder
        paths = {
            line.trajectory_id: tuple(node.node_id for node in line.nodes)
            for line in json_lines(folder, TRAJECTORIES, _SelectedPathLine)
        }
        answers: dict[str, list[AnswerRecord]] = {}
        for name, right in ((PAIRS, True), (SURPLUS, False)):
            if not right and not (folder / name).exists():
                continue
            for number, pair in enumerate(json_lines(folder, name, PairLine), 1):
                if (nodes := paths.get(pair.trajectory_id)) is None:
                    missing = (
                        f"trajectory {pair.trajectory_id} is not in {TRAJECTORIES}; write the files again"
                    )
                    raise ConfigurationError(f"{folder / name}:{number}: {missing}")
                answers.setdefault(pair.source_id, []).append(pair.answer_record(nodes, right=right))
        tasks: dict[str, list[VerifiableTask]] = {}
        if (folder / TASKS).exists():
            for task in json_lines(folder, TASKS, VerifiableTask):
                tasks.setdefault(task.source_id, []).append(task)
        for line in json_lines(folder, TREES, TreeRecord):
            yield SeedRecord(
                tree=line.tree,
                is_episode=False,
                answers=tuple(answers.get(line.source_id, ())),
                tasks=tuple(tasks.get(line.source_id, ())),
                facts={"kwargs": line.seed_kwargs, "stalled": line.stalled, "duplicates": line.duplicates},
            )


class RolloutFolder(_RunFolder):
    """A rollout without its journal."""

    kind = RunKind.ROLLOUT
    files = (TRAJECTORIES, _RESULTS)

    def records(self) -> Iterator[SeedRecord]:
        """Yield the episodes in the order of `trajectories.jsonl`."""
        references: dict[tuple[str, int], tuple[str, ...]] = {}
        if (self._folder / _RESULTS).exists():
            lines = json_lines(self._folder, _RESULTS, _TaskReferencesLine)
            references = {(line.task_id, line.sample): line.references for line in lines}
        for line in json_lines(self._folder, TRAJECTORIES, _EpisodeLine):
            yield episode_record(
                line.tree,
                answer=line.answer,
                score=line.score,
                references=references.get((line.task_id, line.sample), ()),
                exchanges=line.exchanges,
                facts={"sample": line.sample, "agent": line.agent, "ending": line.ending},
            )


class GatewayFolder(_RunFolder):
    """A gateway alone."""

    kind = RunKind.GATEWAY

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._gateway = folder

    def records(self) -> Iterator[SeedRecord]:
        """Yield the recorded episodes."""
        return unused_episodes(self._gateway, ())


def folder_records(folder: Path) -> RunRecords | None:
    """Return the run whose files a folder has; `None`: it has none."""
    if (folder / TREES).exists():
        return SynthesisFolder(folder)
    if (folder / TRAJECTORIES).exists():
        return RolloutFolder(folder)
    if (folder / GATEWAY / _EPISODES).exists() or (folder / ROLLOUTS).exists():
        return TrainingFolder(folder.name, folder)
    return GatewayFolder(folder) if (folder / _EPISODES).exists() else None
