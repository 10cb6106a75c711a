"""Desktops each in an instance of its own."""

from dataclasses import replace
from typing import Self

import anyio

from runtimes._protocol import Capabilities, InstanceSpec, Runtime
from runtimes.desktop import _parts
from runtimes.desktop._desktop import Desktop, open_desktop
from runtimes.desktop._options import DesktopOptions

__all__ = ["DesktopRuntime"]


class DesktopRuntime:
    """Makes desktops, each in an instance of its own. See `runtimes.MachineRuntime`.

    The runtime of the instances belongs to whoever gives it.
    """

    def __init__(
        self, runtime: Runtime, options: DesktopOptions | None = None, spec: InstanceSpec | None = None
    ) -> None:
        self._runtime = runtime
        self._options = options or DesktopOptions()
        self._spec = spec
        self._desktops: list[Desktop] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        with anyio.CancelScope(shield=True):
            for desktop in self._desktops:
                await desktop.stop()

    @property
    def capabilities(self) -> Capabilities:
        """What it can do here."""
        of_instances = self._runtime.capabilities
        notes = (*of_instances.notes, *_parts.missing())
        return replace(of_instances, fork="replay", screen=True, notes=notes)

    async def start(self) -> Desktop:
        """A new desktop.

        :raises IsolationUnavailable: if its isolation, or a part it needs, can't be had on this machine.
        """
        instance = await self._runtime.start(self._spec)
        try:
            desktop = await open_desktop(instance, self._options, owned=True)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await instance.stop()
            raise
        self._desktops.append(desktop)
        return desktop
