"""Publishing new weights to a running engine as one transaction, and to all replicas of a model."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import anyio
import msgspec
from msgspec.structs import replace

from agentflow.serving._control import Drawn, EngineControl, EngineGone, EngineRefused
from agentflow.serving._weights import (
    Agreement,
    LoadReport,
    Probe,
    ProbeText,
    Published,
    Weights,
    WeightsFailure,
    check_folder,
    tolerance_of,
)
from agentflow.telemetry import get_logger

if TYPE_CHECKING:
    from agentflow.journal import Replica, ReplicaTable

logger = get_logger(__name__)

_ATTEMPTS = 2
_UNDO_SECONDS = 60.0
_POLL_SECONDS = 0.2
_STARTED_WITH = "default"
"""Version of the weights that an engine started with."""

_DRAWN_TOKENS = 4
"""Number of tokens that are sampled to find a stale cache."""
_CACHED_TOKENS = 72
"""Length of their prompt: more than two blocks of an engine's cache, which have 32 tokens on a CPU of ours."""
_DECIDABLE = 3.0
"""Multiple of the noise by which a step must move the probe to tell new weights from old ones by their log-probabilities."""

Load: TypeAlias = Callable[[EngineControl, Weights, Weights | None], Awaitable[LoadReport | None]]
"""Function that loads weights into a paused engine that had others; `None`: unknown ones."""


class EngineOwner(Protocol):
    """Owner of an engine process, which can restart it with the weights published last."""

    async def answers(self) -> None:
        """Wait until the engine answers."""
        ...

    async def restart(self) -> None:
        """Restart the engine, and wait until it answers."""
        ...


class _Disagrees(WeightsFailure):
    """The engine computes other log-probabilities than the trainer."""


async def load_folder(
    control: EngineControl, weights: Weights, before: Weights | None = None
) -> LoadReport | None:
    """Load the weights from a folder that the engine can read."""
    return await control.load(str(weights.folder), "" if before is None else str(before.folder))


class Publisher:
    """Publishes weights to one engine. `ModelServer.publish` does this for a server that it owns. See docs/serving.md."""

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        load: Load = load_folder,
        keeper: EngineOwner | None = None,
        seconds: float = 600.0,
        dtype: str | None = None,
    ) -> None:
        """:param dtype: data type that it computes in; `None`: unknown until it has loaded weights."""
        self._url = url
        self._key = key
        self._load = load
        self._keeper = keeper
        self._seconds = seconds
        self._dtype = dtype
        self._lock = anyio.Lock()
        self.current: Weights | None = None
        """Weights published last; `None` if the engine has those it started with."""

    async def publish(self, weights: Weights, probe: Probe | None = None) -> Published:
        """Replace the engine's weights; with a probe, check that engine and trainer agree.

        Requests in flight are paused, read again and continued with the new weights. After a failure the engine continues
        with its old weights and their version, or is restarted.

        :raises ConfigurationError: if the folder does not hold weights of this model, or the engine was not started for
            training; nothing has changed.
        :raises WeightsFailure: if loading fails, or engine and trainer disagree.
        """
        async with self._lock, EngineControl(self._url, self._key, seconds=self._seconds) as control:
            for attempt in range(_ATTEMPTS):
                try:
                    return await self._publish(control, weights, probe)
                except EngineGone:
                    if self._keeper is None or attempt == _ATTEMPTS - 1:
                        raise
                    await self._keeper.answers()
        raise AssertionError("unreachable")

    async def check(self, probe: Probe) -> Agreement:
        """Compare engine and trainer.

        :raises WeightsFailure: if they disagree.
        """
        async with self._lock, EngineControl(self._url, self._key, seconds=self._seconds) as control:
            model, _ = await control.model()
            return (await _compared(control, model, probe, self._dtype))[0]

    async def _publish(self, control: EngineControl, weights: Weights, probe: Probe | None) -> Published:
        model, root = await control.model()
        version = await control.version()
        candidates = (self.current, Weights(folder=Path(root), version=_STARTED_WITH))
        before = next(
            (candidate for candidate in candidates if candidate and candidate.version == version), None
        )
        check_folder(weights.folder, before.folder if before else Path(root))
        if probe is not None and probe.texts:
            # What is cached now must not be used afterwards.
            await _draw(control, model, probe, 1)
        loaded = await self._swap(control, before, weights)
        self._dtype = self._dtype if loaded is None else loaded.dtype
        try:
            return await _verified(control, model, weights, probe, loaded, self._dtype, updated=True)
        except _Disagrees as disagrees:
            if self._keeper is not None:
                return await self._restarted(self._keeper, control, model, weights, probe, str(disagrees))
            if before is None:
                await control.pause()
                raise WeightsFailure(
                    f"{disagrees}; it is paused, because it had {version} from another publisher: restart it"
                ) from disagrees
            if await self._back(control, model, before, weights):
                end = f"it continues with {before.version}"
            else:
                end = f"it does not take {before.version} again, and is paused: restart it"
            raise WeightsFailure(f"{disagrees}; {end}") from disagrees

    async def _swap(
        self, control: EngineControl, before: Weights | None, weights: Weights
    ) -> LoadReport | None:
        try:
            # Clear the caches: results of other weights must not be continued.
            await control.pause()
            loaded = await self._load(control, weights, before)
            await control.set_version(weights.version)
        except EngineGone:
            # A restart loads the weights published before.
            raise
        except EngineRefused as refused:
            # An engine that failed halfway can't load anything any more, and a request would kill it.
            if self._keeper is None:
                raise WeightsFailure(
                    f"{refused}; it is paused with incomplete weights: restart it"
                ) from refused
            await self._keeper.restart()
            raise WeightsFailure(f"{refused}; it was restarted with its old weights") from refused
        except BaseException:
            # Cancelled. If the old weights are unknown, the engine continues with the new ones.
            whole = before or weights
            with anyio.move_on_after(_UNDO_SECONDS, shield=True):
                await control.load(str(whole.folder))
                await control.set_version(whole.version)
                self.current = whole
                await control.resume()
            raise
        with anyio.CancelScope(shield=True):
            self.current = weights
            await control.resume()
        return loaded

    async def _back(self, control: EngineControl, model: str, before: Weights, failed: Weights) -> bool:
        """Load the old weights into an engine that can't be restarted, and pause it if they are not the same again."""
        loaded = await self._swap(control, failed, before)
        try:
            await _verified(control, model, before, None, loaded, self._dtype)
        except _Disagrees:
            await control.pause()
            return False
        return True

    async def _restarted(
        self,
        keeper: EngineOwner,
        control: EngineControl,
        model: str,
        weights: Weights,
        probe: Probe | None,
        reason: str,
    ) -> Published:
        """Restart an engine that disagrees, which makes it load the weights anew."""
        logger.warning("the engine is restarted with the new weights", reason=reason, version=weights.version)
        await keeper.restart()
        return replace(await _verified(control, model, weights, probe, None, self._dtype), restarted=reason)


