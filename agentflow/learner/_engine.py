"""The inference engine: vLLM with the policy, and a frozen copy if a role uses one."""

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
import anyio
import msgspec
import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray
from pydantic import SecretStr

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._private_files import make_private_folder, replace_file
from agentflow.errors import AgentFlowError, ConfigurationError, RunStopped, StopCause
from agentflow.learner._config import ENGINE_FOLDER, FROZEN, KEY_FILE, POLICY, with_engine_key
from agentflow.models import ModelSettings
from agentflow.runs import check_output, is_output_active, lock_output
from agentflow.serving import (
    EngineControl,
    ModelServer,
    Probe,
    ProbeText,
    Published,
    Publisher,
    ReplicaPublisher,
    ServingSettings,
    Weights,
)

if TYPE_CHECKING:
    from agentflow.learner._config import EngineSettings, TrainConfig
    from agentflow.learner._loop import ProbeRows
    from agentflow.learner._policy import PolicySettings


POLL_SECONDS = 0.5
CONNECT_SECONDS = 15.0
"""Seconds in which a server that is started at the same time as the training must be recognisable."""
_NONE = np.zeros(0, np.float32)
_UNMODIFIED = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sampling without truncation or penalties; the model's own generation config may set others."""


def probe_of(probed: "ProbeRows", log_probs: Sequence[NDArray[np.float32]], folder: Path) -> Probe:
    """Return the probe of published weights.

    :param log_probs: the trainer's log-probabilities of the rows, under these weights.
    :param folder: the weights.
    """
    before = probed.before or [_NONE] * len(log_probs)
    texts = [
        ProbeText(
            tokens=tuple(row.ids.tolist()),
            begin=len(row.ids) - len(values),
            logprobs=tuple(values.tolist()),
            before=tuple(old.tolist()),
        )
        for row, values, old in zip(probed.rows, log_probs, before, strict=True)
    ]
    return Probe(texts=tuple(texts), dtype=_dtype_of(folder), noise=probed.noise)


def figures_of(published: Published) -> dict[str, float]:
    """Return the result of publishing weights as figures of a step."""
    figures = {"publish/restarted": float(bool(published.restarted))}
    if (loaded := published.loaded) is not None:
        figures["publish/verified_share"] = loaded.verified / loaded.tensors if loaded.tensors else 0.0
    if (agreement := published.agreement) is not None:
        figures |= {f"publish/{name}": float(value) for name, value in structs.asdict(agreement).items()}
        figures["publish/decidable"] = float(published.is_nearer is not None)
    return figures


class PolicyEngine:
    """The inference engine of a run."""

    def __init__(
        self,
        policy: Mapping[str, object],
        frozen: Mapping[str, object],
        publish: Callable[[Weights, Probe | None], Awaitable[Published]],
        answers: Callable[[], Awaitable[None]],
        seconds: float,
    ) -> None:
        self._policy = policy
        self._frozen = frozen
        self._publish = publish
        self._answers = answers
        self._seconds = seconds

    def models(self, wanted: Mapping[str, ModelSettings]) -> dict[str, ModelSettings]:
        """Return the models of all roles, with the addresses of those served here."""
        return {role: self._placed(model) for role, model in wanted.items()}

    def _placed(self, model: ModelSettings) -> ModelSettings:
        if model.name == POLICY:
            return _exact_sampling(model, self._policy)
        return model.model_copy(update=self._frozen) if model.name == FROZEN else model

    async def publish(self, folder: Path, version: int, probe: Probe | None = None) -> Published:
        """Publish weights; with a probe, compare engine and trainer.

        :raises RunStopped: if the engine does not take them.
        """
        with _stop_on_error():
            return await self._publish(Weights(folder=folder, version=str(version)), probe)

    async def ready(self) -> None:
        """Wait until the engine answers.

        :raises RunStopped: if that takes longer than a start.
        """
        with anyio.move_on_after(self._seconds) as scope, _stop_on_error():
            await self._answers()
        if scope.cancelled_caught:
            message = f"the engine did not answer for {self._seconds:g} seconds; start it, then run the same command to resume"
            raise RunStopped(StopCause.MODEL, message)


@contextmanager
def _stop_on_error() -> Generator[None]:
    """Turn an engine error into `RunStopped`: the run can resume later."""
    try:
        yield
    except (ConfigurationError, RunStopped):
        raise
    except AgentFlowError as error:
        raise RunStopped(
            StopCause.MODEL, f"{error}; fix the engine, then run the same command to resume"
        ) from error


