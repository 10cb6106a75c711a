"""The inference engine: vLLM with the policy, and a frozen copy if a role uses one."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import anyio
import msgspec
from msgspec import Struct
from pydantic import SecretStr

from agentflow.errors import AgentFlowError, ConfigurationError, RunStopped, StopCause
from agentflow.learner._config import FROZEN, POLICY
from agentflow.models import ModelSettings, has_replicas
from agentflow.serving import (
    TOLERANCES,
    EngineControl,
    ModelServer,
    Probe,
    Published,
    Publisher,
    ReplicaPublisher,
    ServingSettings,
    Weights,
    probe_tokens,
)

if TYPE_CHECKING:
    from agentflow.learner._config import EngineSettings, TrainConfig


POLL_SECONDS = 0.5
_UNMODIFIED = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sampling without truncation or penalties; the model's own generation config may set others."""

Score = Callable[[tuple[int, ...]], Awaitable[list[float]]]
"""Computes the trainer's log-probability of each token but the first, at temperature 1."""


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

    async def publish(self, folder: Path, version: int, score: Score | None = None) -> float:
        """Publish weights; return the difference between engine and trainer on a probe, if `score` is given.

        :param score: computes the trainer's log-probabilities of the probe.
        :raises RunStopped: if the engine does not take them.
        """
        with _stop_on_error():
            probe = None if score is None else await _probe(folder, score)
            published = await self._publish(Weights(folder=folder, version=str(version)), probe)
        return published.difference

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
        if has_replicas(config.engine.base_url):
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
        log = server_settings.log or config.output / "engine.log"
        update = {"model": str(folder), "name": server_settings.name or POLICY, "trains": True, "log": log}
        options = {"generation-config": "vllm", **server_settings.options}
        settings = server_settings.model_copy(update={**update, "options": options})
        server = await stack.enter_async_context(ModelServer(settings))
        yield PolicyEngine(_address(server), frozen, server.publish, server.answers, settings.start_seconds)


def _external_engine(config: "TrainConfig", frozen: Mapping[str, object]) -> PolicyEngine:
    """Return the engine at a server that this run did not start."""
    engine = config.engine
    name = _served_name(config)
    address, key = engine.base_url.rstrip("/").removesuffix("/v1"), engine.api_key.get_secret_value()
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
    if has_replicas(config.engine.base_url):
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
    if has_replicas(engine.base_url):
        return {"name": name, "base_url": engine.base_url}
    address = engine.base_url.rstrip("/").removesuffix("/v1")
    return {"name": name, "base_url": f"{address}/v1", "api_key": engine.api_key}


def _exact_sampling(model: ModelSettings, address: Mapping[str, object]) -> ModelSettings:
    """Return settings that sample from the unmodified distribution, with exact tokens."""
    exact = {"top_p": 1.0, "tokens": "exact", "extra_body": {**_UNMODIFIED, **model.extra_body}}
    return model.model_copy(update={**exact, **address})


def _address(server: ModelServer) -> dict[str, object]:
    return {"name": server.model, "base_url": server.url, "api_key": SecretStr(server.key)}


class _Shape(Struct):
    vocab_size: int
    torch_dtype: str = "float32"
    dtype: str = ""


async def _probe(folder: Path, score: Score) -> Probe:
    """Return a probe: tokens with the trainer's log-probabilities, and a tolerance that depends on the precision."""
    shape = msgspec.json.decode((folder / "config.json").read_bytes(), type=_Shape)
    tokens = probe_tokens(shape.vocab_size)
    tolerance = TOLERANCES.get(shape.dtype or shape.torch_dtype, max(TOLERANCES.values()))
    return Probe(tokens=tokens, logprobs=tuple(await score(tokens)), tolerance=tolerance)
