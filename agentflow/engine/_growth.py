"""Growth of trees, round by round, so that timing has no effect on the result."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.engine._proposals import ActionChooser, NodeChoices, PlannerPort
from agentflow.engine._sandboxes import (
    BranchActions,
    BranchResult,
    BranchSandboxes,
    BranchState,
    ExecutorPort,
    TreeSandboxes,
    is_refused,
)
from agentflow.engine._search import GrowthSettings, LevelSearch, OpenNode, Search
from agentflow.errors import ConfigurationError
from agentflow.journal import Page
from agentflow.trace import (
    NO_OUTCOME,
    ActionOutcome,
    Failure,
    Judgement,
    JudgementRequest,
    Node,
    Observation,
    Plan,
    Reply,
    Seed,
    Text,
    Tree,
    Usage,
    Verdict,
    node_id,
    tree_id,
)

_REPAIRABLE = (Verdict.ERROR, Verdict.EMPTY)
"""Verdicts after which a recovery child may follow."""
MIN_REPEATED_CHARS = 80
"""Length from which equal output of two programs is not a coincidence."""


class LevelRecord(Struct, frozen=True):
    """Verdicts of a level, under `level/<depth>`: by rule and by model."""

    others: dict[str, tuple[Verdict, str]]
    """Verdict and reason of each node that is not `new`, by path key."""


class VerdictRecord(Struct, frozen=True):
    """A verdict given by a model, under `node/<path>`."""

    verdict: Verdict
    """The verdict."""
    reason: str
    """Reason for a verdict other than `new`."""
    usage: Usage
    """Usage of the verifier's model."""
    failure: Failure | None = None
    """Failure of the verifier."""
    prompt: str = ""
    """Hash of the last message of its prompt; see `Reply.prompt`."""


NodeObserver: TypeAlias = Callable[[Seed, Node, bool], None]
"""Callback for every completed node, with `True` if its action was recorded before; must not block. See docs/engine.md."""


class VerifierPort(Protocol):
    """Verifier of a grower: `agentflow.team.Verifier`, or any class with these methods. See docs/engine.md."""

    def by_rule(self, request: JudgementRequest) -> Judgement | None:
        """Judge an observation without a model; `None` if `judge` must be called."""
        ...

    async def judge(self, request: JudgementRequest) -> Reply[Judgement]:
        """Judge an observation. A failed call is a failed reply."""
        ...


class _Child(NamedTuple):
    """A child whose action is done and whose verdict is pending."""

    parent: OpenNode
    node: Node
    state: BranchState
    request: JudgementRequest

    @property
    def path(self) -> tuple[int, ...]:
        return (*self.parent.path, self.node.position)


@dataclass(frozen=True, slots=True)
class Grower:
    """Grows any number of trees concurrently; they share the roles and the sandbox pool.

    Example::

        grower = Grower(GrowthSettings(), run="run", planner=team.planner, executor=team.executor,
                        verifier=team.verifier, sandboxes=sandboxes)
        tree = await grower.grow(seed, page)
    """

    settings: GrowthSettings
    """Shape and rules of the trees."""
    _: KW_ONLY
    run: str
    """Key of the run, from which ids are derived."""
    planner: PlannerPort
    """Proposes actions."""
    executor: ExecutorPort
    """Runs actions."""
    verifier: VerifierPort
    """Judges observations."""
    sandboxes: BranchSandboxes
    """Sandboxes of the run."""
    observer: NodeObserver = lambda seed, node, recalled: None
    """Called with every completed node."""
    search: Callable[[], Search] | None = None
    """Makes the search of a tree; `None`: whole levels, as the settings say."""

    async def grow(self, seed: Seed, page: Page) -> Tree:
        """Grow the tree of a seed. Effects recorded on the page are not repeated.

        :raises RunStopped: if the run cannot continue; completed effects are on the page.
        """
        search = (self.search or partial(LevelSearch, self.settings))()
        async with self.sandboxes.reserve(search.width) as sandboxes:
            return await _TreeGrowth(self, seed, page, search, sandboxes).grow()


