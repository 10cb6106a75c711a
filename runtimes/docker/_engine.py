"""Containers of a Docker engine, and a typed wrapper over the part of aiodocker that they use."""

import contextlib
import inspect
import io
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiohttp
import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from aiodocker import Docker, DockerError

from agentflow.errors import IsolationUnavailable, NotOffered, RuntimeFailure
from runtimes.docker import _host_root
from runtimes.docker._plan import (
    CAPABILITIES,
    MASKED,
    WRITABLE_FOLDERS,
    Container,
    ContainerLauncher,
    ContainerOptions,
    ContainerPlan,
    exit_reason,
)

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
    def inspect(self, name: str) -> Awaitable[object]: ...
    def import_image(self, data: io.BytesIO) -> object: ...
    def list(self, *, filters: Mapping[str, list[str]]) -> Awaitable[object]: ...
    def delete(self, name: str, *, force: bool) -> Awaitable[object]: ...


class ImageConfig(msgspec.Struct, rename="pascal"):
    """Part of an image's description that the runtime uses."""

    labels: dict[str, str] | None = None
    """Labels."""
    env: list[str] | None = None
    """Environment, as `NAME=value`."""


class _ImageDescription(msgspec.Struct, rename="pascal"):
    config: ImageConfig


class _ImageSummary(msgspec.Struct, rename="pascal"):
    repo_tags: list[str] | None


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
        self._containers: _Containers = self._docker.containers
        self._images: _Images = self._docker.images

    async def version(self) -> Mapping[str, Any]:
        """Return the engine's version information."""
        return await _request(self._docker.version())

    async def image(self, name: str) -> ImageConfig | None:
        """Return an image's configuration, or `None` if it does not exist."""
        try:
            return msgspec.convert(await _request(self._images.inspect(name)), _ImageDescription).config
        except DockerApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def load(self, archive: bytes) -> None:
        """Import an image archive."""
        loading = self._images.import_image(io.BytesIO(archive))
        assert inspect.isawaitable(loading)
        await _request(loading)

    async def remove_image(self, name: str) -> None:
        """Remove an image that no container uses."""
        await _request(self._images.delete(name, force=False))

    async def image_names(self, repository: str) -> list[str]:
        """Return the full names of all images of a repository."""
        images = await _request(self._images.list(filters={"reference": [repository]}))
        return [
            name for image in msgspec.convert(images, list[_ImageSummary]) for name in image.repo_tags or []
        ]

    async def containers(self, filters: Mapping[str, list[str]]) -> list[tuple[str, Mapping[str, str]]]:
        """Return names and labels of the containers, running or not, that match the filters."""
        containers = await _request(self._containers.list(all="true", filters=json.dumps(filters)))
        names = [msgspec.convert(container["Names"], list[str])[0].lstrip("/") for container in containers]
        labels = [msgspec.convert(container["Labels"], dict[str, str]) for container in containers]
        return list(zip(names, labels, strict=True))

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
                await _request_unless_gone(container.wait(condition="removed"))
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


async def _request_unless_gone(call: Awaitable[object]) -> None:
    try:
        await _request(call)
    except DockerApiError as error:
        if error.status != _NOT_FOUND:
            raise


OWNER = "agentflow.server"
"""Label with the name of a container's server."""
REALM = "agentflow.realm"
"""Label with the name of the directory that the server shares with others."""

_END_SECONDS = 30.0
_USUAL = ("/var/run/docker.sock", "{runtime}/docker.sock", "{home}/.docker/run/docker.sock")


def engine_url(socket: Path | None) -> str:
    """Return the URL of the engine.

    :raises IsolationUnavailable: if no engine is found, or it is not on this machine.
    """
    if socket is not None:
        if not socket.is_socket():
            raise IsolationUnavailable(
                f"no Docker engine listens at {socket}: start dockerd, or name its socket"
            )
        return f"unix://{socket}"
    named = os.environ.get("DOCKER_HOST")
    if named and not named.startswith("unix://"):
        raise IsolationUnavailable(
            f"DOCKER_HOST is {named}: the Docker engine must be on this machine, at unix:///path/of/docker.sock"
        )
    if named:
        return named
    folders = {"runtime": os.environ.get("XDG_RUNTIME_DIR", "/run"), "home": str(Path.home())}
    for pattern in _USUAL:
        path = Path(pattern.format(**folders))
        if path.is_socket():
            return f"unix://{path}"
    raise IsolationUnavailable(
        "no Docker engine runs here: install docker.io and start dockerd, or set the runtime's socket (or DOCKER_HOST)"
    )


