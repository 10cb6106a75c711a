"""Trees: seeds, nodes, actions and observations."""

from array import array
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b, sha256
from typing import Any, Final, Protocol, TypeAlias

from msgspec import UNSET, Struct, UnsetType, field

from agentflow.trace._identity import canonical_form


class Verdict(StrEnum):
    """The verifier's verdict on an observation. Only a `NEW` node grows children or is used as evidence."""

    NEW = "new"
    """It contains something that neither the path nor the tree contained."""
    REPEATS = "repeats"
    """It repeats what is already known."""
    EMPTY = "empty"
    """It contains no information."""
    ERROR = "error"
    """The call, or the program it ran, failed."""
    OFF_TOPIC = "off_topic"
    """It is unrelated to the seed and the path."""


class Isolation(StrEnum):
    """Isolation of an action from its siblings."""

    FORK = "fork"
    """It ran in a fork of its parent's sandbox or, as the last child, in the parent's sandbox itself."""
    REPLAY = "replay"
    """It ran in a fresh sandbox after replaying the path, because the backend cannot fork."""
    SHARED = "shared"
    """It ran in the shared sandbox, because its tool has no state."""


class Seed(Struct, frozen=True, kw_only=True):
    """Starting point of a tree."""

    index: int
    """Position among the run's seeds; output files use this order."""
    id: str
    """`seed_001`, or the seed's own id: the `source_id` in output files."""
    content: str
    """The subject to explore."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Tool arguments fixed by this seed: they override the model's, which does not see them."""


class Action(Struct, frozen=True, dict=True):
    """A typed tool call."""

    tool: str
    """Name of the tool, such as `rag_search`."""
    arguments: dict[str, Any]
    """Arguments of the call."""

    @cached_property
    def canonical(self) -> str:
        """Canonical form; see `agentflow.trace.canonical`."""
        return canonical_form(self.tool, self.arguments)


class Text(Struct, frozen=True, tag="text"):
    """A piece of text."""

    text: str
    """The text."""


class Blob(Struct, frozen=True, tag="blob"):
    """An image or other bytes, stored once in the run's blob store."""

    hash: str
    """SHA-256 of the bytes: the key in the blob store."""
    mime: str
    """MIME type."""

    @classmethod
    def of(cls, data: bytes, mime: str) -> "Blob":
        """Return the reference to these bytes."""
        return cls(sha256(data).hexdigest(), mime)


Part: TypeAlias = Text | Blob
"""A part of an observation."""


class SourceSpan(Struct, frozen=True, omit_defaults=True):
    """Part of a document in the text of an observation."""

    document: str
    """Name by which the tools know the document: an id, an address or a path."""
    start: int
    """Start in the observation's text."""
    end: int
    """End in the observation's text."""
    title: str = ""
    """Title of the document, if the tool gives one."""
    offset: int = -1
    """Start of the part in the document, in characters; -1 if it is unknown."""
    length: int = 0
    """Number of characters of the whole document; 0 if it is unknown."""


class Observation(Struct, frozen=True, omit_defaults=True):
    """Result of an action as shown to the roles. Evidence spans are offsets into `text`."""

    parts: tuple[Part, ...] = ()
    """Texts and blobs, in the tool's order."""
    sources: tuple[SourceSpan, ...] = ()
    """Documents that the text shows, in order; empty if the tool names none."""

    @property
    def text(self) -> str:
        """All texts, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """All blobs."""
        return tuple(part for part in self.parts if isinstance(part, Blob))


class Failure(Struct, frozen=True):
    """A failed tool or model call, as data."""

    kind: str
    """Value of `agentflow.errors.ErrorKind` for tools, of `agentflow.errors.ModelFailureKind` for models."""
    message: str
    """The reason, in one line."""


class Usage(Struct, frozen=True):
    """Usage of language models."""

    calls: int = 0
    """Requests answered, whether or not the answer was usable."""
    prompt_tokens: int = 0
    """Tokens in prompts."""
    completion_tokens: int = 0
    """Tokens generated."""
    estimated: int | UnsetType = UNSET
    """Calls whose tokens are an estimate, because the endpoint reported none or impossible ones; left out if there are none."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.estimates + other.estimates or UNSET,
        )

    @property
    def estimates(self) -> int:
        """Number of calls whose tokens are an estimate."""
        return 0 if self.estimated is UNSET else self.estimated


class Tokens(Struct, frozen=True, kw_only=True):
    """Exact tokens of one model call."""

    prompt: tuple[int, ...]
    """Tokens of the prompt."""
    sampled: tuple[int, ...]
    """Generated tokens."""
    logprobs: tuple[float, ...]
    """Log-probability of each generated token under the sampling distribution."""
    version: str = ""
    """Version of the weights; empty if the engine does not report it."""
    versions: tuple[tuple[str, int, int], ...] = ()
    """Ranges of generated tokens by version of the weights, if the engine reports them: version, start, end."""
    finish: str = ""
    """Finish reason: `stop`, `length`, …; empty if not reported."""

    @property
    def mark(self) -> str:
        """Digest of the prompt and the generated tokens, which identifies the call to later ones."""
        ids = array("i", self.prompt)
        ids.extend(self.sampled)
        return blake2b(ids.tobytes(), digest_size=12).hexdigest()


class AnswerTokens(Protocol):
    """A `Reply` or an `Exchange`."""

    @property
    def tokens(self) -> Tokens | None:
        """Exact tokens of the answer; `None`: unknown."""
        ...

    @property
    def unusable(self) -> tuple[Tokens, ...]:
        """Exact tokens of earlier answers that could not be used."""
        ...


