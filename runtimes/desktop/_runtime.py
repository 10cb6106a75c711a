"""Runtime of desktops in instances of their own."""

from dataclasses import replace
from typing import Self

import anyio

from runtimes._protocol import Capabilities, InstanceSpec, Runtime
from runtimes.desktop import _driver_program
from runtimes.desktop._desktop import Desktop, open_desktop
from runtimes.desktop._options import DesktopOptions


class DesktopRuntime:
    """Runtime of desktops, each in a new instance. See `runtimes.MachineRuntime` and docs/machines.md.

    The caller closes the runtime of the instances.
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
        """Capabilities on this machine."""
        of_instances = self._runtime.capabilities
        notes = (*of_instances.notes, *_driver_program.missing_parts())
        return replace(of_instances, fork="replay", screen=True, notes=notes)

    async def start(self) -> Desktop:
        """Start a desktop.

        :raises IsolationUnavailable: if this machine lacks the isolation, a program or a package.
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