class ReplicaPublisher:
    """Publishes weights to the live replicas of a model. Each loads them itself: see `keep_registered` and docs/scaling.md."""

    def __init__(
        self, table: "ReplicaTable", model: str, *, seconds: float = 600.0, patience: float | None = None
    ) -> None:
        """:param seconds: time after which a replica that has not taken weights gets no calls.
        :param patience: time to wait for the first replica; `None`: as long as a lease.
        """
        self._table = table
        self._model = model
        self._seconds = seconds
        self._patience = patience

    async def publish(self, weights: Weights, probe: Probe | None = None) -> Published:
        """Let all live replicas load new weights; return when each has done so, has failed or is dead.

        A replica that failed gets no calls until it has the newest weights.

        :raises WeightsFailure: if no replica took them.
        """
        before = await self._table.live(self._model)
        encoded = None if probe is None else msgspec.json.encode(probe)
        number = await self._table.publish(self._model, weights.version, str(weights.folder), encoded)
        replicas = await self._handled(number, weights)
        taken = [replica.url for replica in replicas if replica.problem is None]
        if not taken:
            problems = "; ".join(f"{replica.url}: {replica.problem}" for replica in replicas)
            raise WeightsFailure(
                f"no replica of {self._model} has taken the weights of version {weights.version}: {problems}"
            )
        if lost := {replica.url for replica in (*before, *replicas)} - {*taken}:
            from agentflow.journal import REFRESH_SECONDS

            logger.warning(
                "replicas get no calls until they have the newest weights",
                replicas=sorted(lost),
                version=weights.version,
            )
            # No client calls them any more when this returns.
            await anyio.sleep(REFRESH_SECONDS)
        return Published(version=weights.version)

    async def answers(self) -> None:
        """Wait until a replica can be called."""
        while not any(replica.problem is None for replica in await self._table.live(self._model)):  # noqa: ASYNC110 - it looks into a database
            await anyio.sleep(_POLL_SECONDS)

    async def _handled(self, number: int, weights: Weights) -> list["Replica"]:
        """Wait for the replicas, and return those that took the weights or failed."""
        from agentflow.journal import LEASE_SECONDS

        began = seen = anyio.current_time()
        while True:
            replicas = await self._table.live(self._model)
            pending = [replica for replica in replicas if replica.weights != number]
            if replicas and not pending:
                return replicas
            now = anyio.current_time()
            if replicas:
                seen = now
            elif now - seen >= (LEASE_SECONDS if self._patience is None else self._patience):
                raise WeightsFailure(
                    f"no replica of {self._model} is registered in {self._table.shown}; "
                    "start one with agentflow serve-model --register"
                )
            if now - began >= self._seconds:
                problem = f"it has not taken the weights of version {weights.version} in {self._seconds:g} s"
                for replica in pending:
                    await self._table.exclude(replica.url, number, problem)
                return [
                    replica._replace(problem=problem) if replica in pending else replica
                    for replica in replicas
                ]
            await anyio.sleep(_POLL_SECONDS)


