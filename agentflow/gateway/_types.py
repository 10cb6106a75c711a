"""Types of the gateway: a call, its record and tokens, an episode with its outcome, and the bodies of the swarm API."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field, structs

from agentflow.errors import AgentFlowError
from agentflow.models import Message, PromptOrigin, Sampling, ToolSpec
from agentflow.trace import Task, TokenCall, Tokens, TokenTree, Voice

Dialect: TypeAlias = Literal["chat", "completions", "responses", "messages"]
"""API of a model call."""
EpisodeMode: TypeAlias = Literal["train", "validate"]
"""Use of an episode."""
OnText: TypeAlias = Callable[[str, str], None]
"""Receiver of the text of an answer while it is sampled: the id of the answer, and a piece."""
CLIENT_HEADER = "X-AgentFlow-Client"
"""Header with the id of a client."""
MAX_WAIT = 60.0
"""Maximum seconds that a request waits for something to happen."""
Number: TypeAlias = Annotated[int, Meta(ge=0, le=10**15)]
"""Number that a database can store."""
_encode_tools = msgspec.json.Encoder(order="sorted").encode


class GatewayError(AgentFlowError):
    """A request that the gateway refuses. The client gets the status and the message in the format of its API.

    :raises: by everything that answers a request.
    """

    def __init__(
        self, status: int, message: str, *, code: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status."""
        self.message = message
        """One line: problem and remedy."""
        self.code = code
        """Short name of the problem, such as `episode_ended`."""
        self.retry_after = retry_after
        """Seconds after which a retry may succeed; `None`: never."""


class GatewayCall(Struct, frozen=True, kw_only=True):
    """A model call, independent of the dialect in which it arrived."""

    dialect: Dialect
    """API in which it arrived."""
    messages: tuple[Message, ...] = ()
    """Conversation; the data of an image is its hash."""
    images: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Bytes of the images in the messages, by hash."""
    prompt: str | tuple[int, ...] | None = None
    """Prompt of `/completions`; `None`: the conversation is the prompt."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the model may call."""
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of a tool."""
    answers: int = 1
    """Number of answers to sample (`n`)."""
    sampling: Sampling = Sampling()
    """Sampling parameters of the request; those of a trained agent are set by the run."""
    schema: dict[str, Any] | None = None
    """JSON schema of the answer; `{}` for any JSON object."""
    template: dict[str, Any] = field(default_factory=dict[str, Any])
    """`chat_template_kwargs`."""
    continues: str = ""
    """Id of the response that it continues (`previous_response_id`)."""
    stream: bool = False
    """Send the answer as events."""
    removed: int = 0
    """Number of volatile lines removed from the conversation."""
    large: bool = False
    """It takes long to read: that is done in threads, so that other calls are answered in between."""


class RecordedCall(Struct, frozen=True, kw_only=True):
    """Record of one answer: exact tokens and messages, each stored once."""

    id: str
    """Id, unique in its episode; those of one call with several answers differ after a dot: `c3.0`, `c3.1`."""
    agent: str
    """Name of the agent."""
    dialect: Dialect
    """API in which it arrived."""
    trained: bool
    """The agent is trained."""
    delivered: bool
    """The client received it. An answer whose client left is kept and never trained."""
    origin: PromptOrigin
    """Origin of its prompt."""
    parent: str = ""
    """Id of the call that the prompt continues; empty: none."""
    tokens: Tokens | None = None
    """Tokens; with a parent the prompt holds only what follows the parent's tokens."""
    before: int = 0
    """Number of messages that it shares with its parent, including the parent's answer."""
    messages: tuple[Message, ...] = ()
    """Messages after those; the data of an image is its hash, see `recorded_image`."""
    answer: Message
    """The answer."""
    reasoning: str = ""
    """Reasoning before the answer."""
    tools: tuple[ToolSpec, ...] | None = None
    """Offered tools; `None`: those of the parent."""
    template: dict[str, Any] | None = None
    """`chat_template_kwargs`; `None`: those of the parent."""
    finish: str = "stop"
    """Reason for its end."""
    constrained: bool = False
    """A schema or a required tool call constrained it; its log-probabilities are those of the constrained distribution."""
    overrides: tuple[str, ...] = ()
    """Sampling parameters of the request that the run replaced."""
    removed: int = 0
    """Number of volatile lines removed from the request."""


