"""New weights for a model while it is served, as one transaction: they come whole or not at all."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import anyio
from msgspec.structs import replace

from agentflow.serving._control import EngineControl, EngineGone, EngineRefused
from agentflow.serving._weights import Probe, Published, Weights, WeightsFailure, check_folder

__all__ = ["Keeper", "Load", "Publisher", "load_folder"]

_ATTEMPTS = 2
_UNDO_SECONDS = 60.0
_STARTED_WITH = "default"
"""What an engine calls the weights that it was started with."""

Load: TypeAlias = Callable[[EngineControl, Weights], Awaitable[None]]
"""How weights get into a paused engine."""


class Keeper(Protocol):
    """Whoever can start the engine anew. An engine that it starts has the weights that were published last."""

    async def answers(self) -> None:
        """Return when the engine answers."""
        ...

    async def restart(self) -> None:
        """Start it anew, and return when it answers."""
        ...


class _Disagrees(WeightsFailure):
    """The engine computes something else than the trainer."""


async def load_folder(control: EngineControl, weights: Weights) -> None:
    """Let the engine read the folder, which it must be able to see."""
    await control.reload(str(weights.folder))


class Publisher:
    """Puts weights into one engine, one after the other. `ModelServer.publish` is this for a server of ours."""

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        load: Load = load_folder,
        keeper: Keeper | None = None,
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
        """What was published last; `None`: the engine has what it was started with."""

    async def publish(self, weights: Weights, probe: Probe | None = None) -> Published:
        """Replace the engine's weights; it then says the same as the trainer, where a probe tells what that says.

        Requests that run meanwhile are paused, read again and go on with the new weights. If something fails, the
        engine goes on with its old weights and their version, or is started anew.

        :raises ConfigurationError: if the folder holds no such weights, or the engine was not started for training;
            nothing was touched.
        :raises WeightsFailure: if the engine does not have them, or does not agree with the trainer.
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
        """How far engine and trainer are from each other, in nats.

        :raises WeightsFailure: if that is too far.
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
        said = await control.score(model, probe.tokens) if probe else []
        await self._swap(control, before, weights)
        if probe is None:
            return Published(version=weights.version)
        try:
            return Published(version=weights.version, difference=await _difference(control, model, probe))
        except _Disagrees as disagrees:
            if self._keeper is not None:
                # Some engines keep a part of what they had, such as a packed head: this one needs new starts.
                self._reloads = False
                return await self._restarted(control, model, weights, probe)
            if before is None:
                await control.pause()
                raise WeightsFailure(
                    f"{disagrees}; it is paused, for it had {version} of somebody else: start it anew"
                ) from disagrees
            if await self._back(control, model, before, replace(probe, logprobs=tuple(said))):
                end = f"it goes on with {before.version}"
            else:
                end = f"with {before.version} again it does not say the same as before, and is paused: start it anew"
            raise WeightsFailure(f"{disagrees}; {end}") from disagrees

    async def _swap(self, control: EngineControl, before: Weights | None, weights: Weights) -> None:
        try:
            # Without its caches: what was computed with other weights must not be continued.
            await control.pause()
            await self._load(control, weights)
            await control.set_version(weights.version)
        except EngineGone:
            # Whoever starts it anew gives it what was published before.
            raise
        except EngineRefused as refused:
            # An engine that failed halfway can't load anything any more, and a request would kill it.
            if self._keeper is None:
                raise WeightsFailure(
                    f"{refused}; it is paused with no whole weights: start it anew"
                ) from refused
            await self._keeper.restart()
            raise WeightsFailure(f"{refused}; it was started anew with what it had") from refused
        except BaseException:
            # Whoever wanted it gave up. Where nobody knows what it had, it goes on with the new ones.
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
        """Give an engine that can't be started anew what it had, and pause it if it is not that again."""
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
    """How far engine and trainer are from each other.

    :raises _Disagrees: if that is too far.
    """
    token, drawn = await control.draw(model, probe.tokens)
    *said, anew = await control.score(model, (*probe.tokens, token))
    off = _apart(said, probe.logprobs, probe.tolerance)
    if off.too_far:
        raise _Disagrees(
            f"{model} and the trainer differ by {off.nats:.2g} nats: some of its weights are not the new ones"
        )
    stale = _apart([drawn], [anew], probe.tolerance)
    if stale.too_far:
        raise _Disagrees(f"{model} goes on from a cache of other weights, off by {stale.nats:.2g} nats")
    return max(off.nats, stale.nats)


class _Apart(NamedTuple):
    nats: float
    too_far: bool


def _apart(ones: Sequence[float], others: Sequence[float], tolerance: float) -> _Apart:
    pairs = list(zip(ones, others, strict=True))
    # Written so that NaN is too far.
    return _Apart(
        max(abs(one - other) for one, other in pairs),
        not all(abs(one - other) <= tolerance * max(1.0, abs(other)) for one, other in pairs),
    )
