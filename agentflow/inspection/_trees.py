"""Synthesis runs: trees from the entries of their seeds' pages.

A node path, `spot` in pages and bundles, is the path of a node in its tree: the positions of the node and its ancestors, as in `0-1-2`.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from agentflow._typeguards import is_object
from agentflow.engine import LevelRecord, VerdictRecord, with_observations
from agentflow.inspection._reader import (
    JournalRun,
    call_of,
    json_lines,
    parts_of,
    seed_state,
    short,
    token_rows,
)
from agentflow.inspection._types import (
    AnswerRecord,
    CallDetail,
    CallSummary,
    NodeCitation,
    NodeDetail,
    NodeSummary,
    RunKind,
    SeedAnswer,
    SeedRecord,
    SeedResults,
    SeedSummary,
    SeedTokens,
    TreeSkeleton,
)
from agentflow.journal import JournalReader, Page, StoredRun, StoredSeed
from agentflow.synthesis import SURPLUS, TASKS, SeedResult, pair_of_task, pair_record, start_of
from agentflow.tasks import VerifiableTask
from agentflow.trace import (
    ActionOutcome,
    Failure,
    Node,
    Observation,
    Plan,
    Region,
    Reply,
    Text,
    TokenCall,
    TokenTree,
    Tree,
    Usage,
    Verdict,
    Voice,
    calls_of_answer,
    node_id,
    tree_id,
)

_MAX_PLANNER_CALLS = 16
_OF_NODES: Final = frozenset({"act", "plan", "node", "level", "diverged", "search"})
"""First parts of the keys of entries that are shown with nodes, or are no calls of models."""
_ROLES: Final = {
    "plan": "planner", "node": "verifier", "hidden": "reader", "hidden2": "reader", "evidence": "reader", "others": "reader",
    "recall": "learner", "attempt": "agent",
}  # fmt: skip
"""Roles by the first part of the key; the others are the generator's."""


_MARKS: Final = {
    Verdict.NEW: "n",
    Verdict.REPEATS: "r",
    Verdict.EMPTY: "e",
    Verdict.ERROR: "x",
    Verdict.OFF_TOPIC: "o",
}
_UNJUDGED: Final = "."
_REMEMBERED: Final = 8
_MAX_SCORE: Final = 100.0
"""Highest score of a path."""

T = TypeVar("T", bound=Struct)


class _JudgedLevels(NamedTuple):
    """Levels of a tree that are judged."""

    depths: frozenset[int]
    others: Mapping[str, tuple[Verdict, str]]
    """Verdicts other than `new`, by node path."""


class _SeedEnd(Struct, frozen=True):
    """Figures of a result; its long parts are skipped."""

    pairs: tuple[object, ...] = ()
    tasks: tuple[object, ...] = ()
    failure: str = ""