async def _verified(
    control: EngineControl,
    model: str,
    weights: Weights,
    probe: Probe | None,
    loaded: LoadReport | None,
    dtype: str | None,
    *,
    updated: bool = False,
) -> Published:
    """Return the result of publishing weights.

    :param dtype: data type of the engine; `None`: unknown.
    :param updated: the caches held results of other weights before.
    :raises _Disagrees: if the engine has other weights than the trainer.
    """
    if loaded is not None and loaded.stale:
        others = "" if len(loaded.stale) == 1 else f" and at least {len(loaded.stale) - 1} others"
        raise _Disagrees(f"{model} did not take {loaded.stale[0]}{others}")
    if probe is None or not probe.texts:
        return Published(version=weights.version, loaded=loaded)
    agreement, is_nearer = await _compared(control, model, probe, dtype, updated=updated)
    return Published(version=weights.version, agreement=agreement, is_nearer=is_nearer, loaded=loaded)


async def _compared(
    control: EngineControl, model: str, probe: Probe, dtype: str | None, *, updated: bool = False
) -> tuple[Agreement, bool | None]:
    """Compare engine and trainer, and what the engine continues from its cache with what it computes.

    The second value tells whether the engine is nearer to the new weights than to those before; `None`: not decidable.

    :param dtype: data type of the engine; `None`: unknown.
    :param updated: nothing may come from the cache.
    :raises _Disagrees: if they disagree.
    """
    drawn, prompt = await _draw(control, model, probe, _DRAWN_TOKENS), _cached_prompt(probe)
    if updated and drawn.cached:
        raise _Disagrees(f"{model} continues from a cache of other weights, of {drawn.cached} tokens")
    computed = (await control.score(model, (*prompt, *drawn.tokens)))[len(prompt) - 1 :]
    cache = Agreement.of(drawn.logprobs, computed)
    if not cache.is_within(tolerance_of(dtype or probe.dtype, dtype)):
        raise _Disagrees(f"{model} continues from a cache of other weights, off by {cache.rms:.2g} nats")
    scores = [value for values in await _scores(control, model, probe) for value in values]
    trainer = [value for text in probe.texts for value in text.logprobs]
    agreement = Agreement.of(scores, trainer)
    if not agreement.is_within(tolerance_of(probe.dtype, dtype, probe.noise)):
        raise _Disagrees(
            f"{model} and the trainer differ by {agreement.rms:.2g} nats (root mean square, {agreement.tokens} tokens): "
            "its weights are not the new ones"
        )
    is_nearer = None
    old = [value for text in probe.texts for value in text.before]
    if len(old) == len(trainer):
        noise = probe.noise or agreement.rms
        if Agreement.of(trainer, old).rms >= _DECIDABLE * noise:
            is_nearer = agreement.rms < Agreement.of(scores, old).rms
            if not is_nearer:
                raise _Disagrees(f"{model} still computes what the weights before do")
    return agreement, is_nearer


async def _scores(control: EngineControl, model: str, probe: Probe) -> list[list[float]]:
    """Return the engine's log-probabilities of the compared tokens of each text."""
    scores: list[list[float]] = [[] for _ in probe.texts]

    async def score(index: int, text: ProbeText) -> None:
        scores[index] = (await control.score(model, text.tokens))[text.begin - 1 :]

    async with anyio.create_task_group() as tasks:
        for index, text in enumerate(probe.texts):
            tasks.start_soon(score, index, text)
    return scores


async def _draw(control: EngineControl, model: str, probe: Probe, count: int) -> Drawn:
    """Sample after a prompt that no other call shares a cache with."""
    return await control.draw(model, _cached_prompt(probe), count, salt="probe of weights")


def _cached_prompt(probe: Probe) -> tuple[int, ...]:
    """Return the texts as one, repeated until it is longer than a block of the cache."""
    joined = tuple(token for text in probe.texts for token in text.tokens)
    return (joined * (_CACHED_TOKENS // len(joined) + 1))[:_CACHED_TOKENS]