class _TreeGrowth:
    """Growth of one tree."""

    def __init__(
        self, grower: Grower, seed: Seed, page: Page, search: Search, sandboxes: TreeSandboxes
    ) -> None:
        settings = grower.settings
        self._id = tree_id(grower.run, seed)
        self._seed = seed
        self._page = page
        self._search = search
        self._grower = grower
        self._chooser = ActionChooser(seed, page, settings, grower.planner, grower.sandboxes.tools)
        self._actions = BranchActions(
            page, grower.executor, grower.sandboxes, sandboxes, settings.on_unforkable
        )
        self._rounds = 0
        self._nodes: dict[tuple[int, ...], Node] = {}
        self._stalled: dict[str, str] = {}
        self._drawn: dict[str, int] = {}
        self._reasoning: dict[str, str] = {}
        self._seen: set[bytes] = set()
        self._recalled: set[str] = set()
        self._verifier_usage = Usage()

    async def grow(self) -> Tree:
        observation = Observation((Text(self._seed.content),))
        root = Node(id=node_id(self._id, ()), outcome=ActionOutcome(observation), verdict=Verdict.NEW)
        self._add((), root)
        frontier = [OpenNode((), root, (), BranchState())]
        while frontier and (chosen := self._search.choose(frontier)):
            if any(parent not in frontier for parent, _ in chosen):
                raise ConfigurationError("search: `choose` may only return nodes of the frontier")
            growing = [(parent, count) for parent, count in chosen if count]
            closed = [parent for parent, count in chosen if not count]
            await self._actions.release(*(parent.state for parent in closed))
            paths = {parent.path for parent, _ in chosen}
            frontier = [node for node in frontier if node.path not in paths]
            frontier += await self._next_round(growing) if growing else []
        nodes = tuple(self._nodes[path] for path in sorted(self._nodes, key=lambda path: (len(path), path)))
        return Tree(
            id=self._id,
            seed=self._seed,
            nodes=nodes,
            stalled=self._stalled,
            duplicates=self._chooser.duplicates,
            drawn=self._drawn,
            diverged=diverged_nodes(nodes, self._page),
            usage={"planner": self._chooser.usage, "verifier": self._verifier_usage},
            reasoning=self._reasoning,
        )

    async def _next_round(self, growing: Sequence[tuple[OpenNode, int]]) -> list[OpenNode]:
        """Grow the children of nodes, in path order: choose their actions, run them, judge the results."""
        self._rounds += 1
        parents = [parent for parent, _ in growing]
        chosen = [NodeChoices(path_key(parent.path), parent.steps, count) for parent, count in growing]
        await self._chooser.choose(chosen)
        for parent, choices in zip(parents, chosen, strict=True):
            if choices.reasoning:
                self._reasoning[parent.node.id] = choices.reasoning
            if choices.stalled:
                self._stalled[parent.node.id] = choices.stalled
        families = await together([partial(self._act, *pair) for pair in zip(parents, chosen, strict=True)])
        children = [
            self._child(parent, step, state)
            for parent, results in zip(parents, families, strict=True)
            for step, state in results
        ]
        verdicts = await self._verdicts(children)
        await self._record_round(children, verdicts)
        return [self._complete(child, verdict) for child, verdict in zip(children, verdicts, strict=True)]

    async def _act(self, parent: OpenNode, chosen: NodeChoices) -> list[BranchResult]:
        """Run the chosen actions; return the children, each with its place in the tree."""
        steps: list[Node] = []
        for position, choice in enumerate(chosen.choices):
            path = (*parent.path, position)
            step = replace(
                choice, id=node_id(self._id, path), parent=parent.node.id, depth=len(path), position=position
            )
            steps.append(step)
            if f"act/{path_key(path)}" in self._page:
                self._recalled.add(step.id)
            if (drawn := chosen.drawn[step.call.canonical]) > 1:
                self._drawn[step.id] = drawn
        keys = [path_key((*parent.path, step.position)) for step in steps]
        return await self._actions.act(parent.state, keys, steps)

    def _child(self, parent: OpenNode, step: Node, state: BranchState) -> _Child:
        text = step.observation.text
        computes = self._grower.sandboxes.tools[step.call.tool].stateful
        mark = blake2b(text.encode(), digest_size=16).digest()
        # Many programs print `ok` or `1`, each for its own reason.
        seen = mark in self._seen and not (computes and len(text) < MIN_REPEATED_CHARS)
        self._seen.add(mark)
        request = JudgementRequest(
            seed=self._seed.content, path=parent.steps, step=step, seen_elsewhere=seen, computes=computes
        )
        return _Child(parent, step, state, request)

    async def _verdicts(self, children: Sequence[_Child]) -> list[VerdictRecord]:
        """Judge all children. Verdicts of a model are recorded one by one: the others follow from the page."""
        by_rule = [self._grower.verifier.by_rule(child.request) for child in children]
        pending = [child for child, judgement in zip(children, by_rule, strict=True) if judgement is None]
        answers = iter(await together([partial(self._judge, child) for child in pending]))
        return [
            next(answers)
            if judgement is None
            else VerdictRecord(judgement.verdict, judgement.reason, Usage())
            for judgement in by_rule
        ]

    async def _record_round(self, children: Sequence[_Child], verdicts: Sequence[VerdictRecord]) -> None:
        """Record all verdicts of a round, for readers of the page."""
        key = f"level/{self._rounds}"
        if children and key not in self._page:
            judged = zip(children, verdicts, strict=True)
            others = {
                path_key(child.path): (verdict.verdict, verdict.reason)
                for child, verdict in judged
                if verdict.verdict is not Verdict.NEW
            }
            await self._page.note(key, LevelRecord(others))

    async def _judge(self, child: _Child) -> VerdictRecord:
        ask = partial(self._ask_verifier, child.request)
        return await self._page.once(f"node/{path_key(child.path)}", VerdictRecord, ask)

    async def _ask_verifier(self, request: JudgementRequest) -> VerdictRecord:
        """Ask the verifier. If it fails, the verdict is `error`, so nothing is built on the observation."""
        reply = await self._grower.verifier.judge(request)
        judgement = reply.value
        if judgement is None:
            reason = reply.failure.message if reply.failure else "no answer"
            judgement = Judgement(Verdict.ERROR, f"verifier failed: {reason}")
        return VerdictRecord(judgement.verdict, judgement.reason, reply.usage, reply.failure, reply.prompt)

    def _complete(self, child: _Child, verdict: VerdictRecord) -> OpenNode:
        node = replace(child.node, verdict=verdict.verdict, reason=verdict.reason, usage=verdict.usage)
        self._add(child.path, node)
        self._verifier_usage += verdict.usage
        unjudged = verdict.failure is not None
        is_repairable = node.verdict in _REPAIRABLE and not (
            unjudged or child.parent.is_repairable or is_refused(node)
        )
        return OpenNode(child.path, node, (*child.parent.steps, node), child.state, is_repairable)

    def _add(self, path: tuple[int, ...], node: Node) -> None:
        self._nodes[path] = node
        self._grower.observer(self._seed, node, node.id in self._recalled)


