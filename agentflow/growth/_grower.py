"""Growing one tree: level by level, so that timing changes nothing."""

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.growth._acting import Acted, Arrival, Doer
from agentflow.growth._asking import Asker, Choice, Chosen
from agentflow.growth._branch_sandboxes import Greenhouse, Place, Plot
from agentflow.growth._node_path import spot, spots_of
from agentflow.growth._ports import Executor, Planner, Verifier
from agentflow.growth._settings import GrowthSettings
from agentflow.journal import Page
from agentflow.trajectory import (
    Failure,
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

__all__ = ["Grower", "Observer", "silent"]


TELLING = 80
"""From how many characters on the same output of two programs is no accident."""


class Observer(Protocol):
    """Is told of every node as it stands; must not block."""

    def __call__(self, seed: Seed, node: Node) -> None:
        """A node is there: grown now, or before the last crash."""
        ...


def silent(seed: Seed, node: Node) -> None:
    """An observer that doesn't care."""


class Settled(Struct, frozen=True):
    """A verdict, as it stands in the journal."""

    verdict: Verdict
    """The word."""
    reason: str
    """Why it is not `new`."""
    usage: Usage
    """What it took."""
    failure: Failure | None = None
    """Why the verifier's word could not be had."""


class Sprout(Struct):
    """A node of the level that grows now, with the place it is at."""

    path: tuple[int, ...]
    """Positions from the root."""
    node: Node
    """What it is."""
    steps: tuple[Step, ...]
    """What was done up to it, as the roles see it."""
    place: Place
    """Where its children act; it has one claim on it."""


class Grower:
    """Grows trees, any number at once: all that they share is the roles and the greenhouse, each with its own limits."""

    def __init__(
        self,
        settings: GrowthSettings,
        *,
        run: str,
        planner: Planner,
        executor: Executor,
        verifier: Verifier,
        greenhouse: Greenhouse,
        observer: Observer = silent,
    ) -> None:
        """Describe it.

        :param run: the run's key, from which ids follow.
        :param observer: is told of every node.
        """
        self._settings = settings
        self._run = run
        self._planner = planner
        self._executor = executor
        self._verifier = verifier
        self._greenhouse = greenhouse
        self._observer = observer

    async def grow(self, seed: Seed, page: Page) -> Tree:
        """The tree of that seed; what stands on its page is not done again.

        :raises RunStopped: if the run can't go on; the page holds what was done.
        """
        async with self._greenhouse.plot(self._settings.width) as plot:
            asker = Asker(seed, page, self._settings, self._planner, self._greenhouse.tools)
            doer = Doer(page, self._executor, self._greenhouse, plot, self._settings.on_unforkable)
            growing = _Growing(tree_id(self._run, seed), seed, page, asker, doer, self)
            return await growing.grow(plot)

    @property
    def settings(self) -> GrowthSettings:
        """How trees grow."""
        return self._settings

    def judge(self, request: JudgementRequest) -> Settled | None:
        """The verifier's word, if it need not ask anybody."""
        judgement = self._verifier.by_rule(request)
        return None if judgement is None else Settled(judgement.verdict, judgement.reason, Usage())

    async def ask(self, request: JudgementRequest) -> Settled:
        """The verifier's word. If it can't be had, nothing is built on the observation."""
        reply = await self._verifier.judge(request)
        judgement = reply.value
        if judgement is None:
            why = reply.failure.message if reply.failure else "no answer"
            judgement = Judgement(Verdict.ERROR, f"verifier failed: {why}")
        return Settled(judgement.verdict, judgement.reason, reply.usage, reply.failure)

    def tell(self, seed: Seed, node: Node) -> None:
        """Tell whoever watches."""
        self._observer(seed, node)

    def computes(self, tool: str) -> bool:
        """The tool runs what it is given."""
        return self._greenhouse.tools[tool].stateful


class _Growing:
    """One tree while it grows."""

    def __init__(self, tree: str, seed: Seed, page: Page, asker: Asker, doer: Doer, grower: Grower) -> None:
        self._id = tree
        self._seed = seed
        self._page = page
        self._asker = asker
        self._doer = doer
        self._grower = grower
        self._nodes: list[Node] = []
        self._stalled: dict[str, str] = {}
        self._drawn: dict[str, int] = {}
        self._seen: set[bytes] = set()
        self._judging = Usage()

    async def grow(self, plot: Plot) -> Tree:
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
        level = [Sprout((), root, (), Place())]
        while level:
            level = await self._next(level)
            ended = [sprout.place for sprout in level if not self._grows(sprout.node)]
            await plot.release(*ended)
            level = [sprout for sprout in level if self._grows(sprout.node)]
        return self._tree()

    def _grows(self, node: Node) -> bool:
        return node.verdict is Verdict.NEW and self._grower.settings.children(node.depth) > 0

    async def _next(self, level: Sequence[Sprout]) -> list[Sprout]:
        """The children of a level, in path order."""
        chosen = [self._chosen(sprout) for sprout in level]
        await self._asker.choose(chosen)
        for sprout, node in zip(level, chosen, strict=True):
            if node.stalled:
                self._stalled[sprout.node.id] = node.stalled
        families = await together([partial(self._act, *pair) for pair in zip(level, chosen, strict=True)])
        children: list[Sprout] = []
        requests: list[JudgementRequest] = []
        for parent, node, arrivals in zip(level, chosen, families, strict=True):
            for position, (choice, arrival) in enumerate(zip(node.choices, arrivals, strict=True)):
                requests.append(self._request(parent, choice, arrival.acted))
                child = self._child(parent, position, choice, arrival)
                if choice.drawn > 1:
                    self._drawn[child.node.id] = choice.drawn
                children.append(child)
        verdicts = await self._verdicts(children, requests)
        return [self._settle(child, settled) for child, settled in zip(children, verdicts, strict=True)]

    async def _verdicts(
        self, children: Sequence[Sprout], requests: Sequence[JudgementRequest]
    ) -> list[Settled]:
        """The word on each. What follows from what stands on the page already is not written there."""
        settled = [self._grower.judge(request) for request in requests]
        asking = [index for index, known in enumerate(settled) if known is None]
        answers = iter(
            await together([partial(self._judge, children[index], requests[index]) for index in asking])
        )
        return [next(answers) if known is None else known for known in settled]

    def _chosen(self, sprout: Sprout) -> Chosen:
        wanted = self._grower.settings.children(sprout.node.depth)
        return Chosen(spot(sprout.path), sprout.steps, wanted, [], [], [])

    async def _act(self, parent: Sprout, chosen: Chosen) -> list[Arrival]:
        spots = [spot((*parent.path, position)) for position in range(len(chosen.choices))]
        return await self._doer.act(parent.place, spots, chosen.choices)

    def _request(self, parent: Sprout, choice: Choice, acted: Acted) -> JudgementRequest:
        outcome = acted.outcome
        words = outcome.observation.text
        computes = self._grower.computes(choice.action.tool)
        mark = blake2b(words.encode(), digest_size=16).digest()
        # Many programs print `ok` or `1`, each for a reason of its own.
        seen = mark in self._seen and not (computes and len(words) < TELLING)
        self._seen.add(mark)
        return JudgementRequest(
            seed=self._seed.content,
            path=parent.steps,
            step=Step(choice.intent, choice.action, words, images=outcome.observation.blobs),
            failure=outcome.failure,
            trouble=outcome.trouble,
            seen_elsewhere=seen,
            computes=computes,
        )

    def _child(self, parent: Sprout, position: int, choice: Choice, arrival: Arrival) -> Sprout:
        path = (*parent.path, position)
        outcome = arrival.acted.outcome
        node = Node(
            id=node_id(self._id, path),
            parent=parent.node.id,
            depth=len(path),
            position=position,
            intent=choice.intent,
            action=choice.action,
            observation=outcome.observation,
            verdict=Verdict.NEW,
            failure=outcome.failure,
            isolation=arrival.acted.isolation,
        )
        return Sprout(path, node, parent.steps, arrival.place)

    async def _judge(self, child: Sprout, request: JudgementRequest) -> Settled:
        key = f"node/{spot(child.path)}"
        return await self._page.once(key, Settled, partial(self._grower.ask, request))

    def _settle(self, child: Sprout, settled: Settled) -> Sprout:
        node = replace(child.node, verdict=settled.verdict, reason=settled.reason, usage=settled.usage)
        self._add(node)
        self._judging += settled.usage
        assert node.action is not None
        step = Step(
            node.intent, node.action, node.observation.text, node.verdict, images=node.observation.blobs
        )
        return Sprout(child.path, node, (*child.steps, step), child.place)

    def _add(self, node: Node) -> None:
        self._nodes.append(node)
        self._grower.tell(self._seed, node)

    def _tree(self) -> Tree:
        spots = spots_of(self._nodes)
        nodes = tuple(
            replace(node, diverged=True) if f"diverged/{spots[node.id]}" in self._page else node
            for node in self._nodes
        )
        usage = {"planner": self._asker.usage, "verifier": self._judging}
        return Tree(
            id=self._id,
            seed=self._seed,
            nodes=nodes,
            stalled=self._stalled,
            duplicates=self._asker.duplicates,
            drawn=self._drawn,
            usage=usage,
        )
