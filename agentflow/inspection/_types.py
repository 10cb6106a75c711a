"""Records that describe runs. Their JSON is the interface of the live view, of bundles and of exports.

A *spot* is the path of a node in its tree: the positions of the node and its ancestors, as in `0-1-2`; that of the root is
empty. A *seed* is anything that a run works on: the seed of a tree, a sample of a task, or an episode of a training.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from agentflow._secrets import mask_settings
from agentflow._typeguards import is_list_or_tuple, is_mapping
from agentflow.errors import ConfigurationError
from agentflow.models import ToolSpec
from agentflow.tasks import VerifiableTask
from agentflow.trace import (
    Blob,
    ChatMessage,
    Failure,
    Node,
    Piece,
    Region,
    Seed,
    TokenCall,
    Tokens,
    Tree,
    Usage,
    Voice,
)

_WHOLE_PATH: Final = re.compile(
    r"(?:~[\w.-]*|[A-Za-z]:)?[\\/](?![^\n]*[\s,;:'\"]+[~/\\])(?:[^\n]*[\\/])?([^\n\\/]+)[\\/]*"
)
_PATHS: Final = re.compile(
    r"(?:(?<![\w.~/\\<-])(?!(?<=:)//)|(?<=\bsqlite:///)|(?<=\bfile://))"
    r"(?:~[\w.-]*|[A-Za-z]:)?[\\/]+(?:[^\s\"'`<>|\\/:;,()]+[\\/]+)*([^\s\"'`<>|\\/:;,()]+)[\\/]*"
)


class RunKind(StrEnum):
    """Kind of a run. The set is closed."""

    SYNTHESIS = "synthesis"
    """Trees and pairs from seeds."""
    ROLLOUT = "rollout"
    """Answers to tasks."""
    TRAINING = "training"
    """Steps of a learner with our own team or a single agent."""
    TUNING = "tuning"
    """Steps of a learner with any agent, whose episodes a gateway recorded."""
    GATEWAY = "gateway"
    """Episodes that a gateway recorded for no run of ours; it is exported and has no page."""


class WorkState(StrEnum):
    """State of a run or a seed. The set is closed."""

    WAITING = "waiting"
    """Nothing was begun."""
    RUNNING = "running"
    """A living process works on it, as far as its lease tells."""
    STOPPED = "stopped"
    """It was begun, is unfinished, and nobody works on it: stopped, killed or crashed."""
    DONE = "done"
    """Finished."""


class SeedCounts(Struct, frozen=True):
    """Numbers of a run's seeds by state."""

    waiting: int = 0
    """Seeds that nobody has claimed."""
    running: int = 0
    """Claimed seeds, including those of a process that was killed."""
    done: int = 0
    """Finished seeds."""

    @property
    def total(self) -> int:
        """All seeds."""
        return self.waiting + self.running + self.done

    @property
    def shown(self) -> str:
        """Progress in words."""
        return f"{self.done} of {self.total} done"


class RunSummary(Struct, frozen=True, kw_only=True):
    """Run without its seeds."""

    id: str
    """Id, derived from its place and name: links survive a restart of the viewer."""
    name: str
    """Name: the folder's, or `run_name` if a journal has several."""
    kind: RunKind
    """Kind."""
    state: WorkState
    """State."""
    paused: bool = False
    """Its processes begin nothing new until it is resumed; asked for by `agentflow ctl` through its journal."""
    folder: str = ""
    """Folder of its files, as it was named; empty if only the journal is known."""
    started: float | None = None
    """Time of its beginning, in seconds since 1970; `None` if it was not recorded."""
    seeds: SeedCounts = SeedCounts()
    """Numbers of seeds; of a training, its episodes."""
    hosts: dict[str, SeedCounts] = field(default_factory=dict[str, SeedCounts])
    """Numbers of seeds that each host holds and has finished; empty in journals of earlier versions."""
    steps: int = 0
    """Number of training steps."""
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    """Usage of models by role, so far."""
    cost: float | None = None
    """Cost of that usage; `None` without known prices."""
    failures: dict[str, int] = field(default_factory=dict[str, int])
    """Failures by kind: of a finished run those of its report, else those that its processes saw up to ten seconds ago."""
    models: dict[str, str] = field(default_factory=dict[str, str])
    """Name of the model of each role."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings that decide its content, without secrets."""
    trouble: str = ""
    """Reason that it can't be read, in one line; the rest is unknown then."""

    def shared(self) -> "RunSummary":
        """Return it without folders, paths and secrets of this machine."""
        settings = {name: _shared(mask_settings(value, name)) for name, value in self.settings.items()}
        models = {role: without_paths(model) for role, model in self.models.items()}
        return replace(self, folder="", settings=settings, models=models)


