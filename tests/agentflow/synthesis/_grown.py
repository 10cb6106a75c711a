"""Grown trees, pages and scripted generators for tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentflow.facts import ExtractedFact, ValueKind
from agentflow.journal import Page
from agentflow.testing import ScriptedRoles
from agentflow.trajectory import (
    Action,
    Failure,
    Node,
    Observation,
    Seed,
    Text,
    Tree,
    Usage,
    Verdict,
    node_id,
    tree_id,
)

SEED = Seed(index=0, id="seed_001", content="Explore the harbour of Brenn")
KEEPER = "The lighthouse of Brenn was built in 1874. Its first keeper was Ada Holm."
HOLM = "Ada Holm also kept the tide tables of the port. She was born in Vessel Bay in 1841."
BAY = "Vessel Bay has a school of navigation, founded by Jorun Pike. It stands 12 km from Brenn."
FACTS = (KEEPER, HOLM, BAY)


def node(
    tree: str,
    path: Sequence[int],
    text: str,
    *,
    tool: str = "rag_search",
    verdict: Verdict = Verdict.NEW,
    arguments: Mapping[str, Any] | None = None,
    failure: Failure | None = None,
) -> Node:
    """A node at that path."""
    return Node(
        id=node_id(tree, path),
        parent=node_id(tree, path[:-1]),
        depth=len(path),
        position=path[-1],
        intent=f"look at {path}",
        action=Action(tool, dict(arguments or {"query": text[:20]})),
        observation=Observation((Text(text),)),
        verdict=verdict,
        failure=failure,
    )


def tree(
    texts: Mapping[tuple[int, ...], str | Node],
    seed: Seed = SEED,
    *,
    stalled: Mapping[str, str] | None = None,
) -> Tree:
    """A tree whose nodes say these texts, by path."""
    own = tree_id("run", seed)
    root = Node(
        id=node_id(own, ()),
        parent=None,
        depth=0,
        position=0,
        intent="",
        action=None,
        observation=Observation((Text(seed.content),)),
        verdict=Verdict.NEW,
    )
    ordered = sorted(texts.items(), key=lambda entry: (len(entry[0]), tuple(entry[0])))
    nodes = [text if isinstance(text, Node) else node(own, path, text) for path, text in ordered]
    return Tree(
        id=own,
        seed=seed,
        nodes=(root, *nodes),
        stalled=dict(stalled or {}),
        duplicates=2,
        usage={"planner": Usage(3, 300, 30)},
    )


def chain(facts: Sequence[str] = FACTS, seed: Seed = SEED) -> Tree:
    """A tree that is one path."""
    return tree({(0,) * depth: fact for depth, fact in enumerate(facts, 1)}, seed)


STATEMENTS = (
    ExtractedFact(
        "lighthouse of Brenn",
        "kind",
        "lighthouse",
        ValueKind.TEXT,
        "The lighthouse of Brenn was built in 1874.",
    ),
    ExtractedFact(
        "lighthouse of Brenn",
        "year of construction",
        "1874",
        ValueKind.DATE,
        "The lighthouse of Brenn was built in 1874.",
    ),
    ExtractedFact(
        "lighthouse of Brenn", "first keeper", "Ada Holm", ValueKind.ENTITY, "Its first keeper was Ada Holm."
    ),
    ExtractedFact("Ada Holm", "birthplace", "Vessel Bay", ValueKind.ENTITY, "She was born in Vessel Bay"),
    ExtractedFact("Ada Holm", "year of birth", "1841", ValueKind.DATE, "in Vessel Bay in 1841."),
    ExtractedFact(
        "Vessel Bay",
        "founder of the school",
        "Jorun Pike",
        ValueKind.ENTITY,
        "a school of navigation, founded by Jorun Pike.",
    ),
    ExtractedFact(
        "Vessel Bay",
        "distance from the port",
        "12",
        ValueKind.NUMBER,
        "It stands 12 km from Brenn.",
        unit="km",
    ),
)
"""Statements of `FACTS`."""


def failing_on(kind: str, failure: Failure) -> Callable[[object], Failure | None]:
    """Return a function by which requests of this type fail; all do without a type."""
    return lambda request: failure if not kind or type(request).__name__ == kind else None


def roles(**settings: Any) -> ScriptedRoles:  # noqa: ANN401 - those of `ScriptedRoles`
    """Roles that know what `FACTS` state."""
    return ScriptedRoles(STATEMENTS, **settings)


def page(entries: Mapping[str, bytes] | None = None) -> Page:
    """Return a page that is not stored."""
    return Page(entries)