def path_key(path: Sequence[int]) -> str:
    """Return the journal key of a node's path: the positions of the node and its ancestors, as in `0-1-0`."""
    return "-".join(map(str, path)) or "root"


def plans_of(tree: Tree, page: Page) -> dict[str, tuple[Reply[Plan], ...]]:
    """Return the planner's replies at each node by node id; nodes at which it was not asked are absent.

    Example::

        replies = plans_of(tree, page)[tree.nodes[0].id]
    """
    replies_by_node: dict[str, tuple[Reply[Plan], ...]] = {}
    for node, key in _path_keys(tree.nodes).items():
        replies: list[Reply[Plan]] = []
        while (reply := page.recall(f"plan/{key}/{len(replies)}", Reply[Plan])) is not None:
            replies.append(reply)
        if replies:
            replies_by_node[node] = tuple(replies)
    return replies_by_node


def diverged_nodes(nodes: Sequence[Node], page: Page) -> tuple[str, ...]:
    """Return the ids of nodes whose action returned something else when it was replayed."""
    return tuple(node for node, key in _path_keys(nodes).items() if f"diverged/{key}" in page)


def without_observations(tree: Tree) -> Tree:
    """Strip a tree for storage: its page already has the observations, and the seed its content.

    `with_observations` restores them.

    See docs/journal.md and docs/engine.md.
    """
    nodes = tuple(replace(node, outcome=NO_OUTCOME) for node in tree.nodes)
    seed = Seed(index=tree.seed.index, id=tree.seed.id, content="")
    return replace(tree, seed=seed, nodes=nodes)


def with_observations(tree: Tree, seed: Seed, page: Page) -> Tree:
    """Restore a tree that was stripped by `without_observations`.

    See docs/journal.md and docs/engine.md.

    :param page: the seed's page; a node without a record there is left unchanged.
    """
    keys = _path_keys(tree.nodes)
    nodes = list(tree.nodes)
    for index, node in enumerate(nodes):
        if node.parent is None:
            nodes[index] = replace(node, outcome=ActionOutcome(Observation((Text(seed.content),))))
        elif (step := page.recall(f"act/{keys[node.id]}", Node)) is not None:
            nodes[index] = replace(node, outcome=step.outcome)
    diverged = tree.diverged or diverged_nodes(nodes, page)
    return replace(tree, seed=seed, nodes=tuple(nodes), diverged=diverged)


def _path_keys(nodes: Sequence[Node]) -> dict[str, str]:
    """Return the path key of each node by id; parents precede their children."""
    paths: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        paths[node.id] = () if node.parent is None else (*paths[node.parent], node.position)
    return {node: path_key(path) for node, path in paths.items()}