def tokens_of(answer: AnswerTokens) -> tuple[Tokens, ...]:
    """Return the exact tokens of an answer after those of the unusable ones before it; empty if they are unknown.

    See docs/tokens.md.
    """
    return () if answer.tokens is None else (*answer.unusable, answer.tokens)


class ActionOutcome(Struct, frozen=True):
    """Result of an action."""

    observation: Observation = Observation()
    """Output of the tool; of a failed call, its partial output."""
    failure: Failure | None = None
    """Reason for a failed call."""
    trouble: str = ""
    """Error of the program or code that the call ran: `exit code 2`, `ValueError: …`."""
    lost: bool = False
    """The session lost its state: its shell or interpreter ended or was killed."""
    usage: Usage = Usage()
    """Usage of models inside the tool."""


NO_OUTCOME: Final = ActionOutcome()
"""Outcome of a step without an action, and of one that is stored elsewhere; it takes no room in a record."""


class Node(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step: an action, its outcome and the verdict on it. The root of a tree has no action; it observed the seed.

    On the journal page of its tree, `act/<path>` is the step before its verdict.
    """

    id: str = ""
    """Function of run, seed and path."""
    parent: str | None = None
    """Id of the parent; `None` for the root."""
    depth: int = 0
    """Number of actions from the root."""
    position: int = 0
    """Position among its siblings."""
    intent: str = ""
    """The planner's reason for the action."""
    action: Action | None = None
    """The tool call; `None` for the root."""
    outcome: ActionOutcome = NO_OUTCOME
    """Result of the action."""
    verdict: Verdict = Verdict.NEW
    """The verifier's verdict; the record of a step that is not judged yet has none."""
    reason: str = ""
    """Reason for a verdict other than `new`."""
    isolation: Isolation = Isolation.SHARED
    """Isolation from its siblings."""
    usage: Usage = Usage()
    """Usage of the verifier's model."""

    @property
    def call(self) -> Action:
        """The action of a step that has one: of every step but the root."""
        assert self.action is not None, "the root of a tree has no action"
        return self.action

    @property
    def observation(self) -> Observation:
        """Result of the action."""
        return self.outcome.observation

    @property
    def text(self) -> str:
        """All texts of the observation."""
        return self.outcome.observation.text

    @property
    def images(self) -> tuple[Blob, ...]:
        """Images in the observation."""
        return self.outcome.observation.blobs

    @property
    def failure(self) -> Failure | None:
        """Reason for a failed call."""
        return self.outcome.failure

    @property
    def error(self) -> str:
        """Reason why the call, or the program it ran, failed, in one line; empty if it did not."""
        outcome = self.outcome
        if outcome.failure is not None:
            return f"{outcome.failure.kind}: {outcome.failure.message}"
        return outcome.trouble or (self.reason if self.verdict is Verdict.ERROR else "")


class Tree(Struct, frozen=True, kw_only=True, dict=True):
    """A grown tree. Nodes are ordered by level, then by path, so a parent precedes its children."""

    id: str
    """Function of run and seed."""
    seed: Seed
    """Starting point."""
    nodes: tuple[Node, ...]
    """All nodes, the root first."""
    stalled: dict[str, str] = field(default_factory=dict[str, str])
    """Nodes with fewer children than asked for: node id -> reason."""
    duplicates: int = 0
    """Number of proposals refused as duplicates."""
    drawn: dict[str, int] = field(default_factory=dict[str, int])
    """Actions proposed more than once at their node, if duplicates are merged: node id -> number of proposals."""
    diverged: tuple[str, ...] = ()
    """Ids of nodes whose action returned something else when it was replayed; the node keeps its first observation."""
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    """Usage by role."""
    reasoning: dict[str, str] = field(default_factory=dict[str, str])
    """Reasoning of the planner's model about the next actions: node id -> text."""

    @cached_property
    def by_id(self) -> dict[str, Node]:
        """Nodes by id."""
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
        """Return the nodes from the root to this one."""
        path: list[Node] = []
        step: str | None = node_id
        while step is not None:
            path.append(self.by_id[step])
            step = path[-1].parent
        return tuple(reversed(path))

    def leaves(self) -> Iterator[Node]:
        """Iterate over the nodes without children, in order."""
        return (node for node in self.nodes if not self.children[node.id])


class BlobStore(Protocol):
    """Images and other bytes by their hash: `MemoryBlobStore`, or the blobs of a run in a journal. See docs/engine.md."""

    async def put(self, data: bytes, mime: str) -> Blob:
        """Store bytes; equal bytes are stored once."""
        ...

    async def read(self, hash: str) -> bytes:
        """Return the bytes with a SHA-256."""
        ...


class MemoryBlobStore:
    """Blob store in memory. Implements `BlobStore`.

    Example::

        blob = await store.put(png, "image/png")
        assert await store.read(blob.hash) == png
    """

    def __init__(self, base: Mapping[str, bytes] | None = None) -> None:
        """Create an empty store.

        :param base: further blobs by hash, to read only.
        """
        self.kept: dict[str, bytes] = {}
        """The stored bytes by hash."""
        self._base = base or {}

    async def put(self, data: bytes, mime: str) -> Blob:
        """Store bytes; equal bytes are stored once."""
        blob = Blob.of(data, mime)
        self.kept[blob.hash] = data
        return blob

    async def read(self, hash: str) -> bytes:
        """Return the bytes with a SHA-256.

        :raises KeyError: if there are none.
        """
        return self.kept[hash] if hash in self.kept else self._base[hash]

    def clear(self) -> None:
        """Drop the stored blobs."""
        self.kept.clear()
