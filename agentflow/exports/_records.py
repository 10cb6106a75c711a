"""Trees and episodes as the formats read them, whatever run they come from."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from agentflow._typeguards import is_object
from agentflow.errors import ConfigurationError
from agentflow.exports._rows import DropReason
from agentflow.models import ToolSpec
from agentflow.tasks import VerifiableTask
from agentflow.trace import Action, ChatMessage, Failure, SourceSpan, Tokens, Verdict

_IMAGE: Final = re.compile(r"images/\w[\w.-]{0,200}")


class ExportImage(Struct, frozen=True):
    """Image of a node, by its file in the folder of the run, which may come from elsewhere."""

    hash: str
    """SHA-256 of its bytes."""
    mime: str
    """MIME type."""
    file: str
    """Path, relative to the folder: `images/….png`."""

    def __post_init__(self) -> None:
        if not _IMAGE.fullmatch(self.file):
            raise ConfigurationError(f"{self.file!r:.200} is not the file of an image: images/NAME")


class ExportNode(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Node of a tree, or turn of an episode: a line of `trees.jsonl` or `trajectories.jsonl` has these."""

    node_id: str
    """Id."""
    parent_id: str | None = None
    """Id of the previous node; `None` for the root."""
    depth: int
    """Number of actions from the root."""
    intent: str = ""
    """Reason for the action."""
    action: dict[str, Any] | None = None
    """`tool` and `args`; `None` for the root."""
    observation: str = ""
    """Whole text of the result."""
    verdict: Verdict | None = None
    """Judgement of the observation."""
    reason: str | None = None
    """Reason of the judgement."""
    failure: Failure | None = None
    """Failure of the action."""
    images: tuple[ExportImage, ...] = ()
    """Images in the result; of the root, those of the question."""
    sources: tuple[SourceSpan, ...] = ()
    """Documents that the result shows."""
    reasoning: str = ""
    """Reasoning of the model before the action."""
    trainable: bool = True
    """False for an action that failed or gave nothing new."""
    fixed: tuple[str, ...] | None = None
    """Names of the arguments that the seed or the task fixed."""
    trouble: str = ""
    """Error of the program that the call ran."""
    isolation: str = ""
    """Isolation from its siblings."""
    diverged: bool = False
    """Repeating the path to this node gave another observation."""

    def __post_init__(self) -> None:
        action = self.action
        if action is not None and not (isinstance(action.get("tool"), str) and is_object(action.get("args"))):
            raise ConfigurationError("an action has a tool and args")

    @property
    def call(self) -> Action:
        """Action as the model wrote it: without the arguments that were fixed. Not for the root."""
        action = self.action or {"tool": "", "args": {}}
        fixed = frozenset(self.fixed or ())
        return Action(
            action["tool"], {name: own for name, own in action["args"].items() if name not in fixed}
        )


class ExportAnswer(Struct, frozen=True, kw_only=True):
    """Question with an answer and the nodes between them: a pair of a tree, or the answer of an episode."""

    id: str
    """Id of the pair or of the episode."""
    question: str
    """The question."""
    answer: str
    """The answer; empty if the episode has none."""
    nodes: tuple[str, ...]
    """Ids of the nodes in path order; of a pair, those that its answer needs."""
    whole_path: tuple[str, ...] = ()
    """Ids of the nodes of the path of a pair, wandering included; empty: `nodes`."""
    documents: tuple[str, ...] = ()
    """Ids of the documents that the answer needs."""
    score: float | None = None
    """Score of an episode's answer; the score of a pair's path as a share of 100. `None`: not scored."""
    right: bool
    """The pair passed every check and was written; the episode's score is 1."""
    surplus: bool = False
    """The pair passed every check and was not written: it repeats or contradicts another one, or there are enough like it."""
    is_shown: bool = True
    """The texts of the nodes show all that the answer rests on."""
    references: tuple[str, ...] = ()
    """Reference answers."""
    quotes: tuple[str, ...] = ()
    """Texts of observations that the reasoning of a pair cites."""
    messages: tuple[ChatMessage, ...] = ()
    """Conversation as an agent had it with a model; empty: it is retold from the nodes."""
    images: tuple[ExportImage, ...] = ()
    """Images in that conversation."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that were offered in that conversation."""

    @property
    def length(self) -> int:
        """Number of its actions or messages."""
        return len(self.messages) or len(self.nodes)


class ExportCall(Struct, frozen=True, kw_only=True):
    """Model call with its exact tokens."""

    id: str
    """Key in its episode."""
    role: str
    """Role that was asked."""
    tokens: Tokens
    """Exact tokens."""
    advantage: float | None = None
    """Advantage of its sampled tokens; `None`: unknown, or not trained."""
    node: str = ""
    """Id of the node in whose place the planner of a tree chose the next actions; empty: it is a call of an episode."""