class SeedSummary(Struct, frozen=True, kw_only=True):
    """Seed in the list of a run."""

    id: str
    """Name in the run, such as `seed_001`."""
    index: int
    """Position in the run."""
    text: str
    """Beginning of its content, or of the question of its task."""
    state: WorkState
    """State."""
    nodes: int = 0
    """Number of actions so far; of a training's episode, its model calls."""
    score: float | None = None
    """Score of the answer, or reward of the episode."""
    pairs: int | None = None
    """Number of accepted pairs or tasks of a tree."""
    answer: str = ""
    """Beginning of the answer of a rollout."""
    failure: str = ""
    """Reason that it has no result, in one line."""
    task: str = ""
    """Id of its task, shared by its samples; two runs are compared by it."""
    sample: int = 0
    """Number of the sample of that task, from 0."""
    step: int | None = None
    """Training step that used it."""


class TreeSkeleton(Struct, frozen=True, kw_only=True):
    """Shape of a tree, read from keys alone."""

    seed: str
    """Id of the seed."""
    state: WorkState
    """State of the seed."""
    spots: tuple[str, ...]
    """Spots of all nodes by depth, then in order: the root first, and every parent before its children."""
    marks: str
    """One letter for each node: `n` new, `r` repeats, `e` empty, `x` error, `o` off topic, `.` not yet judged."""
    planned: tuple[str, ...] = ()
    """Spots whose next actions are chosen but have no result yet."""
    cursor: str = ""
    """State that `changes` continues from."""


class NodeSummary(Struct, frozen=True, kw_only=True):
    """Node as a row of an outline."""

    spot: str
    """Place in the tree."""
    tool: str = ""
    """Tool of its action; empty for the root."""
    arguments: str = ""
    """Beginning of the arguments, as JSON."""
    intent: str = ""
    """Beginning of the planner's reason."""
    verdict: str = ""
    """Verdict; empty: not yet judged."""
    failure: str = ""
    """Kind of failure; empty: the call did not fail."""
    line: str = ""
    """First line of the observation."""
    images: int = 0
    """Number of images in the observation."""
    children: int = 0
    """Number of children."""


class NodePart(Struct, frozen=True, kw_only=True):
    """Part of an observation: a text, or a reference to an image."""

    text: str = ""
    """Text; only the beginning of a very long one."""
    chars: int = 0
    """Whole length of the text."""
    blob: str = ""
    """SHA-256 of an image or other bytes; empty for text."""
    mime: str = ""
    """MIME type of the bytes."""


class NodeCitation(Struct, frozen=True, kw_only=True):
    """Span of an observation, or region of its image, that a pair cites."""

    pair: str
    """Id of the pair."""
    question: str
    """Its question."""
    quote: str
    """Cited text; of an image, what it shows."""
    start: int
    """Start in the observation: its texts, joined by newlines."""
    end: int
    """End there."""
    image: str = ""
    """SHA-256 of the image; empty for text."""
    region: Region | None = None
    """Region of the image."""


