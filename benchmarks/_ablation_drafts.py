"""Drafts of questions as a generator without checks writes them, and as the checks keep them, in the world of the first training."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from agentflow.actors import Supervisor
from agentflow.facts import EntityValue, Fact, Operator, ProgramStep, QuestionKind
from agentflow.journal import MemoryPage
from agentflow.models import Accounts, ModelSettings, make_model
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.synthesis._journalled_calls import JournalledCalls
from agentflow.synthesis._question_checks import CheckSettings, FactsOfTree, QuestionChecker
from agentflow.synthesis._question_draft import QuestionDraft
from agentflow.synthesis._tree_facts import extract_facts
from agentflow.team import Team
from agentflow.trajectory import Action, MemoryBlobStore, Node, Observation, Seed, Text, Tree, Verdict, digest
from examples.first_training.family import Cluster, Family
from examples.first_training.teacher import SEARCH

__all__ = ["FAULTS", "Arms", "Gate", "PathPair", "write_arms"]

FAULTS = {"padded": 13 / 32, "off_seed": 16 / 32, "ambiguous": 1 / 32}
"""Rates of faults in 32 pairs that were written without the checks. How often they coincide is not known, so each is drawn
independently: 29 % of the drafts have none."""
MOST_DRAFTS = 8
"""Maximum number of drafts of a tree."""


class PathPair(NamedTuple):
    """A question, and the searches that its path makes."""

    question: str
    """The question."""
    queries: tuple[str, ...]
    """Queries of the searches from the root to the last node that states a claimed fact."""


@dataclass
class Gate:
    """Decisions of the checks."""

    kept: int = 0
    """Drafts that passed."""
    good: int = 0
    """Drafts without a fault."""
    good_kept: int = 0
    """Drafts without a fault that passed."""
    calls: int = 0
    """Model calls of the checks."""
    found: Counter[str] = field(default_factory=Counter[str])
    """Number of rejected drafts by the check that found a fault."""


class Arms(NamedTuple):
    """Pairs of both arms, from the same trees."""

    ungated: list[PathPair]
    """The first draft of each tree."""
    gated: list[PathPair]
    """The first draft of each tree that the checks keep."""
    gate: Gate
    """Decisions of the checks."""


class _Draft(NamedTuple):
    draft: QuestionDraft
    pair: PathPair
    faults: frozenset[str]


async def write_arms(family: Family, corpus: Path, seed: int) -> Arms:
    """Write drafts about the training part, and check them.

    Half of the ships have a tree: a search for the ship and for its home port, and a branch that drifts to a ship of the
    other half. A tree none of whose drafts is kept is in neither arm. A question is asked once in each arm.
    """
    clusters = [cluster for cluster in family.clusters if cluster.part == "train"]
    half = len(clusters) // 2
    tally = Gate()
    ungated: dict[str, PathPair] = {}
    gated: dict[str, PathPair] = {}
    images = MemoryBlobStore()
    settings = SandboxSettings(backends={"rag": {"index_path": str(corpus), "top_k": 1}})
    async with (
        Sandbox(settings) as sandbox,
        make_model(ModelSettings(name="offline"), Accounts()) as offline,
    ):
        team = Team(planner=offline, generator=offline, put_blob=images.put, blob=images.read)
        async with Supervisor(team.specs(), name="team"):
            for number, (own, other) in enumerate(zip(clusters[:half], clusters[half:], strict=False)):
                tree = await _tree(team, sandbox, own, other)
                calls = JournalledCalls(MemoryPage())
                known, _ = await extract_facts(tree, "", team.generator, calls)
                checker = QuestionChecker(known, CheckSettings(), team.reader, calls)
                drafts = [
                    _draft(known, own, other, Random(digest([seed, number, attempt])))
                    for attempt in range(MOST_DRAFTS)
                ]
                kept = await _first_kept(checker, drafts, tally)
                tally.calls += calls.usage["reader"].calls if "reader" in calls.usage else 0
                first = next((one.pair for one in drafts if one.pair.question not in ungated), None)
                if kept is not None and first is not None:
                    gated[kept.question] = kept
                    ungated[first.question] = first
    return Arms(list(ungated.values()), list(gated.values()), tally)


async def _first_kept(checker: QuestionChecker, drafts: Sequence[_Draft], tally: Gate) -> PathPair | None:
    """Return the first draft that the checks keep."""
    for number, one in enumerate(drafts):
        checked = await checker.check(one.draft, str(number))
        tally.good += not one.faults
        if checked.accepted:
            tally.kept += 1
            tally.good_kept += not one.faults
            return one.pair
        tally.found[str(checked.findings[0].check)] += 1
    return None


async def _tree(team: Team, sandbox: Sandbox, own: Cluster, other: Cluster) -> Tree:
    """Return the tree of a ship: two branches of searches."""
    seed = Seed(index=0, id="seed", content=f"Explore the {own.ship}.")
    root = Node(
        id="root",
        parent=None,
        depth=0,
        position=0,
        intent="",
        action=None,
        observation=Observation((Text(seed.content),)),
        verdict=Verdict.NEW,
    )
    places = [
        ("own", "root", own.ship),
        ("drift", "own", other.ship),
        ("port", "own", own.town),
        ("far", "drift", other.town),
    ]
    nodes = [root]
    for id, parent, query in places:
        action = Action(SEARCH, {"query": query})
        outcome = await team.executor.act(sandbox, action)
        depth = {"root": 1, "own": 2, "drift": 3}[parent]
        nodes.append(
            Node(
                id=id,
                parent=parent,
                depth=depth,
                position=0,
                intent=f"Search for {query}.",
                action=action,
                observation=outcome.observation,
                verdict=Verdict.NEW,
            )
        )
    return Tree(id="tree", seed=seed, nodes=tuple(sorted(nodes, key=lambda node: node.depth)))


def _draft(known: FactsOfTree, own: Cluster, other: Cluster, random: Random) -> _Draft:
    """Return a draft about a chain of facts of the tree, with faults at their rates."""
    faults = frozenset(fault for fault, rate in FAULTS.items() if random.random() < rate)
    about = other if "off_seed" in faults else own
    (port,) = _facts(known, about.ship, "home port")
    (mayor,) = _facts(known, about.town, "mayor")
    follow = Operator.FOLLOW
    if "padded" in faults:
        # One fact answers it, and the draft claims two.
        program = (ProgramStep(follow, (EntityValue(about.town),), "mayor"),)
        given, words = about.town, "the town" if "ambiguous" in faults else about.town
    else:
        ship = ProgramStep(follow, (EntityValue(about.ship),), "home port")
        program = (ship, ProgramStep(follow, (1,), "mayor"))
        named = "ship" if "ambiguous" in faults else about.ship
        given, words = about.ship, f"the home port of the {named}"
    draft = QuestionDraft(
        question=f"Who is the mayor of {words}?",
        kind=QuestionKind.BRIDGE,
        program=program,
        answer=mayor.value,
        facts=(port.id, mayor.id),
        given=(given,),
        hidden=tuple(name for name in (about.town, about.mayor) if name != given),
    )
    queries = (own.ship, other.ship, other.town) if "off_seed" in faults else (own.ship, own.town)
    return _Draft(draft, PathPair(draft.question, queries), faults)


def _facts(known: FactsOfTree, subject: str, relation: str) -> list[Fact]:
    return [fact for fact in known.store.facts if (fact.subject, fact.relation) == (subject, relation)]
