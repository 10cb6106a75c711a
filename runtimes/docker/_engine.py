"""Containers of a Docker engine, through its API."""

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread

from agentflow.errors import IsolationUnavailable, NotOffered, RuntimeFailure
from runtimes.docker import _host_root
from runtimes.docker._api import DockerApi, DockerApiError
from runtimes.docker._oci import MASKED
from runtimes.docker._options import ContainerOptions
from runtimes.docker._plan import CAPABILITIES, Container, ContainerPlan, exit_reason

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    places = {"runtime": os.environ.get("XDG_RUNTIME_DIR", "/run"), "home": str(Path.home())}
    for pattern in _USUAL:
        path = Path(pattern.format(**places))
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


class EngineLauncher(_host_root.HostRootLauncher):
    """Launcher that uses a Docker engine. See `runtimes.docker._plan.ContainerLauncher`."""

    def __init__(self, options: ContainerOptions, oci_runtime: str | None = None) -> None:
        self._options = options
        self._oci_runtime = oci_runtime
        self._labels: dict[str, str] = {}
        self._image = options.image or ""
        self._api: DockerApi | None = None
        self.env: Mapping[str, str] | None = None
        """Environment that the image sets."""
        self.notes: tuple[str, ...] = ()
        """Missing protections."""
        self.alive = False
        """True while the engine answers."""

    @property
    def network(self) -> bool:
        """True if containers have a network."""
        return self._options.network != "none"

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
            found = await api.image(self._image)
            if found is None:
                raise IsolationUnavailable(
                    f"the Docker engine has no image {self._image!r}: run docker pull {self._image}"
                )
            labels = cast("dict[str, str]", found["Config"].get("Labels") or {})
            if labels.get(_host_root.LABEL) == _host_root.HOST:
                self._root = await anyio.to_thread.run_sync(_host_root.host_root)
                return
            lines = cast("list[str]", found["Config"].get("Env") or [])
            self.env = {name: value for name, _, value in (line.partition("=") for line in lines)}
            return
        self._root = await anyio.to_thread.run_sync(_host_root.host_root)
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
            return f"the image {self._image!r} has no {self.python}: use one with Python 3.11 or newer"
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
            {"Type": "bind", "Source": one.source, "Target": one.target, "ReadOnly": True}
            for one in plan.mounts
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
            "Tmpfs": {
                one.target: f"rw,exec,nosuid,nodev,size={one.bytes},nr_inodes={one.files},mode={one.mode}"
                for one in plan.folders
            },
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
