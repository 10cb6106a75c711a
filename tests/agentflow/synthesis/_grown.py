"""Grown trees, pages and scripted generators for tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentflow.journal import Page
from agentflow.trajectory import (
    Action,
    Answer,
    AnswerRequest,
    Citation,
    Draft,
    DraftStep,
    Failure,
    Look,
    LookRequest,
    Node,
    Observation,
    Reply,
    Seed,
    Step,
    Text,
    Tree,
    Usage,
    Verdict,
    WriteRequest,
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


def evidence(*texts: str, tool: str = "rag_search", arguments: Mapping[str, Any] | None = None) -> list[Step]:
    """Evidence that says these texts."""
    return [Step("", Action(tool, dict(arguments or {})), text) for text in texts]


def step(text: str, *citations: tuple[int, str]) -> DraftStep:
    """A reasoning step."""
    return DraftStep(text, tuple(Citation(number, quote) for number, quote in citations))


GOOD = Draft(
    question="Who founded the school in the birthplace of the first keeper of the lighthouse of Brenn?",
    answer="Jorun Pike",
    steps=(
        step("The first keeper of the lighthouse was Ada Holm.", (1, "Its first keeper was Ada Holm.")),
        step("Ada Holm was born in Vessel Bay.", (2, "She was born in Vessel Bay in 1841.")),
        step("The school of Vessel Bay was founded by Jorun Pike.", (3, "founded by Jorun Pike")),
    ),
)


class Scripted:
    """Generator with scripted drafts and answers."""

    def __init__(
        self,
        *drafts: Draft | Failure,
        knows: Callable[[str], str | Failure] = lambda _: "",
        sees: Callable[[LookRequest], bool | Failure] = lambda _: False,
    ) -> None:
        self._sees = sees
        self.looked: list[LookRequest] = []
        self._drafts = drafts
        self._knows = knows
        self.written: list[WriteRequest] = []
        self.answered: list[AnswerRequest] = []

    async def write(self, request: WriteRequest) -> Reply[Draft]:
        """Return the next draft; the last one is repeated."""
        self.written.append(request)
        draft = self._drafts[min(len(request.rejected), len(self._drafts) - 1)]
        if isinstance(draft, Failure):
            return Reply(failure=draft)
        return Reply(draft, usage=Usage(1, 100, 10))

    async def look(self, request: LookRequest) -> Reply[Look]:
        """Return the scripted check of a picture."""
        self.looked.append(request)
        seen = self._sees(request)
        return Reply(failure=seen) if isinstance(seen, Failure) else Reply(Look(seen), usage=Usage(1, 9, 1))

    async def answer(self, request: AnswerRequest) -> Reply[Answer]:
        """Return the scripted answer."""
        self.answered.append(request)
        known = self._knows(request.question)
        return (
            Reply(failure=known)
            if isinstance(known, Failure)
            else Reply(Answer(known), usage=Usage(1, 20, 2))
        )


def page(entries: Mapping[str, bytes] | None = None) -> Page:
    """Return a page that is not stored."""
    return Page(entries)