@asynccontextmanager
async def open_engine(
    config: "TrainConfig", folder: Path, start: str, wanted: Mapping[str, ModelSettings]
) -> AsyncGenerator[PolicyEngine]:
    """Serve the policy, or connect to a running server.

    :param folder: the current weights.
    :param start: the initial weights, for roles that use a frozen copy.
    :param wanted: model of each role.
    :raises ConfigurationError: if it can't be served.
    :raises RunStopped: if it does not start.
    """
    server_settings = config.engine.server
    async with AsyncExitStack() as stack:
        frozen: dict[str, object] = {}
        if any(model.name == FROZEN for model in wanted.values()):
            settings = server_settings.model_copy(
                update={"model": start, "name": FROZEN, "port": 0, "log": None}
            )
            frozen = _address(await stack.enter_async_context(ModelServer(settings)))
        if config.engine.has_replicas:
            from agentflow.journal import open_replicas  # loads the database

            table = await stack.enter_async_context(open_replicas(config.engine.base_url))
            name = _served_name(config)
            publisher = ReplicaPublisher(table, name)
            policy, seconds = _address_of(config.engine, name), ServingSettings(model=name).start_seconds
            yield PolicyEngine(policy, frozen, publisher.publish, publisher.answers, seconds)
            return
        if config.engine.base_url:
            yield _external_engine(config, frozen)
            return
        settings = _server_of(config, str(folder), server_settings.name or POLICY, _dtype_of(folder))
        server = await stack.enter_async_context(ModelServer(settings))
        yield PolicyEngine(_address(server), frozen, server.publish, server.answers, settings.start_seconds)


@asynccontextmanager
async def served_for_runs(config: "TrainConfig", folder: Path) -> AsyncGenerator["TrainConfig"]:
    """Serve the policy for several runs and yield the settings with its address; a server that they name is used.

    :param folder: the initial weights.
    :raises ConfigurationError: if it can't be served.
    :raises RunStopped: if the server of the settings does not answer.
    """
    if config.engine.base_url:
        if not config.engine.has_replicas:
            await wait_for_engine(config)
        yield with_engine_key(config)
        return
    own = config.engine.server
    settings = _server_of(config, str(folder), own.name or POLICY, _dtype_of(folder))
    async with ModelServer(settings) as server:
        update = {
            "base_url": server.url,
            "api_key": SecretStr(server.key),
            "served_model_name": server.model,
        }
        yield config.model_copy(update={"engine": config.engine.model_copy(update=update)})


def _server_of(config: "TrainConfig", model: str, name: str, dtype: str) -> ServingSettings:
    """Return the settings of a server of the policy.

    :param dtype: data type unless the settings name one; vLLM would compute in 16 bits, whatever that of the files.
    """
    settings = config.engine.server
    update = {
        "model": model,
        "name": name,
        "dtype": dtype if settings.dtype == "auto" else settings.dtype,
        "trains": True,
        "log": settings.log or config.output / "engine.log",
        "options": {"generation-config": "vllm", **settings.options},
    }
    return settings.model_copy(update=update)


def policy_of(config: "TrainConfig") -> "PolicySettings":
    """Return the settings of the policy, whose model is a name on the hub or a folder that exists.

    :raises ConfigurationError: otherwise.
    """
    if config.policy is None:
        raise ConfigurationError("policy.model is missing; name the folder of the model to train")
    model = config.policy.model
    # On the hub, names are NAME or OWNER/NAME.
    if (model.count("/") > 1 or model.startswith(("/", "."))) and not Path(model).is_dir():
        raise ConfigurationError(f"policy.model: there is no folder {model}; name another")
    return config.policy