class CallSummary(Struct, frozen=True, kw_only=True):
    """Model call without its prompt."""

    key: str
    """Key in the journal: the name under which `call` returns it."""
    role: str
    """Role that was asked."""
    text: str = ""
    """Answer as the model wrote it, or as JSON."""
    reasoning: str = ""
    """The model's reasoning before the answer."""
    usage: Usage = Usage()
    """Tokens."""
    failure: Failure | None = None
    """Reason for a missing answer."""
    prompt: str = ""
    """Hash of the last message of its prompt; empty if it is not stored in the journal."""
    sampled: int | None = None
    """Number of exactly known sampled tokens; `None`: the engine does not report them."""
    seconds: float | None = None
    """End of the call, in seconds since the start of its episode."""


class ShownMessage(Struct, frozen=True, kw_only=True):
    """Message of a prompt."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    text: str
    """Content; tool calls as JSON."""
    images: tuple[Blob, ...] = ()
    """Its images."""


class CallDetail(Struct, frozen=True, kw_only=True):
    """Model call with its prompt."""

    call: CallSummary
    """The call."""
    prompt: tuple[ShownMessage, ...] = ()
    """Messages that the model read; empty if they are unknown."""
    missing: str = ""
    """Reason that there is no prompt, in one line."""


class NodeDetail(Struct, frozen=True, kw_only=True):
    """Node with everything that is known about it."""

    spot: str
    """Place in the tree."""
    id: str
    """Id of the node in the files of the run; empty if there is none."""
    intent: str = ""
    """The planner's reason for the action."""
    reasoning: str = ""
    """Reasoning of the planner's model about the actions of the parent."""
    tool: str = ""
    """Tool of its action; empty for the root."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of the action."""
    parts: tuple[NodePart, ...] = ()
    """Observation."""
    verdict: str = ""
    """Verdict; empty: not yet judged."""
    reason: str = ""
    """Reason for a verdict other than `new`."""
    judge: str = ""
    """`model`, or `rule`; empty: not yet judged."""
    failure: Failure | None = None
    """Reason for a failed call."""
    trouble: str = ""
    """Error of the program that the call ran."""
    isolation: str = ""
    """Isolation from its siblings."""
    diverged: bool = False
    """Its action returned something else when it was replayed."""
    stalled: str = ""
    """Reason for fewer children than wanted."""
    children: int = 0
    """Number of children."""
    citations: tuple[NodeCitation, ...] = ()
    """Citations of it by accepted pairs."""
    calls: tuple[CallSummary, ...] = ()
    """Model calls: those that chose its action, that judged it, and that chose its children's actions."""


class SeedAnswer(Struct, frozen=True, kw_only=True):
    """Question with its answer: an accepted pair, a task, or the answer of a rollout."""

    id: str
    """Id of the pair or task."""
    question: str
    """Question or instruction."""
    answer: str
    """Answer."""
    references: tuple[str, ...] = ()
    """Reference answers of the task."""
    score: float | None = None
    """Score of the answer."""
    reason: str = ""
    """Reason of the score."""
    kind: str = ""
    """Kind of the question or task."""
    hops: int | None = None
    """Number of documents that a pair needs."""
    steps: tuple[str, ...] = ()
    """Reasoning from question to answer."""
    spots: tuple[str, ...] = ()
    """Spots of the nodes that it rests on."""
    pass_rate: float | None = None
    """Measured share of right attempts."""


class SeedResults(Struct, frozen=True, kw_only=True):
    """Results of a seed; empty while it is unfinished."""

    seed: str
    """Id of the seed."""
    text: str
    """Its whole content."""
    state: WorkState
    """State."""
    answers: tuple[SeedAnswer, ...] = ()
    """Accepted pairs or tasks, or the answer."""
    rejected: tuple[tuple[str, str], ...] = ()
    """Rejected questions, each with the first reason."""
    ending: str = ""
    """Reason for the end of an episode's turns."""
    failure: Failure | None = None
    """Reason that there is no result."""
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    """Usage by role."""
    seconds: float | None = None
    """Duration of an episode."""


