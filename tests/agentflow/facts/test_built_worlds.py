import pytest

from agentflow.facts import (
    AliasJudgement,
    ChunkExtraction,
    EntityValue,
    ExtractedFact,
    Extraction,
    FactStore,
    NumberValue,
    StoreBuild,
    Value,
    build_store,
    chunks_of,
    contradictions,
    kind_of,
    merge_aliases,
    passages_for,
    show_value,
)
from agentflow.testing import FactWorld, fact_world
from agentflow.trajectory import Node
from tests.agentflow.facts._observations import extracted, observed

SEEDS = range(6)


def read(world: FactWorld) -> tuple[list[Node], StoreBuild]:
    """Return the nodes of a world and the store that is built from correct reports about its sentences."""
    nodes = [observed(page.text, page.node) for page in world.documents]
    texts = {page.node: page.text for page in world.documents}
    names = {name: alias for alias, name in world.aliases.items()}
    reports: list[ChunkExtraction] = []
    for node in nodes:
        told: list[tuple[int, ExtractedFact]] = []
        for fact in world.store.facts:
            for span in fact.spans:
                quote = texts[node.id][span.start : span.end]
                if span.node != node.id or quote.startswith("|"):
                    continue
                subject = fact.subject if fact.subject in quote else names[fact.subject]
                time = show_value(fact.time) if fact.time else ""
                kind = kind_of(fact.value)
                told.append(
                    (
                        span.start,
                        ExtractedFact(subject, fact.relation, show_value(fact.value), kind, quote, time=time),
                    )
                )
        for chunk in chunks_of(node.observation.text):
            facts = tuple(
                fact for start, fact in told if chunk.start <= start and start + len(fact.quote) <= chunk.end
            )
            reports.append(ChunkExtraction(node.id, chunk, Extraction(facts)))
    return nodes, build_store(nodes, reports)


def content(store: FactStore, world: FactWorld) -> dict[tuple[object, ...], set[tuple[str, int]]]:
    """Return the nodes and ends of the places of each fact by its content."""
    return {
        (world.aliases.get(fact.subject, fact.subject), fact.relation, _plain(fact.value), fact.time): {
            (span.node, round((span.start + span.end) / 20)) for span in fact.spans
        }
        for fact in store.facts
    }


def _plain(value: Value) -> object:
    return (value.amount, value.unit[:1]) if isinstance(value, NumberValue) else show_value(value)


def truth_members(world: FactWorld) -> list[tuple[str, ...]]:
    """Return the members of the closed sets of a world."""
    return [one.members for one in world.store.sets.values()]


@pytest.mark.promise("facts:building:worlds")
def test_the_store_of_a_world_is_rebuilt_from_its_reports_and_tables() -> None:
    for seed in SEEDS:
        world = fact_world(seed)
        nodes, build = read(world)
        assert build.faults == ()
        asked = [{pair.first, pair.second} for pair in build.pairs]
        for alias, name in world.aliases.items():
            used = any(fact.subject == alias for fact in build.store.facts)
            assert ({alias, name} in asked) is used
        judged = AliasJudgement(
            tuple(
                world.aliases.get(pair.first, pair.first) == world.aliases.get(pair.second, pair.second)
                for pair in build.pairs
            )
        )
        store = merge_aliases(build, judged).store
        for alias, name in world.aliases.items():
            assert store.canonical(alias) in (name, alias)
        assert content(store, world) == content(world.store, world)
        assert [(one.description, one.members) for one in store.sets.values()] == [
            ("lighthouses", *truth_members(world))
        ]
        late = world.store.by_id[world.late]
        (again,) = store.of(late.subject, late.relation)
        assert any(span.start >= 90_000 for span in again.spans)
        assert {fact.id for group in contradictions(store.facts) for fact in group} >= {
            fact.id
            for fact in store.facts
            if fact.relation == "height" and len(store.of(fact.subject, "height")) > 1
        }
        assert len(nodes) == len(world.documents)