class EngineContainer:
    """Container of the engine. See `runtimes.docker._plan.Container`."""

    def __init__(self, api: DockerApi, name: str, image: str | None, forks: str | None) -> None:
        self._api = api
        self._name = name
        self._image = image
        self._forks = forks

    async def failed(self) -> str:
        """Wait until the container ends by itself; return the reason."""
        try:
            return exit_reason(await self._api.wait(self._name))
        except DockerApiError as error:
            return str(error)

    async def layer(self) -> str | None:
        """Save the writable layer as an image for a fork; return its name."""
        if self._forks is None:
            return None
        image = f"{self._forks}-{secrets.token_hex(8)}"
        await self.commit(image)
        return image

    async def commit(self, image: str) -> None:
        """Save the writable layer as an image."""
        if self._forks is None:
            raise NotOffered(
                "a read-only container is identical to its image: start the runtime with writable"
            )
        repository, _, tag = image.rpartition(":")
        try:
            await self._api.commit(self._name, repository or tag, tag if repository else "latest")
        except DockerApiError as error:
            raise RuntimeFailure(
                f"the Docker engine could not create the image {image!r}: {error}"
            ) from error

    async def end(self) -> None:
        """Kill and remove the container."""
        with anyio.move_on_after(_END_SECONDS):
            with contextlib.suppress(DockerApiError):
                await self._api.remove(self._name)
            if self._image is not None:
                with contextlib.suppress(DockerApiError):
                    await self._api.remove_image(self._image)


