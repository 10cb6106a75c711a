"""States of a tree's nodes, read in forks while its actions are repeated, and the pairs of nodes that make tasks."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from agentflow.engine import BranchSandboxes, ExecutorPort
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox import Sandbox
from agentflow.tasks._states import State, StateCondition, StateReader
from agentflow.telemetry import silent_spans
from agentflow.trace import Action, Node, Tree, Verdict

MAX_WRONG = 6
"""Maximum number of siblings of a task."""


async def survey(
    tree: Tree, reader: StateReader, executor: ExecutorPort, sandboxes: BranchSandboxes
) -> dict[str, State]:
    """Return the states of nodes by id. Actions are repeated from a fresh sandbox; each state is read in a fork.

    A node is left out, with everything below it, if its action returns something else than in the tree, or if its state can't be
    read.
    """
    states: dict[str, State] = {}

    async def visit(node: Node, sandbox: Sandbox) -> None:
        children = [tree.by_id[child_id] for child_id in tree.children[node.id]]
        reading = await sandbox.fork() if children else sandbox
        try:
            states[node.id] = await reader.read(reading)
        finally:
            if children:
                await reading.close()
        for child in children:
            await descend(child, sandbox)

    async def descend(node: Node, parent: Sandbox) -> None:
        assert node.action is not None
        async with await parent.fork() as branch:
            with silent_spans():
                outcome = await executor.act(branch, node.action)
            if outcome.observation.text != node.observation.text:
                return
            try:
                await visit(node, branch)
            except ToolFailure as failure:
                # Programs in it may have used up its limits, for example.
                if failure.kind is ErrorKind.CANNOT_FORK:
                    raise

    async with sandboxes.reserve(max(node.depth for node in tree.nodes) + 2):
        root = await sandboxes.base.fork()
        try:
            await visit(tree.nodes[0], root)
        except ToolFailure as failure:
            if failure.kind is not ErrorKind.CANNOT_FORK:
                raise
            states = await _survey_by_replay(tree, reader, executor, sandboxes)
        finally:
            await root.close()
    return states


async def _survey_by_replay(
    tree: Tree, reader: StateReader, executor: ExecutorPort, sandboxes: BranchSandboxes
) -> dict[str, State]:
    """Return the states of nodes, each read in a fresh sandbox after repeating all actions that lead to it."""
    states: dict[str, State] = {}
    for node in tree.nodes:
        if node.parent is not None and node.parent not in states:
            continue
        async with await sandboxes.base.fork() as sandbox:
            for step in tree.path(node.id)[1:]:
                assert step.action is not None
                with silent_spans():
                    outcome = await executor.act(sandbox, step.action)
                if (outcome.failure is None) != (step.failure is None):
                    break
            else:
                states[node.id] = await reader.read(sandbox)
    return states


class WrongBranch(Struct, frozen=True):
    """Actions that lead to a state in which a task is not solved."""

    node: str
    """Id of the node that they lead to."""
    actions: tuple[Action, ...]
    """Actions from the initial state on."""


class TaskCandidate(Struct, frozen=True):
    """A node and a descendant of it, with the conditions that tell them apart."""

    start: str
    """Id of the node with the initial state."""
    path: tuple[str, ...]
    """Ids of the nodes from there to the solution, without the first one."""
    conditions: tuple[StateCondition, ...]
    """Conditions that hold in the solution, and neither in the initial state nor in its siblings."""
    wrong: tuple[WrongBranch, ...]
    """Near misses: other branches, and the way half done."""
    before: str
    """Description of the initial state."""


def candidates(
    tree: Tree, states: Mapping[str, State], reader: StateReader, *, most: int, least_steps: int = 1
) -> tuple[TaskCandidate, ...]:
    """Choose pairs of nodes: long ways first, each solution once, and any two share at most half of their conditions."""
    pairs = [pair for pair in _pairs(tree, states, reader) if len(pair.path) >= least_steps]
    pairs.sort(key=lambda candidate: (-min(len(candidate.path), 4), -min(len(candidate.conditions), 4)))
    chosen: list[TaskCandidate] = []
    for candidate in pairs:
        if len(chosen) == most:
            break
        if all(_differ(candidate, other) for other in chosen):
            chosen.append(candidate)
    return tuple(chosen)


def _differ(candidate: TaskCandidate, other: TaskCandidate) -> bool:
    shared = set(candidate.conditions) & set(other.conditions)
    return candidate.path[-1] != other.path[-1] and 2 * len(shared) <= min(
        len(candidate.conditions), len(other.conditions)
    )


def _pairs(tree: Tree, states: Mapping[str, State], reader: StateReader) -> Iterator[TaskCandidate]:
    usable = {
        node.id
        for node in tree.nodes
        if node.id in states and node.verdict is Verdict.NEW and node.failure is None
    }
    for goal in tree.nodes:
        path = tree.path(goal.id)
        for index, start in enumerate(path[:-1]):
            way = path[index + 1 :]
            if not all(node.id in usable for node in (start, *way)) or not reader.is_start(states[start.id]):
                continue
            fixed = reader.repeatable(_actions(path[: index + 1]), _actions(way))
            if fixed and (pair := _pair(tree, states, reader, start, way)):
                yield pair


def _pair(
    tree: Tree, states: Mapping[str, State], reader: StateReader, start: Node, way: Sequence[Node]
) -> TaskCandidate | None:
    """Return the pair if conditions tell the solution from the initial state, its siblings, and the way half done."""
    before, after = states[start.id], states[way[-1].id]
    siblings = [states[node.id] for node in _siblings(tree, way[-1]) if node.id in states]
    conditions = tuple(
        difference
        for difference in reader.differences(before, after)
        if difference.holds(after)
        and not difference.holds(before)
        and not any(difference.holds(state) for state in siblings)
    )
    wrong = tuple(_near_misses(tree, states, start, way))
    if not conditions or any(_solved(conditions, states[miss.node]) for miss in wrong):
        return None
    path = tuple(node.id for node in way)
    return TaskCandidate(start.id, path, conditions, wrong[:MAX_WRONG], reader.describe(before))


def _solved(conditions: Sequence[StateCondition], state: State) -> bool:
    return all(condition.holds(state) for condition in conditions)


def _near_misses(
    tree: Tree, states: Mapping[str, State], start: Node, way: Sequence[Node]
) -> Iterator[WrongBranch]:
    """Yield the siblings of the solution, then the way half done, then other branches from it, the last ones first."""
    for parent, child in reversed([*pairwise((start, *way))]):
        before = _actions(way[: parent.depth - start.depth])
        for node in _siblings(tree, child):
            if node.id in states:
                yield WrongBranch(node.id, (*before, *_actions([node])))
        if parent is not start:
            yield WrongBranch(parent.id, before)


def _siblings(tree: Tree, node: Node) -> list[Node]:
    assert node.parent is not None
    return [tree.by_id[other] for other in tree.children[node.parent] if other != node.id]


def _actions(nodes: Sequence[Node]) -> tuple[Action, ...]:
    return tuple(node.action for node in nodes if node.action is not None)