class TreeRun(JournalRun[SeedResult]):
    """A synthesis."""

    kind = RunKind.SYNTHESIS
    result_type = SeedResult

    def __init__(
        self, id: str, name: str, journal: JournalReader, stored: StoredRun, folder: Path | None
    ) -> None:
        """Read the run that is stored under this number."""
        super().__init__(id, name, journal, stored, folder)
        self._lock = Lock()
        self._judged: dict[int, _JudgedLevels] = {}

    def node_path_of(self, key: str) -> str | None:
        """Return the node path of the node that an entry belongs to."""
        kind, _, rest = key.partition("/")
        if kind in ("act", "node", "diverged"):
            return rest
        if kind == "plan":
            return _node_path(rest.partition("/")[0])
        return None

    def _summaries(self, stored_seeds: Sequence[StoredSeed]) -> list[SeedSummary]:
        numbers = [stored.seed.index for stored in stored_seeds]
        nodes = self._journal.count_entries(self._run, numbers, "act/")
        bodies = self._journal.results(
            self._run, [stored.seed.index for stored in stored_seeds if stored.done]
        )
        ends = {number: msgspec.json.decode(body, type=_SeedEnd) for number, body in bodies.items()}
        summaries: list[SeedSummary] = []
        for stored in stored_seeds:
            seed, end = stored.seed, ends.get(stored.seed.index)
            summaries.append(
                SeedSummary(
                    id=seed.id,
                    index=seed.index,
                    text=short(seed.content),
                    state=seed_state(stored),
                    nodes=nodes.get(seed.index, 0),
                    pairs=None if end is None else len(end.pairs) + len(end.tasks),
                    failure="" if end is None else short(end.failure),
                    task=seed.id,
                )
            )
        return summaries

    def skeleton(self, seed: str) -> TreeSkeleton:
        """Return the shape of a tree from keys alone, and its verdicts from one entry for each level."""
        stored = self.stored(seed)
        cursor = self._journal.news(self._run, "").cursor
        number = stored.seed.index
        node_paths = self._journal.keys_below(self._run, number, "act/")
        sort_node_paths(node_paths)
        planned: list[str] = []
        if not stored.done:
            parents = {parent_of(node_path) for node_path in node_paths}
            plan_keys = self._journal.keys_below(self._run, number, "plan/")
            planned = [
                node_path
                for key in plan_keys
                if (node_path := _node_path(key.partition("/")[0])) not in parents
            ]
            sort_node_paths(planned)
        marks = self._marks(stored, node_paths)
        return TreeSkeleton(
            seed=seed,
            state=seed_state(stored),
            spots=("", *node_paths),
            marks=f"n{marks}",
            planned=tuple(dict.fromkeys(planned)),
            cursor=cursor,
        )

    def _details(self, stored: StoredSeed, node_paths: Sequence[str]) -> dict[str, NodeDetail]:
        records = self._records(stored, node_paths)
        verdicts = self._verdicts(stored, node_paths)
        children = self._child_counts(stored, node_paths)
        tree = tree_id(self.key, stored.seed)
        details: dict[str, NodeDetail] = {}
        for node_path in node_paths:
            path = tuple(map(int, node_path.split("-"))) if node_path else ()
            detail = NodeDetail(spot=node_path, id=node_id(tree, path), children=children.get(node_path, 0))
            if not node_path:
                parts = parts_of(self._observation(stored, node_path))
                details[node_path] = replace(detail, parts=parts, verdict=Verdict.NEW.value)
            elif (record := records.get(node_path)) is not None:
                verdict, reason = verdicts.get(node_path, ("", ""))
                action, outcome = record.action, record.outcome
                details[node_path] = replace(
                    detail,
                    intent=record.intent,
                    tool="" if action is None else action.tool,
                    arguments={} if action is None else action.arguments,
                    parts=parts_of(outcome.observation),
                    verdict=str(verdict),
                    reason=reason,
                    failure=outcome.failure,
                    trouble=outcome.trouble,
                    isolation=record.isolation.value,
                )
        return details

    def children(self, seed: str, node_path: str) -> list[NodeSummary]:
        """Return the children of a node as rows."""
        stored = self.stored(seed)
        number = self._child_counts(stored, [node_path]).get(node_path, 0)
        if not number and node_path and not self._records(stored, [node_path]):
            raise KeyError(node_path)
        return self.nodes(seed, [child_of(node_path, position) for position in range(number)])

    def node(self, seed: str, node_path: str) -> NodeDetail:
        """Return a node with everything that is known about it."""
        stored = self.stored(seed)
        detail = self._details(stored, [node_path])[node_path]
        plans, result = self._plans(stored, node_path), self.result_of(stored)
        tree = None if result is None else result.tree
        detail = replace(
            detail,
            stalled="" if tree is None else tree.stalled.get(detail.id, ""),
            citations=() if result is None else tuple(_citations(result, detail.id)),
            calls=tuple(plans),
        )
        if not node_path:
            return detail
        body = self._journal.bodies(self._run, stored.seed.index, [f"node/{node_path}"]).get(
            f"node/{node_path}"
        )
        chosen = self._plans(stored, parent_of(node_path))
        judged = [] if body is None else [_verdict_call(f"node/{node_path}", body)]
        return replace(
            detail,
            reasoning="\n\n".join(call.reasoning for call in chosen if call.reasoning),
            judge="" if not detail.verdict else "rule" if body is None else "model",
            diverged=bool(self._journal.existing(self._run, stored.seed.index, [f"diverged/{node_path}"])),
            calls=(*chosen, *judged, *plans),
        )

    def _observation(self, stored: StoredSeed, node_path: str) -> Observation:
        if not node_path:
            return Observation((Text(stored.seed.content),))
        return self._records(stored, [node_path])[node_path].outcome.observation

    def call(self, seed: str, key: str) -> CallDetail:
        """Return a model call with its prompt."""
        bodies = self._journal.bodies(self._run, self.stored(seed).seed.index, [key])
        call = _call(key, bodies[key])
        if call is None:
            raise KeyError(key)
        return self.with_prompt(call)

    def calls(self, seed: str) -> list[CallSummary]:
        """Return the calls that belong to no node: those that wrote and checked questions or tasks."""
        number = self.stored(seed).seed.index
        keys = self._journal.keys_below(self._run, number, "")
        call_keys = [key for key in keys if key.partition("/")[0] not in _OF_NODES]
        bodies = self._journal.bodies(self._run, number, call_keys)
        calls = (_call(key, bodies[key]) for key in sorted(bodies))
        return [replace(call, text=short(call.text)) for call in calls if call is not None]

    def results(self, seed: str) -> SeedResults:
        """Return the pairs or tasks of a seed."""
        stored = self.stored(seed)
        shown = SeedResults(seed=seed, text=stored.seed.content, state=seed_state(stored))
        result = self.result_of(stored)
        if result is None:
            return shown
        node_paths = (
            {node.id: node_path for node_path, node in nodes_by_path(result.tree.nodes).items()}
            if result.tree
            else {}
        )
        pairs = [
            SeedAnswer(
                id=pair.id,
                question=pair.question,
                answer=pair.answer,
                kind=pair.kind.value,
                hops=pair.hops,
                steps=tuple(step.step for step in pair.reasoning_steps),
                spots=tuple(node_paths[node] for node in pair.support if node in node_paths),
                pass_rate=None if pair.difficulty is None else pair.difficulty.rate,
            )
            for pair in result.pairs
        ]
        tasks = [
            SeedAnswer(
                id=task.id,
                question=task.instruction,
                answer=task.gold.answer,
                kind=task.kind,
                steps=tuple(
                    f"{action.tool} {msgspec.json.encode(action.arguments).decode()}"
                    for action in task.gold.actions
                ),
                spots=tuple(node_paths[node] for node in task.sources if node in node_paths),
            )
            for task in result.tasks
        ]
        rejected = [
            (draft.question, draft.findings[0].reason if draft.findings else "") for draft in result.rejected
        ]
        used = dict(result.usage)
        for role, more in (result.tree.usage if result.tree else {}).items():
            used[role] = used.get(role, Usage()) + more
        return replace(
            shown, answers=(*pairs, *tasks), rejected=tuple(rejected), usage=used,
            failure=None if not result.failure else Failure("crashed", result.failure),
        )  # fmt: skip

    def _seed_records(self, stored: StoredSeed) -> Iterator[SeedRecord]:
        tree, result = self._tree(stored), self.result_of(stored) or SeedResult()
        is_written = self._written_tasks.__contains__ if self._written_tasks is not None else bool
        tasks = tuple(task for task in result.tasks if is_written(task.id))
        yield SeedRecord(
            tree=replace(tree, nodes=(start_of(tree), *tree.nodes[1:])),
            is_episode=False,
            answers=(*_task_answers(result, tasks), *_pair_answers(result, stored.seed.id, self._surplus)),
            tasks=tasks,
            surplus_tasks=tuple(task.id for task in result.tasks if task not in tasks),
            calls=tuple(self._planner_calls(stored)),
            facts={"kwargs": tree.seed.kwargs, "stalled": tree.stalled, "duplicates": tree.duplicates},
        )

    @cached_property
    def _surplus(self) -> frozenset[str]:
        """Ids of accepted pairs that the files of the run leave out; empty as long as there are no files."""
        return frozenset(line.qa_id for line in self._lines(SURPLUS, _SurplusLine) or ())

    @cached_property
    def _written_tasks(self) -> frozenset[str] | None:
        """Ids of the tasks in the files of the run; `None` as long as there are no files: all."""
        lines = self._lines(TASKS, _TaskLine)
        return None if lines is None else frozenset(line.id for line in lines)

    def _lines(self, name: str, kind: type[T]) -> Iterator[T] | None:
        """Return the lines of a file of the run; `None`: there is none."""
        if self._folder is None or not (self._folder / name).exists():
            return None
        return json_lines(self._folder, name, kind)

    def _tree(self, stored: StoredSeed) -> Tree:
        """Return the whole tree, as far as it is judged."""
        entries = self._journal.entries(self._run, stored.seed.index, "act/")
        result = self.result_of(stored)
        if result is not None and result.tree is not None:
            return with_observations(result.tree, stored.seed, Page(entries))
        records = {key[4:]: msgspec.json.decode(body, type=Node) for key, body in entries.items()}
        node_paths = list(records)
        sort_node_paths(node_paths)
        verdicts, id = self._verdicts(stored, node_paths), tree_id(self.key, stored.seed)
        seen = ActionOutcome(Observation((Text(stored.seed.content),)))
        nodes = [Node(id=node_id(id, ()), outcome=seen, verdict=Verdict.NEW)]
        for node_path in node_paths:
            if node_path in verdicts:
                path, (verdict, reason) = tuple(map(int, node_path.split("-"))), verdicts[node_path]
                position = {"parent": node_id(id, path[:-1]), "depth": len(path), "position": path[-1]}
                node = replace(
                    records[node_path], id=node_id(id, path), verdict=verdict, reason=reason, **position
                )
                nodes.append(node)
        return Tree(id=id, seed=stored.seed, nodes=tuple(nodes))

    def tokens(self, seed: str) -> list[SeedTokens]:
        """Return the rows of exact tokens of the planner's calls."""
        return token_rows(TokenTree(self._planner_calls(self.stored(seed))))

    def _planner_calls(self, stored: StoredSeed) -> Iterator[TokenCall]:
        """Yield the planner's calls with known tokens; their keys are `plan/PATH/NUMBER`."""
        voice = Voice(role="planner", episode=stored.seed.id)
        for key, body in self._journal.entries(self._run, stored.seed.index, "plan/").items():
            if (reply := msgspec.json.decode(body, type=Reply[Plan])).tokens is not None:
                yield from calls_of_answer(key, reply, voice)

    def _records(self, stored: StoredSeed, node_paths: Iterable[str]) -> dict[str, Node]:
        """Return the records of actions by node path. Earlier versions stored the action only in the tree of a finished seed."""
        bodies = self._journal.bodies(
            self._run, stored.seed.index, [f"act/{node_path}" for node_path in node_paths if node_path]
        )
        records = {key[4:]: msgspec.json.decode(body, type=Node) for key, body in bodies.items()}
        if all(record.action is not None for record in records.values()):
            return records
        result = self.result_of(stored)
        finished = nodes_by_path(result.tree.nodes) if result is not None and result.tree is not None else {}
        return {
            node_path: replace(record, action=finished[node_path].action, intent=finished[node_path].intent)
            if node_path in finished
            else record
            for node_path, record in records.items()
        }

    def _child_counts(self, stored: StoredSeed, node_paths: Iterable[str]) -> dict[str, int]:
        """Count children by asking for their keys: positions are consecutive."""
        counts: dict[str, int] = {}
        pending = list(node_paths)
        for begin, size in _windows():
            wanted = {
                f"act/{child_of(node_path, position)}": node_path
                for node_path in pending
                for position in range(begin, begin + size)
            }
            existing = self._journal.existing(self._run, stored.seed.index, list(wanted))
            for key in existing:
                last = int(key.rpartition("-")[2].rpartition("/")[2])
                counts[wanted[key]] = max(counts.get(wanted[key], 0), last + 1)
            pending = [node_path for node_path in pending if counts.get(node_path, 0) == begin + size]
            if not pending:
                return counts
        raise AssertionError

    def _plans(self, stored: StoredSeed, node_path: str) -> list[CallSummary]:
        """Return the planner's calls at a node."""
        keys = [f"plan/{node_path or 'root'}/{ask}" for ask in range(_MAX_PLANNER_CALLS)]
        bodies = self._journal.bodies(self._run, stored.seed.index, keys)
        replies = {key: msgspec.json.decode(bodies[key], type=Reply[Plan]) for key in keys if key in bodies}
        return [call_of(key, "planner", reply) for key, reply in replies.items()]

    def _marks(self, stored: StoredSeed, node_paths: Sequence[str]) -> str:
        """Return a letter for each node, whose node paths are ordered by depth."""
        levels = self._levels(stored)
        if not levels.depths and node_paths:
            verdicts = self._old_verdicts(stored)
            return "".join(
                _MARKS[verdicts[node_path][0]] if node_path in verdicts else _UNJUDGED
                for node_path in node_paths
            )
        judged = bisect_right(node_paths, max(levels.depths, default=0), key=depth_of)
        letters = {node_path: _MARKS[verdict] for node_path, (verdict, _) in levels.others.items()}
        return "".join(map(letters.get, node_paths[:judged], repeat("n"))) + _UNJUDGED * (
            len(node_paths) - judged
        )

    def _verdicts(self, stored: StoredSeed, node_paths: Sequence[str]) -> dict[str, tuple[Verdict, str]]:
        """Return the verdicts on these nodes; those that are not yet judged are left out."""
        levels = self._levels(stored)
        if not levels.depths:
            return dict(self._old_verdicts(stored))
        judged = max(levels.depths)
        return {
            node_path: levels.others.get(node_path, (Verdict.NEW, ""))
            for node_path in node_paths
            if depth_of(node_path) <= judged
        }

    def _levels(self, stored: StoredSeed) -> _JudgedLevels:
        """Return the judged levels. Those of the last seeds are remembered, because a level is written once."""
        number = stored.seed.index
        with self._lock:
            earlier = self._judged.get(number, _JudgedLevels(frozenset(), {}))
        depths = frozenset(map(int, self._journal.keys_below(self._run, number, "level/")))
        if depths == earlier.depths:
            return earlier
        others = dict(earlier.others)
        missing = [f"level/{depth}" for depth in depths - earlier.depths]
        for body in self._journal.bodies(self._run, number, missing).values():
            others |= msgspec.json.decode(body, type=LevelRecord).others
        levels = _JudgedLevels(depths, others)
        with self._lock:
            self._judged.pop(number, None)
            self._judged[number] = levels
            while len(self._judged) > _REMEMBERED:
                del self._judged[next(iter(self._judged))]
        return levels

    def _old_verdicts(self, stored: StoredSeed) -> Mapping[str, tuple[Verdict, str]]:
        """Return the verdicts in a journal of an earlier version: of a finished tree, or those of a model."""
        if (result := self.result_of(stored)) is not None:
            nodes = () if result.tree is None else result.tree.nodes
            return {
                node_path: (node.verdict, node.reason) for node_path, node in nodes_by_path(nodes).items()
            }
        records = self._journal.entries(self._run, stored.seed.index, "node/")
        judged = {key[5:]: msgspec.json.decode(body, type=VerdictRecord) for key, body in records.items()}
        return {node_path: (record.verdict, record.reason) for node_path, record in judged.items()}


