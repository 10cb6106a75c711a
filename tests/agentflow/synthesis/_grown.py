"""Grown trees, pages and scripted generators for tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from agentflow.journal import Page
from agentflow.questions import Draft, DraftKind, DraftStep, ShownDocument, quoted
from agentflow.testing import ScriptedRoles
from agentflow.trace import (
    Action,
    ActionOutcome,
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
from agentflow.values import ValueKind

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
        outcome=ActionOutcome(Observation((Text(text),)), failure),
        verdict=verdict,
    )


def tree(
    texts: Mapping[tuple[int, ...], str | Node],
    seed: Seed = SEED,
    *,
    stalled: Mapping[str, str] | None = None,
) -> Tree:
    """A tree whose nodes say these texts, by path."""
    own = tree_id("run", seed)
    seen = ActionOutcome(Observation((Text(seed.content),)))
    root = Node(id=node_id(own, ()), outcome=seen, verdict=Verdict.NEW)
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


BUILT = DraftStep(
    statement="The lighthouse of Brenn was built in 1874.",
    quote="The lighthouse of Brenn was built in 1874.",
    value="1874",
)
FIRST = DraftStep(
    statement="The first keeper was Ada Holm.", quote="Its first keeper was Ada Holm.", value="Ada Holm"
)
BORN = DraftStep(
    statement="She was born in Vessel Bay in 1841.", quote="She was born in Vessel Bay in 1841.", value="1841"
)
SCHOOL = DraftStep(
    statement="Vessel Bay has a school of navigation, founded by Jorun Pike.",
    quote="Vessel Bay has a school of navigation, founded by Jorun Pike.",
)
AWAY = DraftStep(statement="It stands 12 km from Brenn.", quote="It stands 12 km from Brenn.", value="12")
AGE = DraftStep(statement="Between these years lie 33 years.", computes="years(s3, s1)")
QUESTIONS = (
    (
        DraftKind.BRIDGE,
        "Who founded the school of the birthplace of the first keeper of the lighthouse of Brenn?",
        "Jorun Pike",
        ValueKind.ENTITY,
        "",
        (FIRST, BORN, SCHOOL),
    ),
    (
        DraftKind.COMPUTATION,
        "How many kilometres from Brenn does the birthplace of the first keeper of its lighthouse stand?",
        "12",
        ValueKind.NUMBER,
        "kilometres",
        (FIRST, BORN, AWAY),
    ),
    (
        DraftKind.DURATION,
        "How many years old was the lighthouse of Brenn's first keeper in the year in which the lighthouse was built?",
        "33",
        ValueKind.NUMBER,
        "years",
        (BUILT, FIRST, BORN, AGE),
    ),
)
"""Kind, question, answer with type and unit, and steps of questions over `FACTS`."""


def drafts_of(documents: Sequence[ShownDocument]) -> list[Draft]:
    """Return the drafts that these documents support, with the numbers of their passages."""
    passages = [passage for document in documents for passage in document.passages]

    def placed(step: DraftStep) -> DraftStep | None:
        if not step.quote:
            return step
        found = next((each for each in passages if quoted(each.text, step.quote)), None)
        return None if found is None else replace(step, passage=found.number)

    drafts: list[Draft] = []
    for kind, question, answer, answer_type, unit, steps in QUESTIONS:
        own = [found for step in steps if (found := placed(step)) is not None]
        if len(own) == len(steps):
            drafts.append(
                Draft(
                    kind=kind,
                    asker="A keeper who writes the history of the port.",
                    question=question,
                    answer=answer,
                    answer_type=answer_type,
                    unit=unit,
                    documents=tuple(range(1, len(documents) + 1)),
                    steps=tuple(own),
                )
            )
    return drafts


def failing_on(kind: str, failure: Failure) -> Callable[[object], Failure | None]:
    """Return a function by which requests of this type fail; all do without a type."""
    return lambda request: failure if not kind or type(request).__name__ == kind else None


def roles(**settings: Any) -> ScriptedRoles:  # noqa: ANN401 - those of `ScriptedRoles`
    """Roles that ask about `FACTS`."""
    return ScriptedRoles(drafts_of, **settings)


def page(entries: Mapping[str, bytes] | None = None) -> Page:
    """Return a page that is not stored."""
    return Page(entries)