class EngineLauncher(ContainerLauncher):
    """Launcher that uses a Docker engine. See `runtimes.docker._plan.ContainerLauncher`."""

    def __init__(self, options: ContainerOptions, oci_runtime: str | None = None) -> None:
        self._options = options
        self._oci_runtime = oci_runtime
        self._labels: dict[str, str] = {}
        self._image = options.image or ""
        self._api: DockerApi | None = None
        self.network = options.network != "none"

    async def open(self, folder: str, realm: str, lives: Callable[[str], bool]) -> None:
        """Connect to the engine, make sure the image exists, and remove the containers of dead servers."""
        url = await anyio.to_thread.run_sync(engine_url, self._options.socket)
        api = self._api = DockerApi(url)
        try:
            version = await api.version()
            await self._find_image(api)
            self._labels = {OWNER: os.path.basename(folder), REALM: realm}
            await self._sweep(api, realm, lives)
            self.alive = True
        except DockerApiError as error:
            await self.close()
            raise IsolationUnavailable(f"the Docker engine at {url} cannot be used: {error}") from error
        except BaseException:
            await self.close()
            raise
        if version.get("Os", "linux") != "linux":
            await self.close()
            raise IsolationUnavailable(f"the Docker engine at {url} does not run Linux containers")

    async def _find_image(self, api: DockerApi) -> None:
        if self._image:
            config = await api.image(self._image)
            if config is None:
                raise IsolationUnavailable(
                    f"the Docker engine has no image {self._image!r}: run docker pull {self._image}"
                )
            if (config.labels or {}).get(_host_root.LABEL) == _host_root.HOST:
                self.root = await anyio.to_thread.run_sync(_host_root.host_root)
                return
            lines = config.env or []
            self.env = {name: value for name, _, value in (line.partition("=") for line in lines)}
            return
        self.root = await anyio.to_thread.run_sync(_host_root.host_root)
        self._image, archive = await anyio.to_thread.run_sync(_host_root.image)
        if await api.image(self._image) is None:
            await api.load(archive)

    async def _sweep(self, api: DockerApi, realm: str, lives: Callable[[str], bool]) -> None:
        for name, labels in await api.containers({"label": [f"{REALM}={realm}"]}):
            if not lives(labels.get(OWNER, "")):
                with contextlib.suppress(DockerApiError):
                    await api.remove(name)
        for image in await api.image_names(_forks(realm)):
            if not lives(image.partition(":")[2].partition("-")[0]):
                with contextlib.suppress(DockerApiError):
                    await api.remove_image(image)

    async def launch(self, plan: ContainerPlan) -> Container:
        """Create a container and start it."""
        assert self._api is not None
        forks = f"{_forks(self._labels[REALM])}:{self._labels[OWNER]}" if self._options.writable else None
        container = EngineContainer(self._api, plan.name, plan.image, forks)
        try:
            # Shielded: the engine completes a request whose client has gone, so the container would appear after its
            # removal.
            with anyio.CancelScope(shield=True), anyio.fail_after(self._options.start_seconds):
                await self._api.create(plan.name, self._config(plan))
                await self._api.start(plan.name)
            await anyio.lowlevel.checkpoint()
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await container.end()
            if isinstance(error, TimeoutError):
                raise IsolationUnavailable(
                    f"the Docker engine did not start a container within {self._options.start_seconds:g} seconds"
                ) from error
            if isinstance(error, DockerApiError):
                self.alive = not error.unreachable
                raise IsolationUnavailable(self._explained(error)) from error
            raise
        return container

    def _explained(self, error: DockerApiError) -> str:
        text = str(error)
        if "executable file not found" in text:
            return f"the image {self._image!r} has no {self.root.python}: use one with Python 3.11 or newer"
        return f"the Docker engine could not start a container: {text}"

    def _config(self, plan: ContainerPlan) -> dict[str, Any]:
        return {
            "Image": plan.image or self._image,
            "Entrypoint": [plan.argv[0]],
            "Cmd": list(plan.argv[1:]),
            "Env": [f"{name}={value}" for name, value in plan.env.items()],
            "User": "0:0",
            "WorkingDir": "/",
            "Hostname": "sandbox",
            "Labels": self._labels,
            "Healthcheck": {"Test": ["NONE"]},
            "NetworkDisabled": not self.network,
            "HostConfig": self._host_config(plan),
        }

    def _host_config(self, plan: ContainerPlan) -> dict[str, Any]:
        limits, cpus = plan.limits, self._options.cpus
        mounts: list[dict[str, Any]] = [
            {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": True}
            for mount in plan.mounts
        ]
        mounts += [
            {"Type": "tmpfs", "Target": path, "ReadOnly": True, "TmpfsOptions": {"SizeBytes": 4096}}
            for path in plan.hidden
        ]
        config: dict[str, Any] = {
            # Any end of the init process, also by the server's death, removes the container.
            "AutoRemove": True,
            "NetworkMode": self._options.network,
            "IpcMode": "private",
            "ReadonlyRootfs": not self._options.writable,
            "CapDrop": ["ALL"],
            "CapAdd": list(CAPABILITIES),
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": plan.processes,
            "Tmpfs": dict.fromkeys(
                WRITABLE_FOLDERS,
                f"rw,exec,nosuid,nodev,size={limits.disk_bytes},nr_inodes={limits.files},mode=1777",
            ),
            "ShmSize": plan.shared_memory,
            "Mounts": mounts,
            "MaskedPaths": list(MASKED),
            "LogConfig": {"Type": "none"},
        }
        if limits.memory_bytes is not None:
            config |= {"Memory": limits.memory_bytes, "MemorySwap": limits.memory_bytes}
        if cpus is not None:
            config["NanoCpus"] = int(cpus * 1e9)
        if self._oci_runtime is not None:
            config["Runtime"] = self._oci_runtime
        return config

    async def close(self) -> None:
        """Close the connections to the engine."""
        self.alive = False
        if self._api is not None:
            api, self._api = self._api, None
            await api.close()


def _forks(realm: str) -> str:
    """Return the repository of the images of forks. Tags begin with the server's name; each image is removed with its container."""
    return f"agentflow-fork-{realm}"