def _call(key: str, body: bytes) -> CallSummary | None:
    """Return the model call that an entry records, or `None` if it is something else."""
    kind = key.partition("/")[0]
    if kind == "node":
        return _verdict_call(key, body)
    record: object = msgspec.json.decode(body)
    seconds = None
    if is_object(record) and isinstance(record.get("seconds"), float):
        seconds, record = record["seconds"], record["value"]
    if not is_object(record) or not {"value", "usage"} <= record.keys():
        return None
    return call_of(key, _ROLES.get(kind, "generator"), msgspec.convert(record, Reply[Any]), seconds)


def _verdict_call(key: str, body: bytes) -> CallSummary:
    judged = msgspec.json.decode(body, type=VerdictRecord)
    return CallSummary(
        key=key,
        role=_ROLES["node"],
        text=msgspec.json.encode({"verdict": judged.verdict, "reason": judged.reason}).decode(),
        usage=judged.usage,
        failure=judged.failure,
        prompt=judged.prompt,
    )


def _windows() -> Iterator[tuple[int, int]]:
    """Yield windows of positions: most nodes have few children, some have hundreds."""
    begin, size = 0, 4
    while True:
        yield begin, size
        begin, size = begin + size, 4 * size


def _task_answers(result: SeedResult, tasks: Sequence[VerifiableTask]) -> Iterator[AnswerRecord]:
    """Yield the tasks that are pairs."""
    for task in tasks:
        if (pair := pair_of_task(task, result.trajectories)) is not None:
            yield AnswerRecord(
                id=pair.id,
                question=pair.question,
                answer=pair.answer,
                nodes=pair.path.nodes,
                score=pair.path.score.total / _MAX_SCORE,
                right=True,
                references=(pair.answer,),
            )


