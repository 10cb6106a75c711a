"""Trees and episodes from the files of a run: those of a synthesis, a rollout, a training, or a gateway."""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._folder_files import open_file, read_file, read_lines
from agentflow.errors import ConfigurationError
from agentflow.exports._recorded import agent_tree, episode_trees
from agentflow.exports._records import ExportAnswer, ExportCall, ExportImage, ExportNode, ExportTree
from agentflow.extras import missing_extra
from agentflow.gateway import recorded_episode, recorded_ids, recorded_image
from agentflow.models import ToolSpec
from agentflow.tasks import VerifiableTask
from agentflow.trace import Tokens

_PAIRS: Final = "synthesized_qa.jsonl"
_SURPLUS: Final = "surplus.jsonl"
_PATHS: Final = "trajectories.jsonl"
_TREES: Final = "trees.jsonl"
_TASKS: Final = "tasks.jsonl"
_RESULTS: Final = "results.jsonl"
_ROLLOUTS: Final = "rollouts"
_GATEWAY: Final = "gateway"
_EPISODES: Final = "episodes.db"
_DRAW: Final = re.compile(r"@\d+(#.*)?$", re.DOTALL)
"""End of a group's name: the number of its draw, and its agent."""
_KINDS: Final = (
    (_TREES, "synthesis"),
    (_PATHS, "rollout"),
    (f"{_GATEWAY}/{_EPISODES}", "tuning"),
    (_ROLLOUTS, "training"),
    (_EPISODES, "gateway"),
)
"""Files of a run, and its kind."""
_WHOLE: Final = 100.0
"""Highest score of a path."""

T = TypeVar("T", bound=Struct)

if TYPE_CHECKING:
    from agentflow.learner import EpisodeTokens


class _CitedSpanLine(Struct):
    region: object = None
    quote: str = ""


class _ReasoningLine(Struct):
    citations: list[_CitedSpanLine] = field(default_factory=list[_CitedSpanLine])


class _NeededDocument(Struct):
    id: str


class _PairDetails(Struct):
    path: list[str] = field(default_factory=list[str])
    documents: list[_NeededDocument] = field(default_factory=list[_NeededDocument])
    score: float | None = None


class _AcceptedPairLine(Struct):
    question: str
    answer: str
    trajectory_id: str
    source_id: str
    qa_id: str
    reasoning_steps: list[_ReasoningLine] = field(default_factory=list[_ReasoningLine])
    metadata: _PairDetails = field(default_factory=_PairDetails)

    @property
    def quotes(self) -> tuple[str, ...]:
        return tuple(span.quote for step in self.reasoning_steps for span in step.citations if span.quote)

    @property
    def is_text(self) -> bool:
        steps = [step.citations for step in self.reasoning_steps if step.citations]
        return all(any(span.region is None for span in citations) for citations in steps)


class _SelectedPathLine(Struct):
    trajectory_id: str
    nodes: list[ExportNode]


class _GrownTreeLine(Struct):
    tree_id: str
    source_id: str
    seed_data: str
    nodes: tuple[ExportNode, ...]
    seed_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    stalled: dict[str, str] = field(default_factory=dict[str, str])
    duplicates: int = 0


class _ExchangeLine(Struct):
    key: str
    role: str
    tokens: Tokens | None = None
    unusable: tuple[Tokens, ...] = ()


class _RolloutEpisodeLine(Struct):
    trajectory_id: str
    task_id: str
    seed_data: str
    nodes: tuple[ExportNode, ...]
    sample: int = 0
    answer: str = ""
    score: float | None = None
    agent: str = ""
    ending: str | None = None
    exchanges: list[_ExchangeLine] = field(default_factory=list[_ExchangeLine])


class _TaskReferencesLine(Struct):
    task_id: str
    sample: int = 0
    references: tuple[str, ...] = ()