@contextmanager
def writable_output(folder: Path) -> Generator[None]:
    """Turn an error of the file system into one line about the output folder."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"output_dir: {folder} can't be written: {error.strerror}; name another"
        ) from None


@contextmanager
def claimed_engine(config: "TrainConfig") -> Generator[tuple[ServingSettings, Path]]:
    """Hold the engine at `engine.base_url`; yield the settings to serve it with, and the file with its key.

    See `agentflow train --serve` in docs/training.md.

    :raises ConfigurationError: one line, if it can't be served here, or another process serves it.
    """
    engine, folder = config.engine, config.output / ENGINE_FOLDER
    policy = policy_of(config)
    if not engine.base_url:
        raise ConfigurationError(
            "engine.base_url: it is not set, so the training starts its engine itself; leave out --serve"
        )
    address = urlsplit(engine.base_url)
    if address.scheme != "http" or not address.hostname:
        raise ConfigurationError(
            "engine.base_url: --serve needs an address of this machine, http://HOST:PORT"
        )
    check_output(config.output)
    with writable_output(config.output):
        make_private_folder(folder)
    with lock_output(folder):
        key, file = engine.api_key.get_secret_value() or secrets.token_urlsafe(24), folder / KEY_FILE
        replace_file(file, key.encode())
        settings = _server_of(config, policy.model, _served_name(config), policy.dtype)
        update = {"host": address.hostname, "port": address.port or 80, "key": SecretStr(key)}
        yield settings.model_copy(update=update), file


async def wait_for_engine(config: "TrainConfig") -> None:
    """Wait until the engine at `engine.base_url` answers, for as long as `agentflow train --serve` is starting it.

    :raises RunStopped: if nobody is.
    """
    address = _root_of(config.engine)
    with anyio.move_on_after(CONNECT_SECONDS):
        return await _healthy(address)
    while is_output_active(config.output / ENGINE_FOLDER):
        with anyio.move_on_after(CONNECT_SECONDS):
            return await _healthy(address)
    message = f"engine.base_url: no engine answers at {address}; start it first: agentflow train --serve with the same settings"
    raise RunStopped(StopCause.MODEL, message)


def _external_engine(config: "TrainConfig", frozen: Mapping[str, object]) -> PolicyEngine:
    """Return the engine at a server that this run did not start."""
    engine = config.engine
    name = _served_name(config)
    address, key = _root_of(engine), engine.api_key.get_secret_value()
    publisher = Publisher(address, key)
    lock = anyio.Lock()

    async def answers() -> None:
        async with lock:
            await _healthy(address)
            # The server may have been restarted with its original weights.
            if (current := publisher.current) is not None:
                async with EngineControl(address, key) as control:
                    version = await control.version()
                if version != current.version:
                    await publisher.publish(current)

    policy, seconds = _address_of(engine, name), ServingSettings(model=name).start_seconds
    return PolicyEngine(policy, frozen, publisher.publish, answers, seconds)


def _served_name(config: "TrainConfig") -> str:
    return config.engine.served_model_name or (config.policy.model if config.policy is not None else POLICY)


async def keep_published(config: "TrainConfig", folder: Path, to: Path) -> None:
    """Let replicas that join after the end of a run find its last weights.

    :param folder: folder from which they were published.
    :param to: folder with the same weights that stays.
    """
    if config.engine.has_replicas:
        from agentflow.journal import open_replicas  # loads the database

        async with open_replicas(config.engine.base_url) as table:
            await table.move(_served_name(config), str(folder), str(to))


async def _healthy(address: str) -> None:
    """Wait until the server is healthy."""
    async with aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"{address}/health") as answer:
                    if answer.status == 200:
                        return
            await anyio.sleep(POLL_SECONDS)


def policy_at(model: ModelSettings, engine: "EngineSettings", name: str) -> ModelSettings:
    """Return the settings of the policy at a running server.

    :param name: name of the model there.
    """
    return _exact_sampling(model, _address_of(engine, name))


def _address_of(engine: "EngineSettings", name: str) -> dict[str, object]:
    if engine.has_replicas:
        return {"name": name, "base_url": engine.base_url}
    return {"name": name, "base_url": f"{_root_of(engine)}/v1", "api_key": engine.api_key}


def _root_of(engine: "EngineSettings") -> str:
    return engine.base_url.rstrip("/").removesuffix("/v1")


def _exact_sampling(model: ModelSettings, address: Mapping[str, object]) -> ModelSettings:
    """Return settings that sample from the unmodified distribution, with exact tokens."""
    exact = {"top_p": 1.0, "tokens": "exact", "extra_body": {**_UNMODIFIED, **model.extra_body}}
    return model.model_copy(update={**exact, **address})


def _address(server: ModelServer) -> dict[str, object]:
    return {"name": server.model, "base_url": server.url, "api_key": SecretStr(server.key)}


class _ModelConfig(Struct):
    torch_dtype: str = "float32"
    dtype: str = ""


def _dtype_of(folder: Path) -> str:
    """Return the data type of exported weights, which the trainer computes in."""
    file = folder / "config.json"
    try:
        config = msgspec.json.decode(file.read_bytes(), type=_ModelConfig)
    except DECODE_ERRORS as error:
        raise ConfigurationError(f"{file}: can't be read: {decode_reason(error)}") from None
    return config.dtype or config.torch_dtype