class SeedTokens(Struct, frozen=True, kw_only=True):
    """One row of exact tokens: a chain of model calls with a common prefix."""

    title: str
    """Description of the row."""
    agent: str = ""
    """Agent or role that made the calls."""
    pieces: tuple[Piece, ...]
    """Its tokens in order."""
    note: str = ""
    """Reason for missing texts, in one line."""


class StepFigures(Struct, frozen=True, kw_only=True):
    """Figures of a training step."""

    step: int
    """Number of the step; 0 is the validation before the first."""
    figures: dict[str, float | None]
    """Figures by name; `None`: not a finite number."""


class RunHit(Struct, frozen=True, kw_only=True):
    """Place where a text was found."""

    seed: str
    """Id of the seed."""
    spot: str
    """Place of the node; empty for the root and for what belongs to no node."""
    place: str
    """Part of the node: `seed`, `action`, `observation`, `plan`, `answer`."""
    excerpt: str
    """Text around it."""


class RunChanges(Struct, frozen=True, kw_only=True):
    """News of a run, or of one seed, since a cursor."""

    cursor: str
    """State to continue from."""
    summary: bool = False
    """The numbers of the run have changed: read its summary again."""
    seeds: tuple[str, ...] = ()
    """Seeds with news, at most 1,000; read them again."""
    spots: tuple[str, ...] = ()
    """Nodes of the watched seed that are new or have news."""
    steps: bool = False
    """Training steps were made."""


class AnswerRecord(Struct, frozen=True, kw_only=True):
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


class SeedRecord(Struct, frozen=True, kw_only=True):
    """All that a run has of a seed: a tree, an episode of a task (a tree without branches), or the calls of a training's episode."""

    tree: Tree
    """Its nodes, and the seed or the task, by whose id it is grouped."""
    draw: str = ""
    """Episodes whose rewards are compared, if a task was drawn several times, or its agents have rewards of their own."""
    is_episode: bool
    """False for the tree of a synthesis."""
    answers: tuple[AnswerRecord, ...] = ()
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
    answer_score: float | None = None
    """Score of its answer, if its reward has other parts."""
    leaf: str = ""
    """Id of the leaf, if the calls are those of a path in a tree of a training: other leaves share some of them."""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further facts for `native`: sample, step, stalled nodes, …"""
    is_validation: bool = False
    """It is an episode of a validation, whose tasks must not be trained."""

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


def empty_tree(id: str, group: str, text: str) -> Tree:
    """Return a tree without nodes: an episode whose messages or tokens alone are known."""
    return Tree(id=id, seed=Seed(index=0, id=group, content=text), nodes=())


def numbered_calls(calls: Iterable[Tokens], role: str) -> tuple[TokenCall, ...]:
    """Return the calls of an agent, whose ids are their numbers from 1."""
    voice = Voice(role=role)
    return tuple(
        TokenCall(id=str(number), voice=voice, tokens=tokens) for number, tokens in enumerate(calls, 1)
    )


def without_paths(text: str) -> str:
    """Return a text with only the last name of each absolute path.

    >>> without_paths("/data/own/ferries.csv")
    '…/ferries.csv'
    >>> without_paths("No such file: '/data/own/a.txt'; see https://a.example/b/c and data/d.txt")
    "No such file: '…/a.txt'; see https://a.example/b/c and data/d.txt"
    """
    return (_WHOLE_PATH if _WHOLE_PATH.fullmatch(text) else _PATHS).sub(r"…/\1", text)


def _shared(value: object) -> object:
    if isinstance(value, str):
        return without_paths(value)
    if is_mapping(value):
        return {without_paths(name): _shared(inner) for name, inner in value.items()}
    return [_shared(inner) for inner in value] if is_list_or_tuple(value) else value
