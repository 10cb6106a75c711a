"""Publishing new weights to a running engine as one transaction, and to all replicas of a model."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import anyio
import msgspec
from msgspec.structs import replace

from agentflow.serving._control import EngineControl, EngineGone, EngineRefused
from agentflow.serving._weights import Probe, Published, Weights, WeightsFailure, check_folder
from agentflow.telemetry import get_logger

if TYPE_CHECKING:
    from agentflow.journal import Replica, ReplicaTable

logger = get_logger(__name__)

_ATTEMPTS = 2
_UNDO_SECONDS = 60.0
_POLL_SECONDS = 0.2
_STARTED_WITH = "default"
"""Version of the weights that an engine started with."""

Load: TypeAlias = Callable[[EngineControl, Weights], Awaitable[None]]
"""Function that loads weights into a paused engine."""


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


async def load_folder(control: EngineControl, weights: Weights) -> None:
    """Load the weights from a folder that the engine can read."""
    await control.reload(str(weights.folder))


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
    ) -> None:
        self._url = url
        self._key = key
        self._load = load
        self._keeper = keeper
        self._seconds = seconds
        self._lock = anyio.Lock()
        self._reloads = True
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

    async def check(self, probe: Probe) -> float:
        """Return the largest difference between engine and trainer, in nats.

        :raises WeightsFailure: if it exceeds the probe's tolerance.
        """
        async with self._lock, EngineControl(self._url, self._key, seconds=self._seconds) as control:
            model, _ = await control.model()
            return await _difference(control, model, probe)

    async def _publish(self, control: EngineControl, weights: Weights, probe: Probe | None) -> Published:
        model, root = await control.model()
        version = await control.version()
        known = (self.current, Weights(folder=Path(root), version=_STARTED_WITH))
        before = next((one for one in known if one and one.version == version), None)
        check_folder(weights.folder, before.folder if before else Path(root))
        if not self._reloads:
            return await self._restarted(control, model, weights, probe)
        scores = await control.score(model, probe.tokens) if probe else []
        await self._swap(control, before, weights)
        if probe is None:
            return Published(version=weights.version)
        try:
            return Published(version=weights.version, difference=await _difference(control, model, probe))
        except _Disagrees as disagrees:
            if self._keeper is not None:
                # Some engines keep parts of the old weights, such as a packed head: they must be restarted for every update.
                self._reloads = False
                return await self._restarted(control, model, weights, probe)
            if before is None:
                await control.pause()
                raise WeightsFailure(
                    f"{disagrees}; it is paused, because it had {version} from another publisher: restart it"
                ) from disagrees
            if await self._back(control, model, before, replace(probe, logprobs=tuple(scores))):
                end = f"it continues with {before.version}"
            else:
                end = f"with {before.version} again it does not compute the same as before, and is paused: restart it"
            raise WeightsFailure(f"{disagrees}; {end}") from disagrees

    async def _swap(self, control: EngineControl, before: Weights | None, weights: Weights) -> None:
        try:
            # Clear the caches: results of other weights must not be continued.
            await control.pause()
            await self._load(control, weights)
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
                await control.reload(str(whole.folder))
                await control.set_version(whole.version)
                self.current = whole
                await control.resume()
            raise
        with anyio.CancelScope(shield=True):
            self.current = weights
            await control.resume()

    async def _back(self, control: EngineControl, model: str, before: Weights, probe: Probe) -> bool:
        """Load the old weights into an engine that can't be restarted, and pause it if they are not the same again."""
        await self._swap(control, before, before)
        try:
            await _difference(control, model, probe)
        except _Disagrees:
            await control.pause()
            return False
        return True

    async def _restarted(
        self, control: EngineControl, model: str, weights: Weights, probe: Probe | None
    ) -> Published:
        assert self._keeper is not None
        self.current = weights
        await self._keeper.restart()
        difference = await _difference(control, model, probe) if probe else 0.0
        return Published(version=weights.version, difference=difference, restarted=True)


class ReplicaPublisher:
    """Publishes weights to the live replicas of a model. Each loads them itself: see `keep_registered` and docs/scaling.md."""

    def __init__(
        self, table: "ReplicaTable", model: str, *, seconds: float = 600.0, patience: float | None = None
    ) -> None:
        """Describe it.

        :param seconds: time after which a replica that has not taken weights gets no calls.
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
        found = await self._handled(number, weights)
        taken = [replica.url for replica in found if replica.problem is None]
        if not taken:
            told = "; ".join(f"{replica.url}: {replica.problem}" for replica in found)
            raise WeightsFailure(
                f"no replica of {self._model} has taken the weights of version {weights.version}: {told}"
            )
        if lost := {replica.url for replica in (*before, *found)} - {*taken}:
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
            found = await self._table.live(self._model)
            pending = [replica for replica in found if replica.weights != number]
            if found and not pending:
                return found
            now = anyio.current_time()
            if found:
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
                    replica._replace(problem=problem) if replica in pending else replica for replica in found
                ]
            await anyio.sleep(_POLL_SECONDS)


async def _difference(control: EngineControl, model: str, probe: Probe) -> float:
    """Return the difference between engine and trainer.

    :raises _Disagrees: if it exceeds the tolerance.
    """
    token, sampled = await control.draw(model, probe.tokens)
    *scores, computed = await control.score(model, (*probe.tokens, token))
    off = _apart(scores, probe.logprobs, probe.tolerance)
    if off.too_far:
        raise _Disagrees(
            f"{model} and the trainer differ by {off.nats:.2g} nats: some of its weights are not the new ones"
        )
    stale = _apart([sampled], [computed], probe.tolerance)
    if stale.too_far:
        raise _Disagrees(f"{model} continues from a cache of other weights, off by {stale.nats:.2g} nats")
    return max(off.nats, stale.nats)


class _Apart(NamedTuple):
    nats: float
    too_far: bool


def _apart(ones: Sequence[float], others: Sequence[float], tolerance: float) -> _Apart:
    pairs = list(zip(ones, others, strict=True))
    # Written so that NaN fails.
    return _Apart(
        max(abs(one - other) for one, other in pairs),
        not all(abs(one - other) <= tolerance * max(1.0, abs(other)) for one, other in pairs),
    )
