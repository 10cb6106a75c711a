"""Files of a synthesis: projections of the results in the journal."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from agentflow.facts import texts_agree
from agentflow.runs import AtomicFiles, BlobReader
from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._report import Report, ReportBuilder
from agentflow.synthesis._seed_result import Pair, SeedResult, Trajectory
from agentflow.synthesis._task_pairs import answer_of, task_pair_record
from agentflow.synthesis._trajectory_node import TrajectoryNode
from agentflow.tasks import VerifiableTask
from agentflow.text import tokens
from agentflow.trajectory import Seed, Tree

PAIRS: Final = "synthesized_qa.jsonl"
"""File of the question-answer pairs."""


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

    All files are replaced together at the end. A pair whose question repeats an earlier one, or asks for the same fact, is dropped. One result is in
    memory at a time. See docs/synthesis.md.

    :param dropped_tools: reasons of tools that could not be used, by name.
    :param read_blob: reads the images, which are written to the folder `images` beside the files.
    :raises RunStopped: if a file can't be written; the earlier files stay unchanged.
    """
    tally = ReportBuilder(config, dropped_tools)
    asked = QuestionIndex(config.question_similarity)
    names = [PAIRS, TRAJECTORIES, TREES, REPORT]
    if config.task_kind:
        names.append(TASKS)
    if config.difficulty.attempts:
        names += [TRIAGE, ATTEMPTS]
    async with AtomicFiles.replace(output_dir, names, read_blob) as files:
        async for seed, result in results:
            tally.add(seed, result)
            lines = _lines(seed, result, tally, asked, config)
            await files.write({name: each for name, each in lines.items() if name in names})
        report = tally.report()
        await files.write({REPORT: [msgspec.json.format(_ENCODER.encode(report), indent=2)]})
    return report


def _lines(
    seed: Seed, result: SeedResult, tally: ReportBuilder, asked: "QuestionIndex", config: SynthesisConfig
) -> dict[str, list[bytes]]:
    """Return the lines of a result, by file."""
    if result.tree is None:
        return {}
    trajectories = {trajectory.id: trajectory for trajectory in result.trajectories}
    pairs: list[bytes] = []
    for pair in result.pairs:
        if asked.before(pair.question, pair.answer) is not None or pair.asks in asked.facts:
            tally.drop()
            continue
        asked.add(pair.question, pair.answer, pair.id)
        asked.facts.add(pair.asks)
        tally.keep(pair)
        pairs.append(_ENCODER.encode(pair_record(seed, pair, trajectories[pair.trajectory_id])))
    tasks: list[bytes] = []
    for task in result.tasks:
        answer = answer_of(task)
        if asked.before(task.instruction, answer) is not None:
            tally.drop()
            continue
        asked.add(task.instruction, answer, task.id)
        pair = task_pair_record(seed, task, result.tree, result.trajectories, config)
        pairs += [] if pair is None else [_ENCODER.encode(pair)]
        tally.keep_task(as_pair=pair is not None)
        tasks.append(_ENCODER.encode(task_record(task)))
    paths = [_ENCODER.encode(trajectory_record(result.tree, one)) for one in result.trajectories]
    return {
        TASKS: tasks,
        PAIRS: pairs,
        TRAJECTORIES: paths,
        TREES: [_ENCODER.encode(tree_record(result.tree))],
        TRIAGE: [
            _ENCODER.encode(
                {**pair_record(seed, one.pair, trajectories[one.pair.trajectory_id]), "reason": one.reason}
            )
            for one in result.triaged
        ]
        + [_ENCODER.encode({**task_record(one.task), "reason": one.reason}) for one in result.triaged_tasks],
        ATTEMPTS: [
            _ENCODER.encode({"qa_id": own.pair, "attempt": one.number, "messages": one.messages})
            for own in result.attempts
            for one in own.attempts
            if one.correct
        ],
    }


def task_record(task: VerifiableTask) -> dict[str, object]:
    """Return a line of `tasks.jsonl`: the task, with the fields that a rollout reads."""
    kept: dict[str, object] = msgspec.to_builtins(task)
    return {**kept, "answer": answer_of(task), "kwargs": task.setup.kwargs}


def pair_record(seed: Seed, pair: Pair, trajectory: Trajectory) -> dict[str, object]:
    """Return a line of `synthesized_qa.jsonl`."""
    return {
        "question": pair.question,
        "answer": pair.answer,
        "trajectory_id": pair.trajectory_id,
        "source_id": seed.id,
        "qa_id": pair.id,
        "reasoning_steps": [
            {"step": step.step, "citations": step.citations} for step in pair.reasoning_steps
        ],
        "metadata": {
            "engine": pair.engine,
            "kind": pair.kind,
            "level": pair.level,
            "hops": pair.hops,
            "grounding": "derived",
            "answer": pair.value,
            "program": pair.program,
            "facts": pair.facts,
            "support": pair.support,
            "votes": pair.votes,
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
        "nodes": [TrajectoryNode.of(tree, tree.by_id[own]) for own in trajectory.nodes],
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
        "nodes": [TrajectoryNode.of(tree, node) for node in tree.nodes],
        "stalled": tree.stalled,
        "duplicates": tree.duplicates,
    }


_HASHES = 128


_BANDS = 16
"""Few candidates: thousands of similar questions share most of their words."""


_MORE_BANDS = 32
"""More candidates, for a low similarity threshold."""


_ALIKE = 0.7


class _Sketch(Protocol):
    """MinHash sketch of a set of words."""

    def update(self, items: Iterable[str]) -> None: ...


class _Index(Protocol):
    """LSH index of sketches."""

    def insert(self, key: int, minhash: _Sketch) -> None: ...
    def query(self, minhash: _Sketch) -> list[int]: ...


class QuestionIndex:
    """Index of the accepted questions of a run."""

    def __init__(self, similarity: float) -> None:
        """Start an empty index.

        :param similarity: word similarity from which two questions with the same answer are duplicates.
        """
        rensa = import_module("rensa")  # it has no types
        bands = _BANDS if similarity >= _ALIKE else _MORE_BANDS
        self._index: _Index = rensa.RMinHashLSH(similarity, _HASHES, bands)
        self._new_sketch: Callable[[int, int], _Sketch] = rensa.RMinHash
        self._least = 100 * similarity
        self._known: list[tuple[list[str], str, str]] = []
        self._verbatim: dict[str, str] = {}
        self.facts = set[str]()
        """Facts that they ask for."""

    def before(self, question: str, answer: str) -> str | None:
        """Return the id of an earlier duplicate: equal words, or similar words and the same answer."""
        from rapidfuzz import fuzz

        words = tokens(question)
        verbatim = self._verbatim.get(" ".join(words))
        if verbatim is not None:
            return verbatim
        for key in sorted(self._index.query(self._sketch(words, answer))):
            known, known_answer, own = self._known[key]
            if fuzz.ratio(known, words) >= self._least and texts_agree(answer, known_answer):
                return own
        return None

    def add(self, question: str, answer: str, own: str) -> None:
        """Add a question."""
        words = tokens(question)
        self._verbatim.setdefault(" ".join(words), own)
        self._index.insert(len(self._known), self._sketch(words, answer))
        self._known.append((words, answer, own))

    def _sketch(self, words: list[str], answer: str) -> _Sketch:
        """Return a sketch that is half question and half answer, so that other answers give no candidates."""
        said = " ".join(tokens(answer))
        sketch = self._new_sketch(_HASHES, 1)
        sketch.update([*sorted(set(words)), *(f"{said} {number}" for number in range(len(words)))])
        return sketch