class RunFiles:
    """A finished run, read from its output directory."""

    def __init__(self, folder: Path) -> None:
        """Find the files.

        :raises ConfigurationError: one line, if it is no output directory.
        """
        self.folder = folder
        """Output directory of the run."""
        self.kind = self._kind()
        """`synthesis`, `rollout`, `training`, `tuning` or `gateway`."""
        self._gateway = folder if self.kind == "gateway" else folder / _GATEWAY

    def _kind(self) -> str:
        if (kind := kind_of_files(self.folder)) is not None:
            return kind
        names = ", ".join(name for name, _ in _KINDS)
        raise ConfigurationError(
            f"{self.folder}: has none of {names}; name the output directory of a finished run"
        )

    @property
    def key(self) -> str:
        """Digest of the files that are read: the same content gives the same key."""
        total = sha256()
        names = {"synthesis": (_TREES, _PATHS, _PAIRS, _SURPLUS, _TASKS), "rollout": (_PATHS, _RESULTS)}
        paths = [self.folder / name for name in names.get(self.kind, ())]
        if self.kind in ("training", "tuning"):
            paths = self._steps()
        for id in recorded_ids(self._gateway):
            if (episode := recorded_episode(self._gateway, id)) is not None and episode.calls:
                total.update(msgspec.json.encode([id, episode.state, episode.outcome, len(episode.calls)]))
        for path in paths:
            if path.exists():
                with _reported(path), open_file(path, self.folder) as file:
                    while part := file.read(1 << 20):
                        total.update(part)
            total.update(b"\0")
        return total.hexdigest()[:32]

    def trees(self) -> Iterator[ExportTree]:
        """Yield the trees or episodes in the order of the run.

        :raises ConfigurationError: one line with file and line, if something can't be read.
        """
        if self.kind == "synthesis":
            return self._synthesis()
        return self._rollout() if self.kind == "rollout" else self._training()

    def _steps(self) -> list[Path]:
        return sorted((self.folder / _ROLLOUTS).glob("step_*.jsonl.gz"))

    def tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools of the run; empty: it kept no schemas."""
        return ()

    def image(self, image: ExportImage) -> bytes | None:
        """Return the bytes of an image; `None`: it is missing."""
        with suppress(OSError, ValueError):
            return read_file(self.folder / image.file, self.folder)
        with suppress(KeyError):
            return recorded_image(self._gateway, image.hash)
        return None

    def _synthesis(self) -> Iterator[ExportTree]:
        selected = {line.trajectory_id: [node.node_id for node in line.nodes] for line in self._paths()}
        answers: dict[str, list[ExportAnswer]] = {}
        for name, right in ((_PAIRS, True), (_SURPLUS, False)):
            if not right and not (self.folder / name).exists():
                continue
            for number, pair in enumerate(json_lines(self.folder, name, _AcceptedPairLine), 1):
                nodes = selected.get(pair.trajectory_id)
                if nodes is None:
                    missing = f"trajectory {pair.trajectory_id} is not in {_PATHS}; write the files again"
                    raise ConfigurationError(f"{self.folder / name}:{number}: {missing}")
                score = pair.metadata.score
                answers.setdefault(pair.source_id, []).append(
                    ExportAnswer(
                        id=pair.qa_id,
                        question=pair.question,
                        answer=pair.answer,
                        nodes=tuple(pair.metadata.path or nodes),
                        whole_path=tuple(nodes) if pair.metadata.path else (),
                        documents=tuple(document.id for document in pair.metadata.documents),
                        score=None if score is None else score / _WHOLE,
                        right=right,
                        surplus=not right,
                        is_shown=pair.is_text,
                        references=(pair.answer,),
                        quotes=pair.quotes if pair.metadata.path else (),
                    )
                )
        tasks: dict[str, list[VerifiableTask]] = {}
        if (self.folder / _TASKS).exists():
            for task in json_lines(self.folder, _TASKS, VerifiableTask):
                tasks.setdefault(task.source_id, []).append(task)
        for line in json_lines(self.folder, _TREES, _GrownTreeLine):
            yield ExportTree(
                id=line.tree_id,
                group=line.source_id,
                text=line.seed_data,
                nodes=line.nodes,
                is_episode=False,
                answers=tuple(answers.get(line.source_id, ())),
                tasks=tuple(tasks.get(line.source_id, ())),
                facts={"kwargs": line.seed_kwargs, "stalled": line.stalled, "duplicates": line.duplicates},
            )

    def _paths(self) -> Iterator[_SelectedPathLine]:
        return json_lines(self.folder, _PATHS, _SelectedPathLine)

    def _rollout(self) -> Iterator[ExportTree]:
        references: dict[tuple[str, int], tuple[str, ...]] = {}
        if (self.folder / _RESULTS).exists():
            references = {
                (one.task_id, one.sample): one.references
                for one in json_lines(self.folder, _RESULTS, _TaskReferencesLine)
            }
        for line in json_lines(self.folder, _PATHS, _RolloutEpisodeLine):
            answer = ExportAnswer(
                id=line.trajectory_id,
                question=line.seed_data,
                answer=line.answer,
                nodes=tuple(node.node_id for node in line.nodes),
                score=line.score,
                right=bool(line.answer) and line.score is not None and line.score >= 1.0,
                references=references.get((line.task_id, line.sample), ()),
            )
            yield ExportTree(
                id=line.trajectory_id,
                group=line.task_id,
                text=line.seed_data,
                nodes=line.nodes,
                is_episode=True,
                answers=(answer,),
                calls=tuple(_calls(line.exchanges)),
                reward=line.score,
                facts={"sample": line.sample, "agent": line.agent, "ending": line.ending},
            )

    def _training(self) -> Iterator[ExportTree]:
        """Yield the episodes of all steps, then those that a gateway recorded and no step used."""
        used = set[str]()
        for episode in self._trained():
            sample, record = episode.sample, episode.record
            tree = ExportTree(
                id=sample.id, group=_DRAW.sub("", sample.task), draw=sample.task, text="", is_episode=True
            )
            if record is not None:
                used.add(record.offer.id)
                tree = agent_tree(record, episode.agent)
            calls = tuple(
                ExportCall(
                    id=str(number),
                    role=episode.agent,
                    tokens=call,
                    advantage=episode.advantage_of(number - 1),
                )
                for number, call in enumerate(sample.calls, 1)
            )
            facts = {"step": episode.step, "agent": episode.agent, "turn_rewards": sample.turn_rewards}
            yield replace(
                tree,
                calls=calls,
                reward=sample.reward,
                leaf=_leaf_of(sample.id),
                facts={**tree.facts, **facts},
            )
        for id in recorded_ids(self._gateway):
            if id not in used and (found := recorded_episode(self._gateway, id)) is not None:
                yield from episode_trees(found)

    def _trained(self) -> "Iterator[EpisodeTokens]":
        """Yield the episodes of all steps; a gateway alone, and a tuning in its first step, have none."""
        if not self._steps() and self.kind != "training":
            return
        try:
            from agentflow.learner import RunTokens  # it imports numpy
        except ModuleNotFoundError:
            raise ConfigurationError(missing_extra("reading the episodes of a training", "train")) from None
        yield from RunTokens(self.folder).episodes()


def kind_of_files(folder: Path) -> str | None:
    """Return the kind of the run whose files a folder has; `None`: it has none."""
    return next((kind for name, kind in _KINDS if (folder / name).exists()), None)


def _leaf_of(sample: str) -> str:
    """Return the node id in the name of a sample; empty: its episode is no path of a tree."""
    last = sample.rpartition("/")[2]
    return last if last.startswith("node_") else ""


def _calls(lines: list[_ExchangeLine]) -> Iterator[ExportCall]:
    for line in lines:
        for number, tokens in enumerate(line.unusable, 1):
            yield ExportCall(id=f"{line.key}/unusable/{number}", role=line.role, tokens=tokens)
        if line.tokens is not None:
            yield ExportCall(id=line.key, role=line.role, tokens=line.tokens)


def json_lines(folder: Path, name: str, kind: type[T]) -> Iterator[T]:
    """Yield the lines of a file of a run.

    :raises ConfigurationError: one line with file and line, if one can't be read.
    """
    decoder, path = msgspec.json.Decoder(kind), folder / name
    with _reported(path):
        for number, line in enumerate(read_lines(path, folder), 1):
            try:
                yield decoder.decode(line)
            except DECODE_ERRORS as error:
                raise ConfigurationError(
                    f"{path}:{number}: {decode_reason(error)}; name the output directory of a run"
                ) from None


@contextmanager
def _reported(path: Path) -> Generator[None]:
    """Raise `ConfigurationError` if a file can't be read."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{path}: can't be read: {error.strerror}; name the output directory of a finished run"
        ) from None
