"""The tree: seeds, nodes, actions, observations."""

from array import array
from collections.abc import Iterator
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b
from typing import Any, TypeAlias

from msgspec import Struct, field

from agentflow.trajectory._canonical import canonical_form

__all__ = [
    "Action",
    "Blob",
    "Failure",
    "Isolation",
    "Node",
    "Observation",
    "Part",
    "Seed",
    "Text",
    "Tokens",
    "Tree",
    "Usage",
    "Verdict",
]


class Verdict(StrEnum):
    """The verifier's word on an observation. Only `NEW` grows, and only `NEW` is evidence."""

    NEW = "new"
    """It tells something that the path and the tree did not know."""
    REPEATS = "repeats"
    """It tells what is known already."""
    EMPTY = "empty"
    """It tells nothing."""
    ERROR = "error"
    """The call failed, or what it ran ended badly."""
    OFF_TOPIC = "off_topic"
    """It has nothing to do with the seed and the path."""


class Isolation(StrEnum):
    """How the action was kept apart from what its siblings did."""

    FORK = "fork"
    """It ran in its own fork of its parent's sandbox, or took the parent's over as the last child."""
    REPLAY = "replay"
    """It ran in a fresh sandbox in which the path was replayed, because the backend can't fork."""
    SHARED = "shared"
    """It touched no state, so nothing had to be kept apart."""


class Seed(Struct, frozen=True, kw_only=True):
    """What a tree grows from."""

    index: int
    """Its place among the run's seeds: the order of the files."""
    id: str
    """`seed_001`, or the id that the seed brought along: the `source_id` of the files."""
    content: str
    """What to explore, in words."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of tools that this seed fixes: they win over the model's, which is not shown them."""


class Action(Struct, frozen=True, dict=True):
    """A typed tool call."""

    tool: str
    """The tool's name, `rag_search`."""
    arguments: dict[str, Any]
    """What it is called with."""

    @cached_property
    def canonical(self) -> str:
        """See `agentflow.trajectory.canonical`."""
        return canonical_form(self.tool, self.arguments)


class Text(Struct, frozen=True, tag="text"):
    """A piece of text."""

    text: str
    """The text."""


class Blob(Struct, frozen=True, tag="blob"):
    """A picture or other bytes, kept once in the run's blob store."""

    hash: str
    """SHA-256 of the bytes, by which the blob store finds them."""
    mime: str
    """Its type."""


Part: TypeAlias = Text | Blob
"""One piece of an observation."""


class Observation(Struct, frozen=True):
    """What an action returned, as roles and evidence see it. Spans are offsets into `text`."""

    parts: tuple[Part, ...] = ()
    """In the order in which they were shown."""

    @property
    def text(self) -> str:
        """All text, piece after piece."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """All pictures."""
        return tuple(part for part in self.parts if isinstance(part, Blob))


class Failure(Struct, frozen=True):
    """Why something failed, as data."""

    kind: str
    """A closed kind: of `agentflow.errors.ErrorKind` for tools, of `agentflow.models.FailureKind` for models."""
    message: str
    """One line."""


class Usage(Struct, frozen=True):
    """What model calls consumed."""

    calls: int = 0
    """Requests that were answered, usable or not."""
    prompt_tokens: int = 0
    """Tokens read."""
    completion_tokens: int = 0
    """Tokens written."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


class Tokens(Struct, frozen=True, kw_only=True):
    """What an engine read and wrote in one call, exactly."""

    prompt: tuple[int, ...]
    """The tokens it read."""
    sampled: tuple[int, ...]
    """The tokens it wrote."""
    logprobs: tuple[float, ...]
    """The log-probability of each of them under the distribution it was drawn from."""
    version: str = ""
    """Which weights drew them; empty: the engine doesn't say."""
    versions: tuple[tuple[str, int, int], ...] = ()
    """Which weights drew which of them, where the engine tells it token by token: version, first token, where they end."""
    finish: str = ""
    """Why it stopped writing: `stop`, `length`, …; empty: not told."""

    @property
    def mark(self) -> str:
        """What the call is known by to those who go on from it: a digest of all that was read and written."""
        ids = array("i", self.prompt)
        ids.extend(self.sampled)
        return blake2b(ids.tobytes(), digest_size=12).hexdigest()


class Node(Struct, frozen=True, kw_only=True):
    """One action and what came of it. The root has no action; its observation is the seed."""

    id: str
    """A function of run, seed and path."""
    parent: str | None
    """The parent's id; `None` for the root."""
    depth: int
    """Actions from the root."""
    position: int
    """Its place among its siblings."""
    intent: str
    """Why the planner wanted the action."""
    action: Action | None
    """What was done; `None` for the root."""
    observation: Observation
    """What came back."""
    verdict: Verdict
    """What it is worth."""
    reason: str = ""
    """Why the verdict is not `new`."""
    failure: Failure | None = None
    """Why the call failed, if it did."""
    isolation: Isolation = Isolation.SHARED
    """How it was kept apart from its siblings."""
    diverged: bool = False
    """Rebuilding its sandbox gave another observation; the one written here stands."""
    usage: Usage = Usage()
    """What the verifier consumed on it."""


class Tree(Struct, frozen=True, kw_only=True, dict=True):
    """A grown tree. Nodes stand level by level, siblings in path order: no child before its parent."""

    id: str
    """A function of run and seed."""
    seed: Seed
    """What it grew from."""
    nodes: tuple[Node, ...]
    """The root first."""
    stalled: dict[str, str] = field(default_factory=dict[str, str])
    """Nodes that should have grown and got fewer children than asked for: node id -> why."""
    duplicates: int = 0
    """Proposals that were refused because the tree had them, or nearly."""
    drawn: dict[str, int] = field(default_factory=dict[str, int])
    """How often an action was proposed at its place, where that was more than once and duplicates are merged: node id ->
    times."""
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    """What growing it consumed, by role."""

    @cached_property
    def by_id(self) -> dict[str, Node]:
        """The nodes by their ids."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def children(self) -> dict[str, tuple[str, ...]]:
        """Node id -> ids of its children, in order; every node has an entry."""
        found: dict[str, list[str]] = {node.id: [] for node in self.nodes}
        for node in self.nodes:
            if node.parent is not None:
                found[node.parent].append(node.id)
        return {parent: tuple(ids) for parent, ids in found.items()}

    def path(self, node_id: str) -> tuple[Node, ...]:
        """The nodes from the root to this one."""
        path: list[Node] = []
        step: str | None = node_id
        while step is not None:
            path.append(self.by_id[step])
            step = path[-1].parent
        return tuple(reversed(path))

    def leaves(self) -> Iterator[Node]:
        """The nodes without children, in order."""
        return (node for node in self.nodes if not self.children[node.id])
