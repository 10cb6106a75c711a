"""Contract of a sandbox service, and the options of the runtimes that use one."""

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import anyio
from pydantic import Field, PositiveFloat, PositiveInt

from agentflow._terminal import printable
from agentflow.errors import InstanceGone, RuntimeFailure
from agentflow.settings import Section
from runtimes._protocol import InstanceSpec

ServiceName = Literal["daytona", "e2b", "k8s", "modal"]
"""Services that provide remote sandboxes."""

SERVER_LABEL: Final = "agentflow-server"
"""Label of a sandbox with the name of the server that started it."""
REALM_LABEL: Final = "agentflow-realm"
"""Label of a sandbox with the id of that server's user on its machine."""


class RemoteOptions(Section):
    """Options of the runtimes with remote sandboxes."""

    template: str | None = None
    """daytona: snapshot; e2b: template; k8s: warm pool; modal: image of a registry. It needs `bash` and `python3` (3.11 or newer)."""
    internet: bool = False
    """daytona, e2b, modal: sandboxes may reach the internet."""
    lifetime: PositiveInt = Field(default=600, ge=60)
    """Seconds after which the service ends a sandbox whose server has died."""
    namespace: str = "default"
    """k8s: namespace of the sandboxes."""
    url: str | None = None
    """k8s: address of the sandbox router."""
    start_seconds: PositiveFloat = 120.0
    """Seconds to wait for a sandbox to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTraits:
    """Differences between services."""

    live_fork: bool = False
    """A sandbox can be copied with its memory."""
    renew: bool = False
    """The end of a sandbox has to be postponed again and again."""
    notes: tuple[str, ...] = ()
    """Missing protections and features, one line each."""


class RemoteSandbox(Protocol):
    """Running sandbox of a service.

    Every method raises `InstanceGone` if the sandbox has ended, and `RuntimeFailure` if the service fails.
    """

    @property
    def id(self) -> str:
        """Id that the service gave it."""
        ...

    async def command(self, command: str, seconds: float) -> bytes:
        """Run a shell command as root; return its standard output."""
        ...

    async def upload(self, path: str, data: bytes) -> str:
        """Write a file; return the path at which root finds it, which may be another folder."""
        ...

    async def download(self, path: str) -> bytes:
        """Return a file's content."""
        ...

    async def renew(self, seconds: int) -> None:
        """Postpone its end until that many seconds from now."""
        ...

    async def fork(self, labels: Mapping[str, str], seconds: int) -> "RemoteSandbox":
        """Copy it with its memory."""
        ...

    async def end(self) -> None:
        """End it; one that has ended is fine."""
        ...


class SandboxService(ABC):
    """Client of one service."""

    traits: ServiceTraits
    """Differences to other services."""

    @abstractmethod
    async def open(self) -> None:
        """Connect.

        :raises IsolationUnavailable: if a key or an address is missing.
        """

    @abstractmethod
    async def create(self, spec: InstanceSpec, labels: Mapping[str, str]) -> RemoteSandbox:
        """Start a sandbox with these labels.

        :raises IsolationUnavailable: if the service refuses.
        """

    @abstractmethod
    async def servers(self, realm: str) -> dict[str, str]:
        """Return the ids of all sandboxes of a realm, each with the name of its server."""

    @abstractmethod
    async def end(self, sandbox_id: str) -> None:
        """End a sandbox by its id; one that has ended is fine."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""


_MAX_CHARACTERS = 300


def one_line(text: str, *secrets: str) -> str:
    """Return a message of a service in one line, without the values of the named environment variables."""
    for name in secrets:
        value = os.environ.get(name)
        if value:
            text = text.replace(value, f"${name}")
    return printable(" ".join(text[: 100 * _MAX_CHARACTERS].split()))[:_MAX_CHARACTERS] or "no reason given"


@asynccontextmanager
async def service_errors(
    service: str, secret: str, is_gone: Callable[[Exception], bool]
) -> AsyncGenerator[None]:
    """Translate the errors of a service's library, and shield it from cancellation, which some do not survive.

    :param secret: environment variable with the key.
    :param is_gone: true for an error that means that the sandbox has ended.
    :raises InstanceGone: if the sandbox has ended.
    :raises RuntimeFailure: if the service failed otherwise.
    """
    try:
        with anyio.CancelScope(shield=True):
            yield
    except RuntimeFailure:
        raise
    except Exception as error:
        # Boundary: the libraries raise their own exceptions, those of their transports, and bare ones.
        if is_gone(error):
            raise InstanceGone("the sandbox has ended") from None
        raise RuntimeFailure(f"{service}: {one_line(str(error) or type(error).__name__, secret)}") from None
