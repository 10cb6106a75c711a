"""Bodies of the swarm API's requests. Unknown fields are refused."""

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct, field, structs

from agentflow.gateway._types import EpisodeMode, EpisodeOffer, EpisodeOutcome
from agentflow.trace import Task

CLIENT_HEADER = "X-AgentFlow-Client"
"""Header with the id of a client."""
MOST_WAIT = 60.0
"""Maximum seconds that a request waits for something to happen."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=10**15)]
"""Number that a database can store."""


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
