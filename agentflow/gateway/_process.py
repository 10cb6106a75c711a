"""The gateway as a supervised process, and the program that runs in it."""

import json
import os
import secrets
import signal
import tempfile
from collections.abc import Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import urlsplit

import aiohttp
import anyio
from pydantic import SecretStr

from agentflow._import_path import module_command
from agentflow._private_files import make_private_folder, open_private
from agentflow.actors import ChildSpec, Process, Restart, RestartLimitReached, StartFailed, Supervisor
from agentflow.errors import RunStopped, StopCause
from agentflow.gateway._answers import Answerer, ExactAnswerer, PlainAnswerer, RecordingAnswerer
from agentflow.gateway._episodes import EpisodeRegistry
from agentflow.gateway._server import MAX_REQUESTS, ModelRoutes, gateway_app
from agentflow.gateway._settings import AgentSettings, GatewaySettings, UpstreamSettings, own_host, url_host
from agentflow.gateway._store import EpisodeStore
from agentflow.gateway._swarm_routes import add_swarm_routes
from agentflow.http_server import serving
from agentflow.models import ModelConnection, ModelSettings
from agentflow.runs import lock_output
from agentflow.serving import kept_port

LOG_FILE = "gateway.log"
POLL_SECONDS = 0.05
START_SECONDS = 60.0
STOP_SECONDS = 10.0
RESTARTS = 100
"""Number of restarts within `RESTART_SECONDS` after which the gateway gives up."""
RESTART_SECONDS = 600.0
_CHILD = "gateway"
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
"""Memory of large bodies and images returns to the system at once; glibc keeps blocks of up to 32 MiB for each thread."""
_TAIL_BYTES = 65_536