def _pair_answers(result: SeedResult, seed: str, surplus: Collection[str]) -> Iterator[AnswerRecord]:
    """Yield the accepted pairs: first those of the file."""
    paths = {path.id: path for path in result.trajectories}
    for pair in sorted(result.pairs, key=lambda pair: pair.id in surplus):
        path = paths[pair.trajectory_id]
        line = msgspec.convert(pair_record(seed, pair, path), PairLine, from_attributes=True)
        yield line.answer_record(path.nodes, right=pair.id not in surplus)


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


class PairLine(Struct):
    """Line of `synthesized_qa.jsonl`, as far as an answer needs it. Other systems write only some fields."""

    question: str
    answer: str
    trajectory_id: str
    source_id: str
    qa_id: str
    reasoning_steps: list[_ReasoningLine] = field(default_factory=list[_ReasoningLine])
    metadata: _PairDetails = field(default_factory=_PairDetails)

    def answer_record(self, nodes: tuple[str, ...], *, right: bool) -> AnswerRecord:
        """Return the pair as an answer.

        :param nodes: ids of the nodes of its path, wandering included.
        :param right: it is in `synthesized_qa.jsonl`, not in `surplus.jsonl`.
        """
        about = self.metadata
        cited = [step.citations for step in self.reasoning_steps if step.citations]
        quotes = tuple(span.quote for spans in cited for span in spans if span.quote)
        return AnswerRecord(
            id=self.qa_id,
            question=self.question,
            answer=self.answer,
            nodes=tuple(about.path or nodes),
            whole_path=nodes if about.path else (),
            documents=tuple(document.id for document in about.documents),
            score=None if about.score is None else about.score / _MAX_SCORE,
            right=right,
            surplus=not right,
            is_shown=all(any(span.region is None for span in spans) for spans in cited),
            references=(self.answer,),
            quotes=quotes if about.path else (),
        )