@pytest.mark.promise("facts:passages:hidden")
def test_a_fact_of_a_world_is_hidden_in_all_its_sentences_and_no_other() -> None:
    world = fact_world(1)
    nodes, build = read(world)
    for fact in build.store.facts[::5]:
        spans = {(span.node, span.start, span.end) for span in fact.spans}
        for passage in passages_for(
            build.store, nodes, [fact], hidden=[fact], support=[node.id for node in nodes], budget=4_000_000
        ):
            page = next(node for node in nodes if node.id == passage.node).observation.text
            for node, start, end in spans:
                assert node != passage.node or page[start:end] not in passage.text, (fact, page[start:end])
            for other in build.store.facts:
                if (other.subject, other.value) == (fact.subject, fact.value) or other.id == fact.id:
                    continue
                for span in other.spans:
                    if span.node == passage.node and (span.node, span.start, span.end) not in spans:
                        shown = page[span.start : span.end] in passage.text
                        assert shown or isinstance(fact.value, EntityValue | NumberValue), (fact, other)


@pytest.mark.promise("facts:contradictions")
@pytest.mark.parametrize(
    ("lines", "groups"),
    [
        (["Brenn | height | n 41 m | 41 m", "Brenn | height | n 42 m | 42 m"], 1),
        (["Brenn | height | n 41 m | 41 m", "Brenn | height | n 4100 cm | 4100 cm"], 0),
        (["Brenn | built in | d 1841 | 1841", "Brenn | built in | d 1842 | 1842"], 1),
        (["Brenn | built in | d 1841 | 1841", "Brenn | built in | d 12 May 1841 | 12 May 1841"], 0),
        (["Brenn | built in | d 12 May 1841 | 12 May 1841", "Brenn | built in | d 13 May 1841 | 13 May 1841", "Brenn | built in | d 1841 | 1841"], 1),
        (["Brenn | birthplace | e Ossel | Ossel", "Brenn | birthplace | e Skarra | Skarra"], 1),
        (["Brenn | keeper | e Ada Holm | Ada Holm", "Brenn | keeper | e Bram Oster | Bram Oster"], 0),
        (["Brenn | kind | t island | island", "Brenn | kind | t town | town"], 0),
    ],
)  # fmt: skip
def test_facts_that_cannot_all_be_true_are_found(lines: list[str], groups: int) -> None:
    nodes = [
        observed(f"Brenn: {line.split(' | ')[-1]}.", f"node_{index}") for index, line in enumerate(lines)
    ]
    build = build_store(nodes, [extracted(node, line) for node, line in zip(nodes, lines, strict=True)])
    assert not build.faults
    assert len(contradictions(build.store.facts)) == groups


def test_a_relation_with_one_value_elsewhere_has_one_value() -> None:
    nodes = [
        observed(f"{name} is kept by {keeper}.", f"node_{index}")
        for index, (name, keeper) in enumerate(
            [("Ossel", "Ada Holm"), ("Skarra", "Bram Oster"), ("Brenn", "Ada Holm"), ("Brenn", "Nils Quist")]
        )
    ]
    said = [node.observation.text.rstrip(".").split(" is kept by ") for node in nodes]
    reports = [
        extracted(node, f"{name} | keeper | e {keeper} | is kept by {keeper}")
        for node, (name, keeper) in zip(nodes, said, strict=True)
    ]
    (group,) = contradictions(build_store(nodes, reports).store.facts)
    assert [show_value(fact.value) for fact in group] == ["Ada Holm", "Nils Quist"]
    # An observation that states several shows that the relation has several.
    both = observed("Tollen is kept by Ada Holm and Nils Quist.", "node_9")
    reports.append(
        extracted(
            both,
            "Tollen | keeper | e Ada Holm | kept by Ada Holm",
            "Tollen | keeper | e Nils Quist | kept by Ada Holm and Nils Quist",
        )
    )
    assert contradictions(build_store([*nodes, both], reports).store.facts) == ()
