"""Trees and episodes of a run: from its journal, which may be that of an active or killed one, or from its files."""

import re
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
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
from agentflow.exports._records import ExportAnswer, ExportTree, empty_tree, numbered_calls
from agentflow.extras import missing_extra
from agentflow.gateway import recorded_episode, recorded_ids, recorded_image
from agentflow.inspection import RunKind, RunReader, SeedSummary
from agentflow.inspection._reader import damage_reported
from agentflow.models import ToolSpec
from agentflow.rollouts import TaskResult, episode_tree
from agentflow.runs import image_file
from agentflow.synthesis import (
    PAIRS,
    SURPLUS,
    TASKS,
    TRAJECTORIES,
    TREES,
    SeedResult,
    TreeRecord,
    pair_of_task,
    pair_record,
    start_of,
)
from agentflow.tasks import VerifiableTask
from agentflow.trace import Blob, Exchange, Tokens, Tree, Voice, calls_of_answer, digest

_RESULTS: Final = "results.jsonl"
_ROLLOUTS: Final = "rollouts"
_GATEWAY: Final = "gateway"
_EPISODES: Final = "episodes.db"
_DRAW: Final = re.compile(r"@\d+(#.*)?$", re.DOTALL)
"""End of a group's name: the number of its draw, and its agent."""
_KINDS: Final = (
    (TREES, "synthesis"),
    (TRAJECTORIES, "rollout"),
    (f"{_GATEWAY}/{_EPISODES}", "tuning"),
    (_ROLLOUTS, "training"),
    (_EPISODES, "gateway"),
)
"""Files of a run, and its kind."""
_WHOLE: Final = 100.0
"""Highest score of a path."""
_PAGE: Final = 200

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


class _NodeName(Struct):
    node_id: str


class _SelectedPathLine(Struct):
    trajectory_id: str
    nodes: list[_NodeName]


class _ExchangeLine(Struct):
    key: str
    role: str
    tokens: Tokens | None = None
    unusable: tuple[Tokens, ...] = ()


class _RolloutEpisodeLine(TreeRecord, kw_only=True):
    sample: int = 0
    answer: str = ""
    score: float | None = None
    agent: str = ""
    ending: str | None = None
    exchanges: list[_ExchangeLine] = field(default_factory=list[_ExchangeLine])


class _SurplusLine(Struct):
    qa_id: str


