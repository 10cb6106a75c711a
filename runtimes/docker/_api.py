"""The part of the Docker engine's API that is used here, typed, over aiodocker."""

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


class ApiError(Exception):
    """The engine refused, or can't be reached; one line."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """The answer's HTTP status; 0 where there was none."""

    @property
    def unreachable(self) -> bool:
        """The engine can't be reached."""
        return self.status in (0, _UNREACHABLE)


class Api:
    """One engine. Containers go by their names."""

    def __init__(self, url: str) -> None:
        self._docker = Docker(url=url)
        # aiodocker's methods take keywords without types.
        self._containers = cast("_Containers", self._docker.containers)
        self._images = cast("_Images", self._docker.images)

    async def version(self) -> Mapping[str, Any]:
        """What the engine is."""
        return await _asked(self._docker.version())

    async def image(self, name: str) -> Mapping[str, Any] | None:
        """An image, if it is there."""
        try:
            return await _asked(self._images.inspect(name))
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def load(self, archive: bytes) -> None:
        """Take in an image."""
        await _asked(self._images.import_image(io.BytesIO(archive)))

    async def remove_image(self, name: str) -> None:
        """Forget an image that no container is made of."""
        await _asked(self._images.delete(name, force=False))

    async def image_names(self, repository: str) -> list[str]:
        """The full names of all images of a repository."""
        found = await _asked(self._images.list(filters={"reference": [repository]}))
        return [name for one in found for name in cast("list[str]", one["RepoTags"] or [])]

    async def containers(self, filters: Mapping[str, list[str]]) -> list[tuple[str, Mapping[str, str]]]:
        """Names and labels of the containers, running or not, that pass some filters."""
        found = await _asked(self._containers.list(all="true", filters=json.dumps(filters)))
        names = [cast("list[str]", one["Names"])[0].lstrip("/") for one in found]
        return [(name, cast("dict[str, str]", one["Labels"])) for name, one in zip(names, found, strict=True)]

    async def create(self, name: str, config: Mapping[str, Any]) -> None:
        """Make a container."""
        await _asked(self._containers.create(config, name=name))

    async def start(self, name: str) -> None:
        """Start it."""
        await _asked(self._containers.container(name).start())

    async def commit(self, name: str, repository: str, tag: str) -> None:
        """Make an image of a container's own layer."""
        await _asked(self._containers.container(name).commit(repository=repository, tag=tag))

    async def wait(self, name: str) -> int:
        """Wait for its end; its status."""
        return int((await _asked(self._containers.container(name).wait()))["StatusCode"])

    async def remove(self, name: str) -> None:
        """End and remove a container; returns when it is gone. Fine if it was."""
        container = self._containers.container(name)
        try:
            await _asked(container.delete(force=True, v=True))
        except ApiError as error:
            if error.status == _CONFLICT:
                # It is being removed already.
                await _gone(container.wait(condition="removed"))
            elif error.status != _NOT_FOUND:
                raise

    async def close(self) -> None:
        """Let go of the connections."""
        await self._docker.close()


async def _asked(call: Awaitable[T]) -> T:
    try:
        return await call
    except DockerError as error:
        raise ApiError(" ".join(str(error.message).split()), error.status) from error
    except (aiohttp.ClientError, OSError) as error:
        raise ApiError(str(error) or type(error).__name__) from error


async def _gone(call: Awaitable[object]) -> None:
    try:
        await _asked(call)
    except ApiError as error:
        if error.status != _NOT_FOUND:
            raise
