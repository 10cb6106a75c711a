"""Typed wrapper over the part of aiodocker that the Docker runtime uses."""

import io
import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import aiohttp
from aiodocker import Docker, DockerError

T = TypeVar("T")

_NOT_FOUND = 404
_CONFLICT = 409
_UNREACHABLE = 900


class _OneContainer(Protocol):
    def start(self) -> Awaitable[None]: ...
    def wait(self, *, condition: str = "not-running") -> Awaitable[Mapping[str, Any]]: ...
    def delete(self, *, force: bool, v: bool) -> Awaitable[None]: ...
    def commit(self, *, repository: str, tag: str) -> Awaitable[Mapping[str, Any]]: ...
    def __getitem__(self, key: str) -> object: ...


class _Containers(Protocol):
    def create(self, config: Mapping[str, Any], *, name: str) -> Awaitable[object]: ...
    def container(self, container_id: str) -> _OneContainer: ...
    def list(self, *, all: str, filters: str) -> Awaitable[Sequence[_OneContainer]]: ...


class _Images(Protocol):
    def inspect(self, name: str) -> Awaitable[Mapping[str, Any]]: ...
    def import_image(self, data: io.BytesIO) -> Awaitable[object]: ...
    def list(self, *, filters: Mapping[str, list[str]]) -> Awaitable[Sequence[Mapping[str, Any]]]: ...
    def delete(self, name: str, *, force: bool) -> Awaitable[object]: ...


class DockerApiError(Exception):
    """Refusal or connection failure of the engine, as one line."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status of the response; 0 without one."""

    @property
    def unreachable(self) -> bool:
        """True if the engine cannot be reached."""
        return self.status in (0, _UNREACHABLE)


class DockerApi:
    """Client of one engine. Containers are addressed by name."""

    def __init__(self, url: str) -> None:
        self._docker = Docker(url=url)
        # aiodocker's methods take untyped keyword arguments.
        self._containers = cast("_Containers", self._docker.containers)
        self._images = cast("_Images", self._docker.images)

    async def version(self) -> Mapping[str, Any]:
        """Return the engine's version information."""
        return await _request(self._docker.version())

    async def image(self, name: str) -> Mapping[str, Any] | None:
        """Return an image's description, or `None` if it does not exist."""
        try:
            return await _request(self._images.inspect(name))
        except DockerApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def load(self, archive: bytes) -> None:
        """Import an image archive."""
        await _request(self._images.import_image(io.BytesIO(archive)))

    async def remove_image(self, name: str) -> None:
        """Remove an image that no container uses."""
        await _request(self._images.delete(name, force=False))

    async def image_names(self, repository: str) -> list[str]:
        """Return the full names of all images of a repository."""
        found = await _request(self._images.list(filters={"reference": [repository]}))
        return [name for one in found for name in cast("list[str]", one["RepoTags"] or [])]

    async def containers(self, filters: Mapping[str, list[str]]) -> list[tuple[str, Mapping[str, str]]]:
        """Return names and labels of the containers, running or not, that match the filters."""
        found = await _request(self._containers.list(all="true", filters=json.dumps(filters)))
        names = [cast("list[str]", one["Names"])[0].lstrip("/") for one in found]
        return [(name, cast("dict[str, str]", one["Labels"])) for name, one in zip(names, found, strict=True)]

    async def create(self, name: str, config: Mapping[str, Any]) -> None:
        """Create a container."""
        await _request(self._containers.create(config, name=name))

    async def start(self, name: str) -> None:
        """Start a container."""
        await _request(self._containers.container(name).start())

    async def commit(self, name: str, repository: str, tag: str) -> None:
        """Create an image from a container's writable layer."""
        await _request(self._containers.container(name).commit(repository=repository, tag=tag))

    async def wait(self, name: str) -> int:
        """Wait until a container ends; return its exit status."""
        return int((await _request(self._containers.container(name).wait()))["StatusCode"])

    async def remove(self, name: str) -> None:
        """Kill and remove a container; return when it is gone. A missing container is fine."""
        container = self._containers.container(name)
        try:
            await _request(container.delete(force=True, v=True))
        except DockerApiError as error:
            if error.status == _CONFLICT:
                # Its removal is in progress already.
                await _wait_gone(container.wait(condition="removed"))
            elif error.status != _NOT_FOUND:
                raise

    async def close(self) -> None:
        """Close the connections."""
        await self._docker.close()


async def _request(call: Awaitable[T]) -> T:
    try:
        return await call
    except DockerError as error:
        raise DockerApiError(" ".join(str(error.message).split()), error.status) from error
    except (aiohttp.ClientError, OSError) as error:
        raise DockerApiError(str(error) or type(error).__name__) from error


async def _wait_gone(call: Awaitable[object]) -> None:
    try:
        await _request(call)
    except DockerApiError as error:
        if error.status != _NOT_FOUND:
            raise
