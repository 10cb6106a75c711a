"""Trees and episodes as the formats read them, whatever run they come from, and the rows that the formats make."""

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from agentflow.engine import fixed_names
from agentflow.errors import ConfigurationError
from agentflow.models import ToolSpec
from agentflow.runs import image_file
from agentflow.tasks import VerifiableTask
from agentflow.trace import Blob, ChatMessage, Node, Seed, TokenCall, Tokens, Tree, Voice

_IMAGE: Final = re.compile(r"images/\w[\w.-]{0,200}")


class Take(StrEnum):
    """Selection of answers. The set is closed."""

    ALL = "all"
    """Every question with an answer, right or wrong."""
    CORRECT = "correct"
    """Pairs of `synthesized_qa.jsonl`; episodes whose score is 1."""
    BEST = "best"
    """The correct answer of each seed or task with the highest score, the fewest actions; else the first."""


class PathExtent(StrEnum):
    """Extent of the path of a pair. The set is closed."""

    TRIMMED = "trimmed"
    """The calls that the answer needs, with those that they rest on."""
    FULL = "full"
    """The whole path, wandering included."""


class DropReason(StrEnum):
    """Reason that something of the run is in no row. The set is closed: manifests count by it."""

    NO_QUESTION = "no_question"
    """No question was written on the tree, or it was not accepted; its verified tasks have no path."""
    NO_ANSWER = "no_answer"
    """The episode has no answer."""
    NO_SCORE = "no_score"
    """The answer was not scored, so nobody knows if it is correct."""
    NOT_CORRECT = "not_correct"
    """The score is below 1."""
    SURPLUS = "surplus"
    """The pair or task passed every check and was not written: it repeats another one, contradicts one, or exceeds a quota."""
    NOT_BEST = "not_best"
    """Another correct answer of the seed or task was taken."""
    NOTHING_TO_TRAIN = "nothing_to_train"
    """Every message of the model is masked: it failed, or rests on something that is not shown."""
    MASKED = "masked"
    """The call failed or gave nothing new, and the format can't mask it."""
    NO_TOKENS = "no_tokens"
    """The tokens of its model calls are unknown."""
    OFF_PATH = "off_path"
    """The planner's call chose no action on the path of an answer or task that is taken."""
    NO_ACTIONS = "no_actions"
    """It has no action."""
    NO_SIBLING = "no_sibling"
    """It is the only message after its prefix."""
    SAME_VALUE = "same_value"
    """Its siblings are as good: rewards, verdicts and evidence are equal."""
    UNDECIDED = "undecided"
    """Its order among its siblings is unknown: nothing was scored, rewards overlap, or rewards and verdicts contradict each other; as many
    of the paths through it are right as wrong."""
    NO_MESSAGES = "no_messages"
    """The run kept its tokens and no messages, or it was no conversation."""
    VALIDATION = "validation"
    """It is an episode of a validation, whose tasks must not be trained."""
    SAME_TASK = "same_task"
    """Another episode of the task stands for it."""
    NO_REFERENCE = "no_reference"
    """There is no reference answer."""
    NO_DOCUMENTS = "no_documents"
    """The documents that the answer needs are unknown, or are not all of the tree."""


class ExportRow(NamedTuple):
    """Row of a file."""

    table: str
    """Table; `train` for formats with one."""
    group: str
    """Seed or task that it comes from: a split never divides one."""
    values: dict[str, Any]
    """Columns."""
    images: tuple[str, ...] = ()
    """Paths of the images that it mentions."""


class Dropped(NamedTuple):
    """Something of the run that is in no row."""

    group: str
    """Seed or task that it comes from."""
    id: str
    """Id of the tree, the answer, the node or the call."""
    reason: DropReason
    """Reason."""


COLUMNS: Final = {
    "bool": "bool",
    "float": "float64",
    "int": "int64",
    "json": "json",
    "string": "string",
}
"""Column types and their names in a dataset card; a list of one is written `[type]`."""

STRUCTS: Final[dict[str, dict[str, str]]] = {
    "message": {"role": "string", "content": "string"},
    "reward": {"style": "string", "ground_truth": "string"},
    "task": {
        "index": "int",
        "id": "string",
        "answers": "[string]",
        "need_tools_kwargs": "bool",
        "tools_kwargs": "json",
    },
    "verified_task": {
        "index": "int",
        "id": "string",
        "answers": "[string]",
        "need_tools_kwargs": "bool",
        "tools_kwargs": "json",
        "task": "json",
    },
}
"""Column types with fields."""


