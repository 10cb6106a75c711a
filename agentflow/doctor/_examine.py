"""Diagnosis of several parts concurrently."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final, Literal, TypeAlias, get_args

import anyio

from agentflow.doctor._checks import (
    HOSTS,
    Diagnosis,
    DiagnosisState,
    examine_backend,
    examine_host,
    examine_provider,
    examine_runtime,
)
from agentflow.errors import ConfigurationError
from agentflow.models import PROVIDERS
from mcp_servers import BACKENDS
from mcp_servers.core import RUNTIMES, did_you_mean

Area: TypeAlias = Literal["runtimes", "backends", "models", "networks"]

AREAS: Final[tuple[Area, ...]] = get_args(Area)
"""Areas, in the order of the output."""

CONCURRENCY = 4
"""Maximum number of concurrent checks."""
SECONDS = 60.0
"""Time limit of a check."""

_Check: TypeAlias = Callable[[], Awaitable[Diagnosis]]


async def examine(names: Iterable[str], environment: Mapping[str, str]) -> list[Diagnosis]:
    """Check areas, or runtimes, backends, providers and hosts by name; without names, everything. See docs/doctor.md.

    :raises ConfigurationError: if a name is unknown.
    """
    checks = _checks(environment)
    wanted = _wanted(list(names), checks)
    found: dict[tuple[str, str], Diagnosis] = {}
    limit = anyio.CapacityLimiter(CONCURRENCY)

    async def check(key: tuple[str, str]) -> None:
        area, name = key
        async with limit:
            try:
                with anyio.move_on_after(SECONDS):
                    found[key] = await checks[key]()
            except Exception as error:  # boundary: any error of a check is its result
                text = " ".join(f"{type(error).__name__}: {error}".split())
                found[key] = Diagnosis(area=area, name=name, state=DiagnosisState.MISSING, text=text)
        if key not in found:
            text = f"not finished after {SECONDS:.0f} seconds"
            found[key] = Diagnosis(area=area, name=name, state=DiagnosisState.MISSING, text=text)

    async with anyio.create_task_group() as tasks:
        for key in wanted:
            tasks.start_soon(check, key)
    return [found[key] for key in wanted]


def _checks(environment: Mapping[str, str]) -> dict[tuple[str, str], _Check]:
    return {
        **{("runtimes", name): partial(examine_runtime, name) for name in RUNTIMES},
        **{("backends", name): partial(examine_backend, name) for name in BACKENDS},
        **{("models", name): partial(examine_provider, name, environment) for name in PROVIDERS},
        **{("networks", name): partial(examine_host, name) for name in HOSTS},
    }


def _wanted(names: list[str], checks: Mapping[tuple[str, str], _Check]) -> list[tuple[str, str]]:
    for name in names:
        if not any(name in key for key in checks):
            known = [*AREAS, *(name for _, name in checks)]
            raise ConfigurationError(f"{name!r} is unknown.{did_you_mean(name, known)}")
    return [key for key in checks if not names or any(name in key for name in names)]
