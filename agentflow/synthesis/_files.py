"""Files of a synthesis: projections of the results in the journal, without duplicates and within quotas."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from agentflow.engine import fixed_names
from agentflow.errors import ConfigurationError
from agentflow.runs import AtomicFiles, BlobReader, image_file, image_record
from agentflow.synthesis._config import QuotaSettings, SynthesisConfig
from agentflow.synthesis._report import Report, ReportBuilder
from agentflow.synthesis._seed_result import Pair, PairAttempts, SeedResult, Surplus, Trajectory
from agentflow.synthesis._task_pairs import task_pair_record
from agentflow.tasks import VerifiableTask
from agentflow.text import quantity_of, tokens
from agentflow.trace import (
    Action,
    ActionOutcome,
    Blob,
    Failure,
    Isolation,
    Node,
    Observation,
    Seed,
    SourceSpan,
    Text,
    Tree,
    Verdict,
)
from agentflow.values import (
    BoolValue,
    NumberValue,
    Value,
    infer_value,
    normalise_name,
    show_value,
    values_agree,
)

MIN_OF_KIND: Final = 5
"""Pairs of a kind that a file may have, however small it is."""
MIN_OF_ANSWER: Final = 2
"""Pairs with an answer that a file may have, however small it is."""
_HASHES: Final = 128
_BANDS: Final = 16
"""Few candidates: thousands of similar questions share most of their words."""
_MORE_BANDS: Final = 32
"""More candidates, for a low similarity threshold."""
_ALIKE: Final = 0.7


class PairKey(NamedTuple):
    """Everything about a pair that decides about its place in the file."""

    id: str
    question: str
    answer: Value
    kind: str
    documents: frozenset[str]

    @classmethod
    def of(cls, pair: Pair) -> "PairKey":
        """Return the key of a pair."""
        documents = frozenset(document.id for document in pair.documents)
        return cls(pair.id, pair.question, pair.value, pair.kind, documents)


def surplus_of(
    pairs: Sequence[PairKey], questions: "QuestionIndex", quotas: QuotaSettings
) -> dict[int, Surplus]:
    """Return the places of the pairs that are not written, with the reasons.

    Duplicates of earlier ones are removed first. Quotas are shares of the pairs that are left in the end; where too many have
    something in common, the earlier ones stay.

    :param questions: index of the questions asked before; those that stay are added.
    """
    reasons: dict[int, Surplus] = {}
    left: list[int] = []
    for index, pair in enumerate(pairs):
        if questions.before(pair.question, pair.answer, pair.documents) is not None:
            reasons[index] = Surplus.DUPLICATE
        else:
            questions.add(pair.question, pair.answer, pair.id, pair.documents)
            left.append(index)
    total = len(left)
    while True:
        over = _over_quotas([pairs[index] for index in left], quotas, total)
        if len(left) - len(over) >= total:
            break
        total = len(left) - len(over)
    return {**reasons, **{left[index]: reason for index, reason in over.items()}}


def _over_quotas(pairs: Sequence[PairKey], quotas: QuotaSettings, total: int) -> dict[int, Surplus]:
    """Return the places of the pairs that exceed a share of a total, with the reasons."""
    kinds, answers = Counter[str](), Counter[str]()
    of_kind = max(MIN_OF_KIND, int(quotas.kind * total))
    of_answer = max(MIN_OF_ANSWER, int(quotas.answer * total))
    # With three kinds, one of them always has more than a quarter.
    if quotas.kind * len({pair.kind for pair in pairs}) < 1:
        of_kind = len(pairs)
    over: dict[int, Surplus] = {}
    for index, pair in enumerate(pairs):
        answer = "" if isinstance(pair.answer, BoolValue) else normalise_name(show_value(pair.answer))
        if kinds[pair.kind] >= of_kind:
            over[index] = Surplus.KIND
        elif answer and answers[answer] >= of_answer:
            over[index] = Surplus.ANSWER
        else:
            kinds[pair.kind] += 1
            answers[answer] += 1
    return over


class _Sketch(Protocol):
    """MinHash sketch of a set of words."""

    def update(self, items: Iterable[str]) -> None: ...


class _Index(Protocol):
    """LSH index of sketches."""

    def insert(self, key: int, minhash: _Sketch) -> None: ...
    def query(self, minhash: _Sketch) -> list[int]: ...


class _Asked(NamedTuple):
    words: list[str]
    answer: Value
    id: str


class QuestionIndex:
    """Index of the accepted questions of a run, by their words, and by their answers and documents."""

    def __init__(self, similarity: float) -> None:
        """Start an empty index.

        :param similarity: similarity of words from which two questions with the same answer are duplicates.
        """
        rensa = import_module("rensa")  # it has no types
        bands = _BANDS if similarity >= _ALIKE else _MORE_BANDS
        self._worded: _Index = rensa.RMinHashLSH(similarity, _HASHES, bands)
        self._new_sketch: Callable[[int, int], _Sketch] = rensa.RMinHash
        self._similarity = similarity
        self._known: list[_Asked] = []
        self._verbatim: dict[str, str] = {}
        self._based: dict[tuple[str, frozenset[str]], str] = {}

    def before(self, question: str, answer: Value, documents: Collection[str] = ()) -> str | None:
        """Return the id of an earlier duplicate: equal words, similar words and the same answer, or the same answer and documents.

        :param documents: ids of the documents that it needs.
        """
        from rapidfuzz import fuzz

        words = tokens(question)
        verbatim = self._verbatim.get(" ".join(words))
        if verbatim is not None:
            return verbatim
        if documents and (based := self._based.get(_base(answer, documents))) is not None:
            return based
        for key in sorted(self._worded.query(self._worded_sketch(words, answer))):
            earlier = self._known[key]
            if fuzz.ratio(earlier.words, words) >= 100 * self._similarity and values_agree(
                answer, earlier.answer
            ):
                return earlier.id
        return None

    def add(self, question: str, answer: Value, id: str, documents: Collection[str] = ()) -> None:
        """Add a question. See `before`."""
        words = tokens(question)
        self._verbatim.setdefault(" ".join(words), id)
        if documents:
            self._based.setdefault(_base(answer, documents), id)
        self._worded.insert(len(self._known), self._worded_sketch(words, answer))
        self._known.append(_Asked(words, answer, id))

    def _worded_sketch(self, words: list[str], answer: Value) -> _Sketch:
        """Return a sketch that is half question and half answer, so that other answers give no candidates."""
        answer_text = " ".join(tokens(show_value(answer)))
        if isinstance(answer, NumberValue):  # 12 km is 12,000 metres
            quantity = quantity_of(answer.amount, answer.unit)
            answer_text = f"{quantity.size.normalize()} {quantity.kind}"
        return self._sketch({*words, *(f"{answer_text} {number}" for number in range(len(words)))})

    def _sketch(self, items: Collection[str]) -> _Sketch:
        sketch = self._new_sketch(_HASHES, 1)
        sketch.update(sorted(items))
        return sketch


def _base(answer: Value, documents: Collection[str]) -> tuple[str, frozenset[str]]:
    return normalise_name(show_value(answer)), frozenset(documents)


PAIRS: Final = "synthesized_qa.jsonl"
"""File of the question-answer pairs."""


SURPLUS: Final = "surplus.jsonl"
"""File of pairs that passed every check and are not needed, with the reasons."""


TRAJECTORIES: Final = "trajectories.jsonl"
"""File of the selected paths."""


TREES: Final = "trees.jsonl"
"""File of the whole trees."""


TASKS: Final = "tasks.jsonl"
"""File of the verified tasks, if the settings name a kind of tasks."""


TRIAGE: Final = "triage.jsonl"
"""File of pairs whose measured difficulty does not fit; only with `difficulty.attempts`."""


ATTEMPTS: Final = "attempts.jsonl"
"""File of the right attempts at pairs, as chats; only with `difficulty.attempts`."""


REPORT: Final = "report.json"
"""File of the quality report."""


_ENCODER: Final = msgspec.json.Encoder()


async def write_files(
    results: AsyncIterator[tuple[Seed, SeedResult]],
    output_dir: Path,
    config: SynthesisConfig,
    *,
    dropped_tools: Mapping[str, str] = MappingProxyType({}),
    read_blob: BlobReader | None = None,
) -> Report:
    """Write the files from the results of seeds, in order, and return the report on them.

    All files are replaced together at the end. A pair that repeats an earlier question or exceeds a quota is written to another file, with the reason. One result is in memory at a time. See docs/synthesis.md.

    :param dropped_tools: reasons of tools that could not be used, by name.
    :param read_blob: reads the images, which are written to the folder `images` beside the files.
    :raises RunStopped: if a file can't be written; the earlier files stay unchanged.
    """
    tally = ReportBuilder(config, dropped_tools)
    questions = QuestionIndex(config.question_similarity)
    names = [PAIRS, SURPLUS, TRAJECTORIES, TREES, REPORT]
    if config.task_kind:
        names.append(TASKS)
    if config.difficulty.attempts:
        names += [TRIAGE, ATTEMPTS]
    with closing(_Waiting()) as waiting:
        async with AtomicFiles.replace(output_dir, names, read_blob) as files:
            async for seed, result in results:
                tally.add(seed, result)
                waiting.add(seed, result)
                lines = _lines(seed, result, tally, questions, config)
                await files.write({name: added for name, added in lines.items() if name in names})
            for lines in waiting.decided(tally, questions, config):
                await files.write({name: added for name, added in lines.items() if name in names})
            report = tally.report()
            await files.write({REPORT: [msgspec.json.format(_ENCODER.encode(report), indent=2)]})
    return report


class _WaitingPair(Struct, frozen=True):
    """Accepted pair with everything that its line needs."""

    source_id: str
    pair: Pair
    trajectory: Trajectory
    attempts: PairAttempts | None


class _Waiting:
    """Accepted pairs of all seeds, on disk until it is decided which of them are written."""

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115
        self._ends = [0]
        self._keys: list[PairKey] = []

    def close(self) -> None:
        """Delete them."""
        with suppress(OSError):  # a full disk was reported when it was written
            self._file.close()

    def add(self, seed: Seed, result: SeedResult) -> None:
        """Add the pairs of a seed."""
        trajectories = {trajectory.id: trajectory for trajectory in result.trajectories}
        attempts = {made.pair: made for made in result.attempts}
        for pair in result.pairs:
            path = trajectories[pair.trajectory_id]
            waiting = _WaitingPair(seed.id, pair, path, attempts.get(pair.id))
            self._file.write(msgspec.msgpack.encode(waiting))
            self._ends.append(self._file.tell())
            self._keys.append(PairKey.of(pair))

    def decided(
        self, tally: ReportBuilder, questions: QuestionIndex, config: SynthesisConfig
    ) -> Iterator[dict[str, list[bytes]]]:
        """Yield the lines of each pair, by file."""
        surplus = surplus_of(self._keys, questions, config.quotas)
        self._file.seek(0)
        for index, (start, end) in enumerate(pairwise(self._ends)):
            waiting = msgspec.msgpack.decode(self._file.read(end - start), type=_WaitingPair)
            record = pair_record(waiting.source_id, waiting.pair, waiting.trajectory)
            reason = surplus.get(index)
            if reason is not None:
                tally.drop(reason)
                yield {SURPLUS: [_ENCODER.encode({**record, "reason": reason})]}
                continue
            tally.keep(waiting.pair, waiting.trajectory)
            attempts = [] if waiting.attempts is None else _right_attempts(waiting.attempts)
            yield {PAIRS: [_ENCODER.encode(record)], ATTEMPTS: attempts}


def _right_attempts(made: PairAttempts) -> list[bytes]:
    return [
        _ENCODER.encode({"qa_id": made.pair, "attempt": attempt.number, "messages": attempt.messages})
        for attempt in made.attempts
        if attempt.correct
    ]


def _lines(
    seed: Seed, result: SeedResult, tally: ReportBuilder, questions: QuestionIndex, config: SynthesisConfig
) -> dict[str, list[bytes]]:
    """Return the lines of a result that do not depend on others, by file, and its tasks."""
    if result.tree is None:
        return {}
    trajectories = {trajectory.id: trajectory for trajectory in result.trajectories}
    own_pairs = {pair.id for pair in result.pairs}
    pairs: list[bytes] = []
    tasks: list[bytes] = []
    for task in result.tasks:
        answer = infer_value(task.answer)
        if questions.before(task.instruction, answer) is not None:
            tally.drop(Surplus.DUPLICATE)
            continue
        questions.add(task.instruction, answer, task.id)
        pair = task_pair_record(seed, task, result.tree, result.trajectories, config)
        pairs += [] if pair is None else [_ENCODER.encode(pair)]
        tally.keep_task(as_pair=pair is not None)
        tasks.append(_ENCODER.encode(task_record(task)))
    triage = [
        {**pair_record(seed.id, pair, trajectories[pair.trajectory_id]), "reason": reason}
        for pair, reason in ((triaged.pair, triaged.reason) for triaged in result.triaged)
    ]
    triage += [{**task_record(triaged.task), "reason": triaged.reason} for triaged in result.triaged_tasks]
    paths = [_ENCODER.encode(trajectory_record(result.tree, path)) for path in result.trajectories]
    return {
        TASKS: tasks,
        PAIRS: pairs,
        TRAJECTORIES: paths,
        TREES: [_ENCODER.encode(tree_record(result.tree))],
        TRIAGE: [_ENCODER.encode(record) for record in triage],
        ATTEMPTS: [
            line for made in result.attempts if made.pair not in own_pairs for line in _right_attempts(made)
        ],
    }


def task_record(task: VerifiableTask) -> dict[str, object]:
    """Return a line of `tasks.jsonl`: the task, with the fields that a rollout reads."""
    kept: dict[str, object] = msgspec.to_builtins(task)
    return {**kept, "answer": task.answer, "kwargs": task.setup.kwargs}


def pair_record(source_id: str, pair: Pair, trajectory: Trajectory) -> dict[str, object]:
    """Return a line of `synthesized_qa.jsonl`. See docs/synthesis.md."""
    return {
        "question": pair.question,
        "answer": pair.answer,
        "trajectory_id": pair.trajectory_id,
        "source_id": source_id,
        "qa_id": pair.id,
        "reasoning_steps": [
            {
                "step": step.step,
                "citations": step.citations,
                **({"computes": step.computes} if step.computes else {}),
            }
            for step in pair.reasoning_steps
        ],
        "metadata": {
            "engine": pair.engine,
            "kind": pair.kind,
            "hops": pair.hops,
            "grounding": "quoted",
            "answer": pair.value,
            **({"unit": pair.unit} if pair.unit else {}),
            "asker": pair.asker,
            "documents": pair.documents,
            "rivals": pair.rivals,
            "support": pair.support,
            "path": pair.path,
            "votes": pair.votes,
            "naturalness": pair.naturalness,
            **({} if pair.known is None else {"known": pair.known}),
            **({"disputed": True} if pair.disputed else {}),
            **({} if pair.difficulty is None else {"difficulty": pair.difficulty}),
            "tries": pair.tries,
            "score": trajectory.score.total,
            "trajectory_depth": len(trajectory.nodes) - 1,
        },
    }


def trajectory_record(tree: Tree, trajectory: Trajectory) -> dict[str, object]:
    """Return a line of `trajectories.jsonl`."""
    return {
        "trajectory_id": trajectory.id,
        "source_id": tree.seed.id,
        "seed_data": tree.seed.content,
        "total_depth": len(trajectory.nodes) - 1,
        "nodes": [_node_record(tree, tree.by_id[node_id]) for node_id in trajectory.nodes],
        "tree_id": tree.id,
        "score": trajectory.score,
        **({"joined": True} if trajectory.joined else {}),
    }


def tree_record(tree: Tree) -> dict[str, object]:
    """Return a line of `trees.jsonl`."""
    return {
        "tree_id": tree.id,
        "source_id": tree.seed.id,
        "seed_data": tree.seed.content,
        "seed_kwargs": tree.seed.kwargs,
        "nodes": [_node_record(tree, node) for node in tree.nodes],
        "stalled": tree.stalled,
        "duplicates": tree.duplicates,
    }


def start_of(tree: Tree) -> Node:
    """Return the root of a tree as the files show it. See docs/synthesis.md."""
    seen = ActionOutcome(Observation((Text(f"Starting point: {tree.seed.content}"),)))
    return replace(tree.nodes[0], intent="Initialize exploration", outcome=seen)


def _node_record(tree: Tree, node: Node) -> dict[str, object]:
    """Return a node of a line. The first seven fields are those of files of other systems, which have no others."""
    node = start_of(tree) if node.action is None else node
    action = node.action
    record: dict[str, object] = {
        "node_id": node.id,
        "observation": node.text,
        "intent": node.intent,
        "action": None if action is None else {"tool": action.tool, "args": action.arguments},
        "parent_id": node.parent,
        "children_ids": list(tree.children[node.id]),
        "depth": node.depth,
        "verdict": node.verdict,
        "reason": node.reason,
        "isolation": node.isolation,
    }
    optional: dict[str, object] = {
        "failure": node.failure,
        "images": [image_record(blob) for blob in node.images],
        "sources": node.observation.sources,
        "diverged": node.id in tree.diverged or None,
        "reasoning": tree.reasoning.get(node.id),
        "trainable": None if action is None or node.verdict is Verdict.NEW else False,
        "fixed": [] if action is None else fixed_names(action.arguments, tree.seed.kwargs),
    }
    return record | {name: value for name, value in optional.items() if value or value is False}


class _ActionRecord(Struct):
    tool: str
    args: dict[str, Any]


class _ImageRecord(Struct):
    """Record of an image; it is read from the file of its hash, and no other one may be named."""

    hash: str
    mime: str
    file: str | None = None

    def __post_init__(self) -> None:
        if self.file not in (None, image_file(self.blob)):
            raise ConfigurationError(
                f"{self.file!r:.200} is not the file of an image: images/NAME, named by its hash"
            )

    @property
    def blob(self) -> Blob:
        return Blob(self.hash, self.mime)


class _NodeRecord(Struct):
    node_id: str
    depth: int
    parent_id: str | None = None
    intent: str = ""
    action: _ActionRecord | None = None
    observation: str = ""
    verdict: Verdict | None = None
    reason: str | None = None
    failure: Failure | None = None
    images: tuple[_ImageRecord, ...] | None = None
    sources: tuple[SourceSpan, ...] | None = None
    reasoning: str = ""
    trainable: bool = True
    fixed: tuple[str, ...] | None = None
    trouble: str = ""
    isolation: Isolation = Isolation.SHARED
    diverged: bool = False

    def node(self, position: int) -> Node:
        """Return the node."""
        images = [image.blob for image in self.images or ()]
        seen = Observation((Text(self.observation), *images), self.sources or ())
        return Node(
            id=self.node_id,
            parent=self.parent_id,
            depth=self.depth,
            position=position,
            intent=self.intent,
            action=None if self.action is None else Action(self.action.tool, self.action.args),
            outcome=ActionOutcome(seen, self.failure, self.trouble),
            verdict=self.verdict or (Verdict.NEW if self.trainable else Verdict.ERROR),
            reason=self.reason or "",
            isolation=self.isolation,
        )


class TreeRecord(Struct, kw_only=True):
    """Line of `trees.jsonl`, or of `trajectories.jsonl` of a synthesis or a rollout. Other systems write only some fields.

    Example::

        tree = msgspec.json.decode(line, type=TreeRecord).tree
    """

    nodes: tuple[_NodeRecord, ...]
    """Nodes; a parent precedes its children."""
    tree_id: str = ""
    """Id of the tree."""
    trajectory_id: str = ""
    """Id of the path."""
    source_id: str = ""
    """Id of the seed."""
    task_id: str = ""
    """Id of the task of a rollout."""
    seed_data: str
    """Content of the seed, or the question."""
    seed_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Tool arguments that the seed fixed."""
    stalled: dict[str, str] = field(default_factory=dict[str, str])
    """Nodes with fewer children than asked for, with the reasons."""
    duplicates: int = 0
    """Number of proposals refused as duplicates."""

    @property
    def tree(self) -> Tree:
        """The tree, or the path as a tree."""
        children = Counter[str | None]()
        nodes: list[Node] = []
        fixed: dict[str, Any] = {}
        for record in self.nodes:
            nodes.append(record.node(children[record.parent_id]))
            children[record.parent_id] += 1
            if record.action is not None:
                fixed |= {
                    name: record.action.args[name]
                    for name in record.fixed or ()
                    if name in record.action.args
                }
        return Tree(
            id=self.tree_id or self.trajectory_id,
            seed=Seed(
                index=0,
                id=self.source_id or self.task_id,
                content=self.seed_data,
                kwargs=fixed | self.seed_kwargs,
            ),
            nodes=tuple(nodes),
            stalled=self.stalled,
            duplicates=self.duplicates,
            diverged=tuple(record.node_id for record in self.nodes if record.diverged),
            reasoning={record.node_id: record.reasoning for record in self.nodes if record.reasoning},
        )
