"""Growth of one tree, level by level, so that timing has no effect on the result."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.errors import ErrorKind
from agentflow.growth._action_chooser import ActionChooser, ChosenAction, NodeChoices
from agentflow.growth._branch_sandboxes import (
    ActionRunner,
    BranchResult,
    BranchSandboxes,
    BranchState,
    TreeSandboxes,
)
from agentflow.growth._records import ActionRecord, LevelRecord, VerdictRecord, diverged_nodes, path_key
from agentflow.growth._settings import ExecutorPort, GrowthSettings, PlannerPort, VerifierPort
from agentflow.journal import Page
from agentflow.trace import (
    ActionOutcome,
    Judgement,
    JudgementRequest,
    Node,
    Observation,
    Seed,
    Step,
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


NodeObserver: TypeAlias = Callable[[Seed, Node, bool], None]
"""Callback for every completed node, with `True` if its action was recorded before; must not block. See docs/growth.md."""


class OpenNode(Struct):
    """A node whose children may be grown."""

    path: tuple[int, ...]
    """Positions of the node and its ancestors."""
    node: Node
    """The node."""
    steps: tuple[Step, ...]
    """Steps from the root, as shown to the roles."""
    state: BranchState
    """State in which its children act, including one claim."""
    failed: bool = False
    """Its action failed or returned nothing, and may be repaired by a recovery child."""


class _Child(NamedTuple):
    """A child whose action is done and whose verdict is pending."""

    parent: OpenNode
    path: tuple[int, ...]
    choice: ChosenAction
    result: BranchResult
    request: JudgementRequest


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

    async def grow(self, seed: Seed, page: Page) -> Tree:
        """Grow the tree of a seed. Effects recorded on the page are not repeated.

        :raises RunStopped: if the run cannot continue; completed effects are on the page.
        """
        async with self.sandboxes.reserve(self.settings.width) as sandboxes:
            return await _TreeGrowth(self, seed, page, sandboxes).grow()


class _TreeGrowth:
    """Growth of one tree."""

    def __init__(self, grower: Grower, seed: Seed, page: Page, sandboxes: TreeSandboxes) -> None:
        settings = grower.settings
        self._id = tree_id(grower.run, seed)
        self._seed = seed
        self._page = page
        self._sandboxes = sandboxes
        self._grower = grower
        self._chooser = ActionChooser(seed, page, settings, grower.planner, grower.sandboxes.tools)
        self._runner = ActionRunner(
            page, grower.executor, grower.sandboxes, sandboxes, settings.on_unforkable
        )
        self._nodes: list[Node] = []
        self._stalled: dict[str, str] = {}
        self._drawn: dict[str, int] = {}
        self._reasoning: dict[str, str] = {}
        self._seen: set[bytes] = set()
        self._recalled: set[str] = set()
        self._recoveries = settings.recoveries
        self._verifier_usage = Usage()

    async def grow(self) -> Tree:
        root = Node(
            id=node_id(self._id, ()),
            parent=None,
            depth=0,
            position=0,
            intent="",
            action=None,
            observation=Observation((Text(self._seed.content),)),
            verdict=Verdict.NEW,
        )
        self._add(root)
        level = [OpenNode((), root, (), BranchState())]
        while level:
            children = await self._next_level(level)
            level = [each for each in children if self._grows(each)]
            growing = {each.path for each in level}
            await self._sandboxes.release(*(each.state for each in children if each.path not in growing))
        return Tree(
            id=self._id,
            seed=self._seed,
            nodes=tuple(self._nodes),
            stalled=self._stalled,
            duplicates=self._chooser.duplicates,
            drawn=self._drawn,
            diverged=diverged_nodes(self._nodes, self._page),
            usage={"planner": self._chooser.usage, "verifier": self._verifier_usage},
            reasoning=self._reasoning,
        )

    def _grows(self, each: OpenNode) -> bool:
        """Tell whether children are grown. The nodes of a complete level ask in path order: recoveries are limited."""
        if self._grower.settings.children(each.node.depth) == 0:
            return False
        if each.node.verdict is Verdict.NEW:
            return True
        if not each.failed or self._recoveries == 0:
            return False
        self._recoveries -= 1
        return True

    def _wanted(self, each: OpenNode) -> int:
        return 1 if each.failed else self._grower.settings.children(each.node.depth)

    async def _next_level(self, level: Sequence[OpenNode]) -> list[OpenNode]:
        """Grow the children of a level, in path order."""
        chosen = [
            NodeChoices(path_key(each.path), each.steps, self._wanted(each), [], [], []) for each in level
        ]
        await self._chooser.choose(chosen)
        for parent, choices in zip(level, chosen, strict=True):
            if choices.reasoning:
                self._reasoning[parent.node.id] = choices.reasoning
            if choices.stalled:
                self._stalled[parent.node.id] = choices.stalled
        families = await together([partial(self._act, *pair) for pair in zip(level, chosen, strict=True)])
        children = [
            self._child(parent, position, choice, result)
            for parent, choices, results in zip(level, chosen, families, strict=True)
            for position, (choice, result) in enumerate(zip(choices.choices, results, strict=True))
        ]
        verdicts = await self._verdicts(children)
        await self._record_level(children, verdicts)
        return [self._complete(child, verdict) for child, verdict in zip(children, verdicts, strict=True)]

    async def _act(self, parent: OpenNode, chosen: NodeChoices) -> list[BranchResult]:
        keys = [path_key((*parent.path, position)) for position in range(len(chosen.choices))]
        self._recalled.update(key for key in keys if f"act/{key}" in self._page)
        return await self._runner.act(parent.state, keys, chosen.choices)

    def _child(self, parent: OpenNode, position: int, choice: ChosenAction, result: BranchResult) -> _Child:
        outcome = result.record.outcome
        text = outcome.observation.text
        computes = self._grower.sandboxes.tools[choice.action.tool].stateful
        mark = blake2b(text.encode(), digest_size=16).digest()
        # Many programs print `ok` or `1`, each for its own reason.
        seen = mark in self._seen and not (computes and len(text) < MIN_REPEATED_CHARS)
        self._seen.add(mark)
        request = JudgementRequest(
            seed=self._seed.content,
            path=parent.steps,
            step=Step(
                choice.intent,
                choice.action,
                text,
                images=outcome.observation.blobs,
                failure=_reason(outcome),
            ),
            failure=outcome.failure,
            trouble=outcome.trouble,
            seen_elsewhere=seen,
            computes=computes,
        )
        return _Child(parent, (*parent.path, position), choice, result, request)

    async def _verdicts(self, children: Sequence[_Child]) -> list[VerdictRecord]:
        """Judge all children. Verdicts of a model are recorded one by one: the others follow from the page."""
        by_rule = [self._grower.verifier.by_rule(child.request) for child in children]
        pending = [child for child, known in zip(children, by_rule, strict=True) if known is None]
        asked = iter(await together([partial(self._judge, child) for child in pending]))
        return [
            next(asked) if known is None else VerdictRecord(known.verdict, known.reason, Usage())
            for known in by_rule
        ]

    async def _record_level(self, children: Sequence[_Child], verdicts: Sequence[VerdictRecord]) -> None:
        """Record all verdicts of a level for readers of the page."""
        key = f"level/{len(children[0].path)}" if children else ""
        if key and key not in self._page:
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
        record, step = child.result.record, child.request.step
        node = Node(
            id=node_id(self._id, child.path),
            parent=child.parent.node.id,
            depth=len(child.path),
            position=child.path[-1],
            intent=child.choice.intent,
            action=child.choice.action,
            observation=record.outcome.observation,
            verdict=verdict.verdict,
            reason=verdict.reason,
            failure=record.outcome.failure,
            isolation=record.isolation,
            usage=verdict.usage,
        )
        self._add(node, recalled=path_key(child.path) in self._recalled)
        if child.choice.drawn > 1:
            self._drawn[node.id] = child.choice.drawn
        self._verifier_usage += verdict.usage
        unjudged = verdict.failure is not None
        failed = verdict.verdict in _REPAIRABLE and not (
            unjudged or child.parent.failed or _is_refused(record)
        )
        reason = step.failure or (verdict.reason if verdict.verdict is Verdict.ERROR else "")
        judged = replace(step, verdict=verdict.verdict, failure=reason)
        return OpenNode(child.path, node, (*child.parent.steps, judged), child.result.state, failed)

    def _add(self, node: Node, *, recalled: bool = False) -> None:
        self._nodes.append(node)
        self._grower.observer(self._seed, node, recalled)


def _is_refused(record: ActionRecord) -> bool:
    """Tell whether the action was not tried: its path cannot be replayed, so nothing can follow it."""
    failure = record.outcome.failure
    return failure is not None and failure.kind == ErrorKind.CANNOT_FORK


def _reason(outcome: ActionOutcome) -> str:
    failure = outcome.failure
    return outcome.trouble if failure is None else f"{failure.kind}: {failure.message}"