class _SurplusLine(Struct):
    qa_id: str


class _TaskLine(Struct):
    id: str


def _citations(result: SeedResult, node: str) -> Iterable[NodeCitation]:
    for pair in result.pairs:
        for step in pair.reasoning_steps:
            for span in step.citations:
                if span.node_id == node:
                    yield NodeCitation(
                        pair=pair.id,
                        question=pair.question,
                        quote=span.quote,
                        start=span.start,
                        end=span.end,
                        image=span.image,
                        region=span.region,
                    )
    for task in result.tasks:
        if node in task.sources and "region" in task.metadata:
            yield NodeCitation(
                pair=task.id,
                question=task.instruction,
                quote=task.gold.answer,
                start=0,
                end=0,
                image=task.metadata.get("image", ""),
                region=msgspec.convert(task.metadata["region"], Region),
            )


def _node_path(key: str) -> str:
    return "" if key == "root" else key


class _PlacedNode(Protocol):
    """Node of a tree, with or without its content."""

    @property
    def id(self) -> str: ...

    @property
    def parent(self) -> str | None: ...

    @property
    def position(self) -> int: ...


N = TypeVar("N", bound=_PlacedNode)


def nodes_by_path(nodes: Sequence[N]) -> dict[str, N]:
    """Return the nodes by node path; parents precede their children. See docs/journal.md."""
    node_paths: dict[str, str] = {}
    for node in nodes:
        node_paths[node.id] = "" if node.parent is None else child_of(node_paths[node.parent], node.position)
    return {node_paths[node.id]: node for node in nodes}


def sort_node_paths(node_paths: list[str]) -> None:
    """Sort by depth, then by positions."""
    together = "-".join(node_paths)
    if len(together) == 2 * together.count("-") + 1:
        # All positions have one digit: the order of texts is that of numbers, and a longer text is deeper.
        node_paths.sort()
        node_paths.sort(key=len)
    else:
        node_paths.sort(key=lambda node_path: [*map(int, node_path.split("-"))])
        node_paths.sort(key=depth_of)


def depth_of(node_path: str) -> int:
    """Return the number of actions on the path to a node."""
    return node_path.count("-") + 1 if node_path else 0


def child_of(node_path: str, position: int) -> str:
    """Return the node path of a child."""
    return f"{node_path}-{position}" if node_path else str(position)


def parent_of(node_path: str) -> str:
    """Return the node path of the parent."""
    return node_path.rpartition("-")[0]