def trained_tokens(calls: Iterable[RecordedCall]) -> dict[str, list[tuple[str, Tokens]]]:
    """Return id and tokens of each delivered call of a trained agent, by agent. See docs/gateway.md.

    :param calls: calls of one episode; parents before the calls that continue them.
    :raises ValueError: if a parent is missing.
    """
    whole: dict[str, tuple[int, ...]] = {"": ()}
    trained: dict[str, list[tuple[str, Tokens]]] = {}
    for call in calls:
        if call.tokens is None:
            continue
        if call.parent not in whole:
            raise ValueError(f"call {call.id!r} continues {call.parent!r}, which is missing")
        # Calls share the integers of a common prefix, which those of a token tree's paths do not.
        tokens = structs.replace(call.tokens, prompt=whole[call.parent] + call.tokens.prompt)
        whole[call.id] = tokens.prompt + tokens.sampled
        if call.trained and call.delivered:
            trained.setdefault(call.agent, []).append((call.id, tokens))
    return trained


def token_tree(calls: Iterable[RecordedCall], *, episode: str = "") -> TokenTree:
    """Return the token tree of an episode's calls; agents and sets of tools are voices of their own. See docs/gateway.md.

    Calls that no client received are left out. If one was continued all the same, its tokens are context.

    :param calls: calls of one episode; parents before the calls that continue them.
    :raises ValueError: if a parent is missing.
    """
    tree = TokenTree()
    for call in calls:
        if call.tokens is None:
            continue
        if call.parent:
            tree.extend(call.parent, call.id, call.tokens, listed=call.delivered)
        else:
            tools = _digest_of_tools(call.tools or ())
            voice = Voice(agent=call.agent, tools=tools, episode=episode)
            tree.add(TokenCall(id=call.id, voice=voice, tokens=call.tokens), listed=call.delivered)
    return tree


def _digest_of_tools(tools: Sequence[ToolSpec]) -> str:
    return blake2b(_encode_tools(tools), digest_size=6).hexdigest() if tools else ""


class EpisodeState(StrEnum):
    """State of an episode. The set is closed."""

    OFFERED = "offered"
    """It waits for a client."""
    OPEN = "open"
    """A client plays it."""
    SEALED = "sealed"
    """It ended, and its reward is being computed."""
    SCORED = "scored"
    """It has a reward."""
    USED = "used"
    """A step was made with it."""
    DROPPED = "dropped"
    """Left out: too old, or all rewards of its group are equal."""
    ABORTED = "aborted"
    """Its client gave it up."""
    EXPIRED = "expired"
    """Its client stayed away too long."""


class EpisodeOutcome(Struct, frozen=True, kw_only=True):
    """Result of an episode: a reward, or an answer that the run's metric scores."""

    reward: float | dict[str, float] | None = None
    """Any finite number, for all agents or for each; `None`: the metric scores the answer."""
    answer: str | None = None
    """Answer."""
    success: bool | None = None
    """The task was solved; `None`: unknown."""
    turn_rewards: dict[str, float] = field(default_factory=dict[str, float])
    """Additional rewards of single calls, by call id."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Further figures."""
    failure: str = ""
    """Reason for leaving the episode out, such as a failed judge; empty: it counts."""


class EpisodeBranch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Position of an episode in the tree of its group. See docs/tuner.md."""

    origin: str = ""
    """Id of the episode whose first calls it repeats; empty: it repeats none."""
    attempt: int = 0
    """Number of the origin's attempt."""
    version: int = 0
    """Version of the weights that sampled the repeated calls."""
    calls: int = 0
    """Number of calls before it parts from its origin."""
    tree: int = 0
    """Number of its tree: episodes that do not repeat what they should have begin trees of their own."""
    path: tuple[int, ...] = ()
    """Position of each of its first decisions among the episodes that share the calls before it."""
    splits: tuple[tuple[int, int], ...] = ()
    """For each episode that parts from it: the number of calls before, and the number of episodes that it stands for."""


class EpisodeOffer(Struct, frozen=True, kw_only=True):
    """Slot for one episode of a group."""

    id: str
    """Id: group and member, such as `12/3`."""
    group: str
    """Group whose rewards are compared."""
    task: Task
    """Task."""
    mode: EpisodeMode = "train"
    """Use."""
    seed: str = ""
    """Source of the seeds of everything sampled in it."""
    temperature: float | None = None
    """Sampling temperature of trained agents; `None`: that of the run."""
    branch: EpisodeBranch | UnsetType = UNSET
    """Its position in a tree of episodes; unset: it shares nothing."""

    @property
    def origin(self) -> str:
        """Id of the episode whose first calls it repeats; empty: it repeats none."""
        return "" if self.branch is UNSET else self.branch.origin


class BegunEpisode(Struct, frozen=True, kw_only=True):
    """An episode that a client plays."""

    episode: str
    """Id of the episode (that of its offer)."""
    attempt: int
    """Number of the attempt, from 1; each has its own keys."""
    mode: EpisodeMode
    """Use."""
    task: Task
    """Task."""
    base_url: str
    """Address for OpenAI clients; ends with `/v1`."""
    keys: dict[str, str]
    """Key of each agent; `""` is the agent of episodes with only one."""
    model: str
    """Name of the model."""
    version: int
    """Version of the weights at its beginning."""
    expires: float
    """Seconds without a call after which it expires."""
    client: str = ""
    """Id of the client, which only it knows: the header `X-AgentFlow-Client` of its later requests."""
    branch: EpisodeBranch | UnsetType = UNSET
    """Its position in a tree of episodes; unset: it shares nothing."""