class ExportTree(Struct, frozen=True, kw_only=True):
    """Tree of a seed, an episode of a task (a tree without branches), or the calls of a training's episode."""

    id: str
    """Id of the tree or the episode."""
    group: str
    """Id of the seed or the task: episodes of one task share it."""
    draw: str = ""
    """Episodes whose rewards are compared, if a task was drawn several times, or its agents have rewards of their own."""
    text: str
    """Content of the seed, or the question."""
    nodes: tuple[ExportNode, ...] = ()
    """All nodes; a parent precedes its children."""
    is_episode: bool
    """False for the tree of a synthesis."""
    answers: tuple[ExportAnswer, ...] = ()
    """Accepted pairs, or the answer of the episode."""
    tasks: tuple[VerifiableTask, ...] = ()
    """Verified tasks of the tree."""
    surplus_tasks: tuple[str, ...] = ()
    """Ids of verified tasks that repeat another one."""
    calls: tuple[ExportCall, ...] = ()
    """Model calls whose tokens are known."""
    reward: float | None = None
    """Reward or score of the episode."""
    leaf: str = ""
    """Id of the leaf, if the calls are those of a path in a tree of a training: other leaves share some of them."""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further facts for `native`: sample, step, stalled nodes, …"""
    left_out: DropReason | None = None
    """Reason that no format has it; `None`: the formats decide."""

    def __post_init__(self) -> None:
        earlier = set[str]()
        for node in self.nodes:
            if node.node_id in earlier or (node.parent_id is not None and node.parent_id not in earlier):
                raise ConfigurationError(
                    f"{self.id!r:.100}: node {node.node_id!r:.100} is repeated, or before its parent"
                )
            earlier.add(node.node_id)
        for answer in self.answers:
            if unknown := {*answer.nodes, *answer.whole_path} - earlier:
                raise ConfigurationError(
                    f"{self.id!r:.100}: there is no node {min(unknown)!r:.100} for its answer"
                )

    def by_id(self) -> Mapping[str, ExportNode]:
        """Return the nodes by id."""
        return {node.node_id: node for node in self.nodes}

    def with_whole_paths(self) -> "ExportTree":
        """Return the tree with answers on their whole paths."""
        answers = (replace(answer, nodes=answer.whole_path or answer.nodes) for answer in self.answers)
        return replace(self, answers=tuple(answers))

    def path_to(self, node: str) -> list[str]:
        """Return the ids of the nodes from the root to a node."""
        known = self.by_id()
        path: list[str] = []
        place: str | None = node
        while place is not None and place in known:
            path.append(place)
            place = known[place].parent_id
        return path[::-1]

    def leaves(self) -> Sequence[tuple[ExportNode, ...]]:
        """Return the path to each leaf, without the root; a tree without actions has none."""
        parents = {node.parent_id for node in self.nodes}
        known = self.by_id()
        paths: list[tuple[ExportNode, ...]] = []
        for leaf in self.nodes:
            if leaf.node_id in parents or leaf.action is None:
                continue
            path = [leaf]
            while (parent := path[-1].parent_id) is not None:
                path.append(known[parent])
            paths.append(tuple(reversed(path[:-1])))
        return paths


class ExportSource(Protocol):
    """A run that is exported."""

    kind: str

    @property
    def key(self) -> str: ...

    def tools(self) -> tuple[ToolSpec, ...]: ...
    def trees(self) -> Iterator[ExportTree]: ...
    def image(self, image: ExportImage) -> bytes | None: ...


class ExportSurvey(NamedTuple):
    """Content of a run that all rows of an export depend on."""

    groups: list[str]
    """Ids of the seeds or tasks, each once, in order."""
    images: dict[str, ExportImage]
    """Images by their files."""
    has_tasks: bool
    """The trees have verified tasks."""
    tools: tuple[ToolSpec, ...]
    """Tools of the run, or of its conversations; empty: it kept no schemas."""


def survey(source: ExportSource) -> ExportSurvey:
    """Read a run once."""
    groups: dict[str, None] = {}
    images: dict[str, ExportImage] = {}
    tools = {tool.name: tool for tool in source.tools()}
    has_tasks = False
    for tree in source.trees():
        if tree.left_out is not None:
            continue
        groups[tree.group] = None
        for one in (*tree.nodes, *tree.answers):
            images.update({image.file: image for image in one.images})
        tools.update({tool.name: tool for answer in tree.answers for tool in answer.tools})
        has_tasks = has_tasks or bool(tree.tasks)
    return ExportSurvey(list(groups), images, has_tasks, tuple(tools.values()))
