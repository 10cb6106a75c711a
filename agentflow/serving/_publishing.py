"""Publishing new weights to a running engine as one transaction."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import anyio
from msgspec.structs import replace

from agentflow.serving._control import EngineControl, EngineGone, EngineRefused
from agentflow.serving._weights import Probe, Published, Weights, WeightsFailure, check_folder

_ATTEMPTS = 2
_UNDO_SECONDS = 60.0
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
