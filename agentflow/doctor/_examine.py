"""Everything at once."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final, Literal, TypeAlias, get_args

import anyio

from agentflow.doctor._backends import examine_backend
from agentflow.doctor._finding import Diagnosis, DiagnosisState
from agentflow.doctor._models import examine_provider
from agentflow.doctor._networks import HOSTS, examine_host
from agentflow.doctor._runtimes import examine_runtime
from agentflow.errors import ConfigurationError
from agentflow.models import PROVIDERS
from mcp_servers import BACKENDS
from mcp_servers.core import RUNTIMES, did_you_mean

__all__ = ["AREAS", "Area", "examine"]

Area: TypeAlias = Literal["runtimes", "backends", "models", "networks"]

AREAS: Final[tuple[Area, ...]] = get_args(Area)
"""What is looked at, in this order."""

AT_ONCE = 4
"""Things that are tried at the same time."""
SECONDS = 60.0
"""Time for one of them."""

_Look: TypeAlias = Callable[[], Awaitable[Diagnosis]]


async def examine(names: Iterable[str], environment: Mapping[str, str]) -> list[Diagnosis]:
    """Try these: areas, or runtimes, backends, providers and hosts by name; without names everything.

    :raises ConfigurationError: for a name that means nothing.
    """
    looks = _looks(environment)
    wanted = _wanted(list(names), looks)
    found: dict[tuple[str, str], Diagnosis] = {}
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def look(key: tuple[str, str]) -> None:
        area, name = key
        async with limit:
            try:
                with anyio.move_on_after(SECONDS):
                    found[key] = await looks[key]()
            except Exception as error:  # boundary: whatever a part raises is what is wrong with it
                said = " ".join(f"{type(error).__name__}: {error}".split())
                found[key] = Diagnosis(area=area, name=name, state=DiagnosisState.MISSING, said=said)
        if key not in found:
            said = f"no end of it in {SECONDS:.0f} seconds"
            found[key] = Diagnosis(area=area, name=name, state=DiagnosisState.MISSING, said=said)

    async with anyio.create_task_group() as tasks:
        for key in wanted:
            tasks.start_soon(look, key)
    return [found[key] for key in wanted]


def _looks(environment: Mapping[str, str]) -> dict[tuple[str, str], _Look]:
    return {
        **{("runtimes", name): partial(examine_runtime, name) for name in RUNTIMES},
        **{("backends", name): partial(examine_backend, name) for name in BACKENDS},
        **{("models", name): partial(examine_provider, name, environment) for name in PROVIDERS},
        **{("networks", name): partial(examine_host, name) for name in HOSTS},
    }


def _wanted(names: list[str], looks: Mapping[tuple[str, str], _Look]) -> list[tuple[str, str]]:
    for name in names:
        if not any(name in key for key in looks):
            known = [*AREAS, *(name for _, name in looks)]
            raise ConfigurationError(f"there is no {name!r} to look at.{did_you_mean(name, known)}")
    return [key for key in looks if not names or any(name in key for name in names)]
