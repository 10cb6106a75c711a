"""What samples: vLLM with the policy, and beside it a frozen copy where a role wants one."""

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
from agentflow.models import ModelSettings
from agentflow.serving import (
    TOLERANCES,
    EngineControl,
    ModelServer,
    Probe,
    Published,
    Publisher,
    ServingSettings,
    Weights,
    probe_tokens,
)

if TYPE_CHECKING:
    from agentflow.learner._config import EngineSettings, TrainConfig

__all__ = ["Engine", "Score", "open_engine", "policy_at"]

POLL_SECONDS = 0.5
_PLAIN = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Nothing between the distribution that is trained and what is drawn; a model's own folder may say otherwise."""

Score = Callable[[tuple[int, ...]], Awaitable[list[float]]]
"""What the trainer makes of a text: the log-probability of each token but the first, at temperature 1."""


class Engine:
    """The engine of a run."""

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
        """The models of all roles, with the addresses of those that are served here."""
        return {role: self._placed(model) for role, model in wanted.items()}

    def _placed(self, model: ModelSettings) -> ModelSettings:
        if model.name == POLICY:
            return _exactly(model, self._policy)
        return model.model_copy(update=self._frozen) if model.name == FROZEN else model

    async def publish(self, folder: Path, version: int, score: Score | None = None) -> float:
        """Have it sample with these weights from now on; how far it is from the trainer, where that was asked.

        :param score: asked for a short text, which the engine must see as the trainer does.
        :raises RunStopped: if it does not have them.
        """
        with _stopping():
            probe = None if score is None else await _probe(folder, score)
            published = await self._publish(Weights(folder=folder, version=str(version)), probe)
        return published.difference

    async def ready(self) -> None:
        """Wait until it answers.

        :raises RunStopped: if that takes longer than a start.
        """
        with anyio.move_on_after(self._seconds) as scope, _stopping():
            await self._answers()
        if scope.cancelled_caught:
            message = (
                f"the engine did not answer for {self._seconds:g} seconds; start it, then run the same again"
            )
            raise RunStopped(StopCause.MODEL, message)


@contextmanager
def _stopping() -> Generator[None]:
    """What goes wrong with an engine ends the run, which can go on later."""
    try:
        yield
    except (ConfigurationError, RunStopped):
        raise
    except AgentFlowError as error:
        raise RunStopped(StopCause.MODEL, f"{error}; mend the engine, then run the same again") from error


@asynccontextmanager
async def open_engine(config: "TrainConfig", folder: Path, start: str) -> AsyncGenerator[Engine]:
    """Serve the policy, or go to where it is served already.

    :param folder: the weights that it begins with.
    :param start: those that training began with, for roles that are asked a frozen copy.
    :raises ConfigurationError: if it can't be served, in one line.
    :raises RunStopped: if it does not come up.
    """
    wanted = config.episodes.models.values()
    own = config.engine.server
    async with AsyncExitStack() as stack:
        frozen: dict[str, object] = {}
        if any(model.name == FROZEN for model in wanted):
            settings = own.model_copy(update={"model": start, "name": FROZEN, "port": 0, "log": None})
            frozen = _address(await stack.enter_async_context(ModelServer(settings)))
        if config.engine.base_url:
            yield _running(config, frozen)
            return
        log = own.log or config.output / "engine.log"
        update = {"model": str(folder), "name": own.name or POLICY, "trains": True, "log": log}
        options = {"generation-config": "vllm", **own.options}
        settings = own.model_copy(update={**update, "options": options})
        server = await stack.enter_async_context(ModelServer(settings))
        yield Engine(_address(server), frozen, server.publish, server.answers, settings.start_seconds)


def _running(config: "TrainConfig", frozen: Mapping[str, object]) -> Engine:
    """A server that is not ours."""
    engine = config.engine
    name = engine.name or (config.policy.model if config.policy is not None else POLICY)
    address, key = engine.base_url.rstrip("/").removesuffix("/v1"), engine.api_key.get_secret_value()
    publisher = Publisher(address, key)
    lock = anyio.Lock()

    async def answers() -> None:
        async with lock:
            await _healthy(address)
            # Whoever started it again may not know what it had been given.
            if (current := publisher.current) is not None:
                async with EngineControl(address, key) as control:
                    version = await control.version()
                if version != current.version:
                    await publisher.publish(current)

    policy, seconds = _running_at(engine, name), ServingSettings(model=name).start_seconds
    return Engine(policy, frozen, publisher.publish, answers, seconds)


async def _healthy(address: str) -> None:
    """Return when it answers."""
    async with aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"{address}/health") as answer:
                    if answer.status == 200:
                        return
            await anyio.sleep(POLL_SECONDS)


def policy_at(model: ModelSettings, engine: "EngineSettings", name: str) -> ModelSettings:
    """How the policy is asked at a server that runs already.

    :param name: what requests call it there.
    """
    return _exactly(model, _running_at(engine, name))


def _running_at(engine: "EngineSettings", name: str) -> dict[str, object]:
    address = engine.base_url.rstrip("/").removesuffix("/v1")
    return {"name": name, "base_url": f"{address}/v1", "api_key": engine.api_key}


def _exactly(model: ModelSettings, address: Mapping[str, object]) -> ModelSettings:
    """Sampled from the distribution that is trained, with every token told."""
    plain = {"top_p": 1.0, "tokens": "exact", "extra_body": {**_PLAIN, **model.extra_body}}
    return model.model_copy(update={**plain, **address})


def _address(server: ModelServer) -> dict[str, object]:
    return {"name": server.model, "base_url": server.url, "api_key": SecretStr(server.key)}


class _Shape(Struct):
    vocab_size: int
    torch_dtype: str = "float32"
    dtype: str = ""


async def _probe(folder: Path, score: Score) -> Probe:
    """A text that the engine must see as the trainer does, within what their numbers allow."""
    shape = msgspec.json.decode((folder / "config.json").read_bytes(), type=_Shape)
    tokens = probe_tokens(shape.vocab_size)
    tolerance = TOLERANCES.get(shape.dtype or shape.torch_dtype, max(TOLERANCES.values()))
    return Probe(tokens=tokens, logprobs=tuple(await score(tokens)), tolerance=tolerance)
