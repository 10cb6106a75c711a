"""Facts of a tree: extracted from all observations with evidence, and merged."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from agentflow.actors import together
from agentflow.facts import (
    AliasJudgement,
    AliasRequest,
    ChunkExtraction,
    Extraction,
    ExtractionRequest,
    FactStore,
    StoreBuild,
    TextChunk,
    build_store,
    chunks_of,
    contradictions,
    merge_aliases,
)
from agentflow.synthesis._journalled_calls import JournalledCalls
from agentflow.synthesis._question_checks import FactsOfTree
from agentflow.synthesis._roles import GeneratorPort
from agentflow.synthesis._worker_thread import in_worker_thread
from agentflow.text import contains_phrase
from agentflow.trajectory import Node, Reply, Tree, Verdict


async def extract_facts(
    tree: Tree, seed_description: str, generator: GeneratorPort, calls: JournalledCalls
) -> tuple[FactsOfTree, dict[str, int]]:
    """Extract the facts of a tree, one model call per chunk of an observation; return them and the number of faults by kind."""
    nodes = [node for node in tree.nodes if node.action is not None and node.verdict is Verdict.NEW]
    extractor = _Extractor(tree, seed_description, generator, calls)
    found = await together(partial(extractor.extract, node) for node in nodes)
    build, known = await in_worker_thread(
        partial(_build, tree, nodes, [each for own in found for each in own])
    )
    if known is None:
        build = await _merge(build, generator, calls)
        known = await in_worker_thread(partial(_known, tree, nodes, build.store))
    return known, dict(Counter(str(fault.kind) for fault in build.faults))


def _build(
    tree: Tree, nodes: Sequence[Node], extractions: Sequence[ChunkExtraction]
) -> tuple[StoreBuild, FactsOfTree | None]:
    """Return the build of a tree, and its facts unless names have to be compared first."""
    build = build_store(nodes, extractions)
    return build, None if build.pairs else _known(tree, nodes, build.store)


def _known(tree: Tree, nodes: Sequence[Node], store: FactStore) -> FactsOfTree:
    return FactsOfTree(
        store=store,
        nodes=tuple(nodes),
        contradicted=frozenset(fact.id for group in contradictions(store.facts) for fact in group),
        seed_names=_seed_names(tree, nodes, store),
    )


class _Extractor:
    def __init__(
        self, tree: Tree, seed_description: str, generator: GeneratorPort, calls: JournalledCalls
    ) -> None:
        self._tree = tree
        self._seed_description = seed_description
        self._generator = generator
        self._calls = calls

    async def extract(self, node: Node) -> list[ChunkExtraction]:
        """Extract the facts of an observation; a chunk whose call failed has none."""
        chunks = chunks_of(node.observation.text) or (TextChunk(0, 0, ""),)
        if not node.observation.text and not node.observation.blobs:
            return []
        found = await together(partial(self._ask, node, chunk, number) for number, chunk in enumerate(chunks))
        return [
            ChunkExtraction(node.id, chunk, each)
            for chunk, each in zip(chunks, found, strict=True)
            if each is not None
        ]

    async def _ask(self, node: Node, chunk: TextChunk, number: int) -> Extraction | None:
        assert node.action is not None  # evidence comes from actions
        request = ExtractionRequest(
            seed=self._tree.seed.content,
            kwargs=self._tree.seed.kwargs,
            seed_description=self._seed_description,
            action=node.action,
            text=chunk.shown,
            start=chunk.start,
            length=len(node.observation.text),
            images=node.observation.blobs if number == 0 else (),
        )
        return await self._calls.ask(
            f"facts/{node.id}/{number}",
            Reply[Extraction],
            "generator",
            partial(self._generator.extract, request),
        )


async def _merge(build: StoreBuild, generator: GeneratorPort, calls: JournalledCalls) -> StoreBuild:
    """Have a model decide which doubtful names mean the same thing; if the call fails, none does."""
    request = AliasRequest(pairs=build.pairs)
    judgement = await calls.ask(
        "aliases", Reply[AliasJudgement], "generator", partial(generator.compare_names, request)
    )
    return build if judgement is None else await in_worker_thread(partial(merge_aliases, build, judgement))


def _seed_names(tree: Tree, nodes: Sequence[Node], store: FactStore) -> tuple[str, ...]:
    """Return the entities that the seed names; if it names none, those that the first observations state something about."""
    seed = tree.seed.content
    names = dict.fromkeys(fact.subject for fact in store.facts)
    named = [name for name in names if contains_phrase(seed, name)]
    named += [
        own for alias, own in store.aliases.items() if own not in named and contains_phrase(seed, alias)
    ]
    if named:
        return tuple(dict.fromkeys(named))
    depths = {node.id: node.depth for node in nodes}
    stated = [(depths[span.node], fact.subject) for fact in store.facts for span in fact.spans]
    stated += [
        (depths[span.node], member)
        for one in store.sets.values()
        for span in one.spans
        for member in one.members
    ]
    first = min((depth for depth, _ in stated), default=0)
    return tuple(dict.fromkeys(name for depth, name in stated if depth == first))