class EpisodeReceipt(Struct, frozen=True, kw_only=True):
    """Receipt of an ended episode; it is on disk."""

    episode: str
    """Id of the episode."""
    attempt: int
    """Number of the attempt."""
    calls: int
    """Number of recorded answers."""
    tokens: int
    """Number of sampled tokens that can be trained."""
    forks: dict[str, int]
    """Number of calls by the origin of their prompt."""
    group: str
    """Group of the episode."""
    cancelled: int = 0
    """Number of calls that were running and have been cancelled."""


class EndedEpisode(Struct, frozen=True, kw_only=True):
    """An ended episode as the trainer collects it."""

    number: int
    """Position in the order in which episodes ended."""
    offer: EpisodeOffer
    """Its offer."""
    attempt: int
    """Number of the attempt."""
    state: EpisodeState
    """`sealed`, `scored`, `aborted` or `expired`."""
    outcome: EpisodeOutcome
    """Its outcome."""
    version: int
    """Version of the weights at its beginning."""


class GatewayStatus(Struct, frozen=True, kw_only=True):
    """Figures of a gateway at one moment."""

    states: dict[str, int]
    """Number of slots by state; used and dropped ones since the start of the process."""
    in_flight: int
    """Number of running calls."""
    calls: int
    """Number of recorded answers of open episodes."""
    version: int
    """Version of the weights."""
    held: bool
    """Calls wait while weights change."""
    finished: bool
    """The run is over."""


def check_finite(outcome: EpisodeOutcome) -> None:
    """Refuse an outcome with a number that is not finite, which JSON can't carry. See docs/gateway.md.

    :raises GatewayError: 400.
    """
    rewards = outcome.reward.values() if isinstance(outcome.reward, dict) else (outcome.reward or 0.0,)
    if not all(map(math.isfinite, (*rewards, *outcome.turn_rewards.values(), *outcome.metrics.values()))):
        raise GatewayError(400, "reward: not a finite number; write one, or a failure", code="bad_reward")


def rewards_of(outcome: EpisodeOutcome, agents: Mapping[str, object]) -> dict[str, float]:
    """Return the reward of each agent; one number applies to all of them.

    Example::

        assert rewards_of(EpisodeOutcome(reward=0.5), {"": None}) == {"": 0.5}
    """
    if isinstance(outcome.reward, dict):
        return {agent: outcome.reward[agent] for agent in agents if agent in outcome.reward}
    return {} if outcome.reward is None else dict.fromkeys(agents, outcome.reward)


class OwnTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A task that a client brings."""

    id: str
    question: str = ""
    references: tuple[str, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    def task(self) -> Task:
        """Return it as a task."""
        return Task(index=0, **structs.asdict(self))


class BeginRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`POST /swarm/episodes`."""

    task: OwnTask | None = None
    mode: EpisodeMode | None = None
    agents: tuple[str, ...] = ()
    wait: float = 0.0


class EndRequest(EpisodeOutcome, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`POST /swarm/episodes/{id}/end`: the outcome, and the attempt that it belongs to."""

    attempt: Number
    end_id: str = ""

    def outcome(self) -> EpisodeOutcome:
        """Return the outcome."""
        return EpisodeOutcome(**{name: getattr(self, name) for name in EpisodeOutcome.__struct_fields__})


class AttemptRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`POST /swarm/episodes/{id}/abort` and `/alive`."""

    attempt: Number
    why: str = ""


class RewardRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`PUT /swarm/episodes/{id}/reward`."""

    attempt: Number
    reward: float | dict[str, float]


class ScoreRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /swarm/episodes/{id}/score`."""

    attempt: Number
    outcome: EpisodeOutcome


class OffersRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /swarm/offers`."""

    offers: tuple[EpisodeOffer, ...]
    only: bool = False


class UseRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /swarm/use`."""

    ids: tuple[str, ...]
    step: Number


class WithdrawRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /swarm/withdraw`."""

    ids: tuple[str, ...]
    why: str = "stale"


class VersionRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`PUT /swarm/version`."""

    version: Number


class HoldRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`PUT /swarm/hold`: let calls wait or continue."""

    held: bool


class AliveAnswer(Struct, frozen=True, kw_only=True):
    """Answer of `/alive`."""

    expires: float
    """Seconds after which the episode expires."""


class ErrorDetail(Struct, frozen=True, kw_only=True):
    """Reason of a refusal."""

    message: str
    code: str = ""


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    """Body of a refusal."""

    error: ErrorDetail