def fixed_arguments_of(tree: Tree, node: Node) -> list[str]:
    """Return the names of the arguments that the seed or the task fixed."""
    return [] if node.action is None else fixed_names(node.action.arguments, tree.seed.kwargs)


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
    images: tuple[Blob, ...] = ()
    """Images in that conversation."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that were offered in that conversation."""

    @property
    def length(self) -> int:
        """Number of its actions or messages."""
        return len(self.messages) or len(self.nodes)


class ExportTree(Struct, frozen=True, kw_only=True):
    """Tree of a seed, an episode of a task (a tree without branches), or the calls of a training's episode."""

    tree: Tree
    """Its nodes, and the seed or the task, by whose id it is grouped."""
    draw: str = ""
    """Episodes whose rewards are compared, if a task was drawn several times, or its agents have rewards of their own."""
    is_episode: bool
    """False for the tree of a synthesis."""
    answers: tuple[ExportAnswer, ...] = ()
    """Accepted pairs, or the answer of the episode."""
    tasks: tuple[VerifiableTask, ...] = ()
    """Verified tasks of the tree."""
    surplus_tasks: tuple[str, ...] = ()
    """Ids of verified tasks that repeat another one."""
    calls: tuple[TokenCall, ...] = ()
    """Model calls whose tokens are known; those of a planner have the keys `plan/PATH/NUMBER`."""
    advantages: dict[str, float] = field(default_factory=dict[str, float])
    """Advantages of the sampled tokens of trained calls, by the id of the call."""
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
            if node.id in earlier or (node.parent is not None and node.parent not in earlier):
                raise ConfigurationError(
                    f"{self.id!r:.100}: node {node.id!r:.100} is repeated, or before its parent"
                )
            earlier.add(node.id)
        for answer in self.answers:
            if unknown := {*answer.nodes, *answer.whole_path} - earlier:
                raise ConfigurationError(
                    f"{self.id!r:.100}: there is no node {min(unknown)!r:.100} for its answer"
                )

    @property
    def id(self) -> str:
        """Id of the tree or the episode."""
        return self.tree.id

    @property
    def group(self) -> str:
        """Id of the seed or the task: episodes of one task share it."""
        return self.tree.seed.id

    @property
    def text(self) -> str:
        """Content of the seed, or the question."""
        return self.tree.seed.content

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes; a parent precedes its children."""
        return self.tree.nodes

    def with_whole_paths(self) -> "ExportTree":
        """Return the tree with answers on their whole paths."""
        answers = (replace(answer, nodes=answer.whole_path or answer.nodes) for answer in self.answers)
        return replace(self, answers=tuple(answers))


def empty_tree(id: str, group: str, text: str) -> Tree:
    """Return a tree without nodes: an episode whose messages or tokens alone are known."""
    return Tree(id=id, seed=Seed(index=0, id=group, content=text), nodes=())


def numbered_calls(calls: Iterable[Tokens], role: str) -> tuple[TokenCall, ...]:
    """Return the calls of an agent, whose ids are their numbers from 1."""
    voice = Voice(role=role)
    return tuple(TokenCall(id=str(number), voice=voice, tokens=own) for number, own in enumerate(calls, 1))


class ExportSource(Protocol):
    """A run that is exported."""

    kind: str

    @property
    def key(self) -> str: ...

    def tools(self) -> tuple[ToolSpec, ...]: ...
    def trees(self) -> Iterator[ExportTree]: ...
    def image(self, image: Blob) -> bytes | None: ...


class ExportSurvey(NamedTuple):
    """Content of a run that all rows of an export depend on."""

    groups: list[str]
    """Ids of the seeds or tasks, each once, in order."""
    images: dict[str, Blob]
    """Images by their files."""
    has_tasks: bool
    """The trees have verified tasks."""
    tools: tuple[ToolSpec, ...]
    """Tools of the run, or of its conversations; empty: it kept no schemas."""


def survey(source: ExportSource) -> ExportSurvey:
    """Read a run once."""
    groups: dict[str, None] = {}
    images: dict[str, Blob] = {}
    tools = {tool.name: tool for tool in source.tools()}
    has_tasks = False
    for tree in source.trees():
        if tree.left_out is not None:
            continue
        groups[tree.group] = None
        shown = [node.images for node in tree.nodes] + [answer.images for answer in tree.answers]
        for image in (image for blobs in shown for image in blobs):
            # The run may come from elsewhere.
            if not _IMAGE.fullmatch(file := image_file(image)):
                raise ConfigurationError(f"{file!r:.200} is not the file of an image: images/NAME")
            images[file] = image
        tools.update({tool.name: tool for answer in tree.answers for tool in answer.tools})
        has_tasks = has_tasks or bool(tree.tasks)
    return ExportSurvey(list(groups), images, has_tasks, tuple(tools.values()))