class _TaskLine(Struct):
    id: str


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
        names = {
            "synthesis": (TREES, TRAJECTORIES, PAIRS, SURPLUS, TASKS),
            "rollout": (TRAJECTORIES, _RESULTS),
        }
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

    def image(self, image: Blob) -> bytes | None:
        """Return the bytes of an image; `None`: it is missing."""
        with suppress(OSError, ValueError):
            return read_file(self.folder / image_file(image), self.folder)
        with suppress(KeyError):
            return recorded_image(self._gateway, image.hash)
        return None

    def _synthesis(self) -> Iterator[ExportTree]:
        selected = {line.trajectory_id: [node.node_id for node in line.nodes] for line in self._paths()}
        answers: dict[str, list[ExportAnswer]] = {}
        for name, right in ((PAIRS, True), (SURPLUS, False)):
            if not right and not (self.folder / name).exists():
                continue
            for number, pair in enumerate(json_lines(self.folder, name, _AcceptedPairLine), 1):
                nodes = selected.get(pair.trajectory_id)
                if nodes is None:
                    missing = (
                        f"trajectory {pair.trajectory_id} is not in {TRAJECTORIES}; write the files again"
                    )
                    raise ConfigurationError(f"{self.folder / name}:{number}: {missing}")
                answers.setdefault(pair.source_id, []).append(_pair_answer(pair, tuple(nodes), right=right))
        tasks: dict[str, list[VerifiableTask]] = {}
        if (self.folder / TASKS).exists():
            for task in json_lines(self.folder, TASKS, VerifiableTask):
                tasks.setdefault(task.source_id, []).append(task)
        for line in json_lines(self.folder, TREES, TreeRecord):
            yield ExportTree(
                tree=line.tree,
                is_episode=False,
                answers=tuple(answers.get(line.source_id, ())),
                tasks=tuple(tasks.get(line.source_id, ())),
                facts={"kwargs": line.seed_kwargs, "stalled": line.stalled, "duplicates": line.duplicates},
            )

    def _paths(self) -> Iterator[_SelectedPathLine]:
        return json_lines(self.folder, TRAJECTORIES, _SelectedPathLine)

    def _rollout(self) -> Iterator[ExportTree]:
        references: dict[tuple[str, int], tuple[str, ...]] = {}
        if (self.folder / _RESULTS).exists():
            references = {
                (one.task_id, one.sample): one.references
                for one in json_lines(self.folder, _RESULTS, _TaskReferencesLine)
            }
        for line in json_lines(self.folder, TRAJECTORIES, _RolloutEpisodeLine):
            yield _episode(
                line.tree,
                answer=line.answer,
                score=line.score,
                references=references.get((line.task_id, line.sample), ()),
                exchanges=line.exchanges,
                facts={"sample": line.sample, "agent": line.agent, "ending": line.ending},
            )

    def _training(self) -> Iterator[ExportTree]:
        """Yield the episodes of all steps, then those that a gateway recorded and no step used."""
        used = set[str]()
        for episode in self._trained():
            sample, record = episode.sample, episode.record
            group = empty_tree(sample.id, _DRAW.sub("", sample.task), "")
            tree = ExportTree(tree=group, draw=sample.task, is_episode=True)
            if record is not None:
                used.add(record.offer.id)
                tree = agent_tree(record, episode.agent)
            advantages = {str(n): episode.advantage_of(n - 1) for n in range(1, len(sample.calls) + 1)}
            facts = {"step": episode.step, "agent": episode.agent, "turn_rewards": sample.turn_rewards}
            yield replace(
                tree,
                calls=numbered_calls(sample.calls, episode.agent),
                advantages={call: own for call, own in advantages.items() if own is not None},
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

    def image(self, image: Blob) -> bytes | None:
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
                return _task_episode(result)
            return ExportTree(tree=empty_tree(seed.id, seed.task, seed.text), is_episode=True)
        if (tree := self._reader.tree(seed.id)) is None:
            return None
        own = result if isinstance(result, SeedResult) else SeedResult()
        written = tuple(task for task in own.tasks if self._tasks is None or task.id in self._tasks)
        return ExportTree(
            tree=replace(tree, nodes=(start_of(tree), *tree.nodes[1:])),
            is_episode=False,
            answers=tuple(_answers(own, seed.id, written, self._surplus)),
            tasks=written,
            surplus_tasks=tuple(task.id for task in own.tasks if task not in written),
            calls=tuple(self._reader.planner_calls(seed.id)),
            facts={"kwargs": tree.seed.kwargs, "stalled": tree.stalled, "duplicates": tree.duplicates},
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


def _answers(
    result: SeedResult, seed: str, tasks: Sequence[VerifiableTask], surplus: Collection[str]
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
        line = msgspec.convert(pair_record(seed, pair, path), _AcceptedPairLine, from_attributes=True)
        yield _pair_answer(line, path.nodes, right=pair.id not in surplus)


def _task_episode(result: TaskResult) -> ExportTree:
    tree, episode = episode_tree(result), result.episode
    facts: dict[str, Any] = {
        "sample": result.sample,
        "agent": "" if episode is None else episode.agent,
        "ending": None if episode is None else episode.ending.value,
        **({"kwargs": result.task.kwargs} if result.task.kwargs else {}),
    }
    return _episode(
        tree,
        answer=result.answer,
        score=None if result.scored is None else result.score,
        references=result.task.references,
        exchanges=() if episode is None else episode.exchanges,
        facts=facts,
    )


def kind_of_files(folder: Path) -> str | None:
    """Return the kind of the run whose files a folder has; `None`: it has none."""
    return next((kind for name, kind in _KINDS if (folder / name).exists()), None)


def _leaf_of(sample: str) -> str:
    """Return the node id in the name of a sample; empty: its episode is no path of a tree."""
    last = sample.rpartition("/")[2]
    return last if last.startswith("node_") else ""


def _pair_answer(pair: _AcceptedPairLine, nodes: tuple[str, ...], *, right: bool) -> ExportAnswer:
    score = pair.metadata.score
    return ExportAnswer(
        id=pair.qa_id,
        question=pair.question,
        answer=pair.answer,
        nodes=tuple(pair.metadata.path or nodes),
        whole_path=nodes if pair.metadata.path else (),
        documents=tuple(document.id for document in pair.metadata.documents),
        score=None if score is None else score / _WHOLE,
        right=right,
        surplus=not right,
        is_shown=pair.is_text,
        references=(pair.answer,),
        quotes=pair.quotes if pair.metadata.path else (),
    )


def _episode(
    tree: Tree,
    *,
    answer: str,
    score: float | None,
    references: tuple[str, ...],
    exchanges: Iterable[_ExchangeLine | Exchange],
    facts: dict[str, Any],
) -> ExportTree:
    own = ExportAnswer(
        id=tree.id,
        question=tree.seed.content,
        answer=answer,
        nodes=tuple(node.id for node in tree.nodes),
        score=score,
        right=bool(answer) and score is not None and score >= 1.0,
        references=references,
    )
    calls = tuple(
        call
        for exchange in exchanges
        for call in calls_of_answer(exchange.key, exchange, Voice(role=exchange.role))
    )
    return ExportTree(tree=tree, is_episode=True, answers=(own,), calls=calls, reward=score, facts=facts)


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
