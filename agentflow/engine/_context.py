"""Resources that the trees and episodes of a run share."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.models import Prices
from agentflow.trace import BlobStore, MemoryBlobStore

T = TypeVar("T")


class EffectGate(Protocol):
    """Runs an effect as soon as it is allowed, for example once a paused run is resumed."""

    async def __call__(self, effect: Callable[[], Awaitable[T]], /) -> T:
        """Run the effect and return its result."""
        ...


async def run_now(effect: Callable[[], Awaitable[T]], /) -> T:
    """Run an effect immediately. Implements `EffectGate`. See docs/engine.md."""
    return await effect()


@dataclass(frozen=True, kw_only=True)
class EngineContext:
    """Resources that the trees and episodes of a run share. See docs/engine.md."""

    blobs: BlobStore = field(default_factory=MemoryBlobStore)
    """Store of images."""
    prices: Mapping[str, Prices] = field(default_factory=dict[str, Prices])
    """Prices of each role's model, for cost limits."""
    gate: EffectGate = run_now
    """Gate for every call of a model or tool."""
    clock: Clock = SYSTEM_CLOCK
    """Clock of time limits."""