class Gateway:
    """A gateway in a process of its own, ready to answer inside `async with`. See docs/gateway.md.

    A process that dies is restarted with the same address and journal: clients retry in the meantime, open episodes are
    given to the next client, and ended ones come back.

    :raises ConfigurationError: on entering, if the settings contradict each other.
    :raises RunStopped: if it does not start, or fails again and again; the message has its last words.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        token = settings.token.get_secret_value() or secrets.token_urlsafe(32)
        settings.check()
        self._settings = settings.model_copy(update={"token": SecretStr(token)})
        self._port = settings.port
        self._folder = Path()
        self._log: IO[bytes]
        self._given: IO[bytes]
        self._running: Process | None = None
        self._stack = AsyncExitStack()
        self.starts = 0
        """Number of process starts."""

    @property
    def url(self) -> str:
        """Address, without `/v1`."""
        return f"http://{url_host(own_host(self._settings.host))}:{self._port}"

    @property
    def token(self) -> str:
        """Token of the owner."""
        return self._settings.token.get_secret_value()

    @property
    def folder(self) -> Path:
        """Folder of the journal."""
        return self._folder

    @property
    def pid(self) -> int:
        """Process id; 0 while it is down."""
        return 0 if self._running is None else self._running.pid

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            # Reserved, so that no other program gets requests with keys during a restart.
            self._port = self._settings.port or stack.enter_context(kept_port(self._settings.host))
            self._folder = self._settings.folder or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="agentflow-gateway-"))
            )
            make_private_folder(self._folder)
            self._log = stack.enter_context(open_private(self._folder / LOG_FILE, "ab"))
            # Secrets are neither in the arguments nor in the environment.
            self._given = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
            own = self._settings.model_copy(update={"port": self._port, "folder": self._folder})
            self._given.write(encode_settings(own))
            spec = ChildSpec(
                id=_CHILD,
                start=self._process,
                restart=Restart.PERMANENT,
                shutdown=STOP_SECONDS,
                start_timeout=START_SECONDS,
            )
            stack.enter_context(self._last_words_of_failure())
            supervisor = Supervisor([spec], name=_CHILD, intensity=RESTARTS, period=RESTART_SECONDS)
            try:
                await stack.enter_async_context(supervisor)
            except StartFailed as failed:
                message = f"the gateway can't be started: {self.last_words() or failed}"
                raise RunStopped(StopCause.MODEL, message) from failed
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    @contextmanager
    def _last_words_of_failure(self) -> Generator[None]:
        try:
            yield
        except RestartLimitReached as limit:
            message = f"the gateway fails again and again: {self.last_words() or limit}"
            raise RunStopped(StopCause.MODEL, message) from limit

    def last_words(self) -> str:
        """Return the last line of its log."""
        with open(self._folder / LOG_FILE, "rb") as log:
            log.seek(max(0, os.path.getsize(log.name) - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _process(self) -> Process:
        self.starts += 1
        self._given.seek(0)
        self._running = Process(
            module_command("agentflow.gateway"),
            env={**os.environ, **_ALLOCATOR},
            stdin=self._given,
            stdout=self._log,
            stderr=self._log,
            ready=self._ready,
        )
        return self._running

    async def _ready(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.head(self.url) as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await anyio.sleep(POLL_SECONDS)


def encode_settings(settings: GatewaySettings) -> bytes:
    """Return settings as JSON with their secrets, for another process of the same user."""

    def reveal(value: object) -> str:
        return value.get_secret_value() if isinstance(value, SecretStr) else str(value)

    return json.dumps(settings.model_dump(exclude_none=True), default=reveal).encode()


async def run_gateway(settings: GatewaySettings, started: "anyio.Event | None" = None) -> None:
    """Serve the model APIs and the swarm API until SIGTERM or SIGINT.

    See docs/gateway.md.

    :raises ConfigurationError: if the settings can't be used.
    :raises RunStopped: if the journal can't be written.
    """
    settings.check()
    async with AsyncExitStack() as stack:
        folder = settings.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_private_folder(folder)
        stack.enter_context(lock_output(folder))
        models = await _open_models(settings, stack)
        store = await stack.enter_async_context(EpisodeStore(folder))
        public = settings.public_url.rstrip("/").removesuffix("/v1")
        address = f"{public}/v1" if public else ""
        registry = await stack.enter_async_context(
            EpisodeRegistry(settings, store, models, base_url=lambda: address)
        )
        names = (*settings.hosts, urlsplit(public).netloc) if public else settings.hosts
        hosts = (*names, "127.0.0.1", "localhost") if names else ()
        routes = ModelRoutes(
            registry,
            max_body=settings.body_bytes,
            max_requests=max(MAX_REQUESTS, 4 * settings.limits.in_flight),
            any_model=settings.any_model,
        )
        app = gateway_app(routes, settings.host, hosts)
        add_swarm_routes(app, registry, settings)
        url = await stack.enter_async_context(serving(app, settings.host, settings.port, name="gateway"))
        port = urlsplit(url).port
        address = address or f"http://{url_host(own_host(settings.host))}:{port}/v1"
        if started is not None:
            started.set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.broken)
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    tasks.cancel_scope.cancel()
                    break


async def _open_models(settings: GatewaySettings, stack: AsyncExitStack) -> Mapping[str, Answerer]:
    """Open the connection of each agent's model; trained agents share one."""
    trained: Answerer | None = None
    models: dict[str, Answerer] = {}
    for name, agent in settings.agents_or_one().items():
        if not agent.trained:
            models[name] = await _open_plain(agent, stack)
        else:
            trained = trained or await _open_trained(settings.upstream, stack)
            models[name] = trained
    return models


async def _open_plain(agent: AgentSettings, stack: AsyncExitStack) -> Answerer:
    assert agent.model is not None
    connection = await stack.enter_async_context(ModelConnection(agent.model))
    return PlainAnswerer(connection, vision=agent.model.vision)


async def _open_trained(upstream: UpstreamSettings, stack: AsyncExitStack) -> Answerer:
    settings = ModelSettings(
        name=upstream.model,
        base_url=upstream.base_url,
        api="openai",
        api_key=upstream.api_key,
        tokens=True,
        max_concurrency=upstream.max_concurrency,
        call_seconds=upstream.call_seconds,
        response_bytes=upstream.response_bytes,
    )
    connection = await stack.enter_async_context(ModelConnection(settings))
    by_messages = RecordingAnswerer(connection)
    return ExactAnswerer(connection.engine, by_messages) if upstream.tokens == "exact" else by_messages
