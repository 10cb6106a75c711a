"""Factory of the sessions' machines."""

from importlib import import_module
from typing import Any

import anyio
import anyio.to_thread
from pydantic import ValidationError

from agentflow.actors import Hosted
from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._session import Session
from mcp_servers.vm._settings import VmSettings
from runtimes import Machine, MachineRuntime
from runtimes.desktop import DesktopOptions

_SIZE = (1280, 800)


class MachineFactory:
    """Factory of a machine for each session: a desktop in its sandbox, or a virtual machine beside it."""

    def __init__(self) -> None:
        self._computers: MachineRuntime | None = None
        self._host: Hosted[MachineRuntime] | None = None
        self._turn = anyio.Lock()

    async def start(self, session: Session, settings: VmSettings) -> Machine:
        """Start the session's machine.

        :raises IsolationUnavailable: if a program or package is missing; the message names it.
        :raises ToolFailure: `bad_arguments`, if its options are invalid.
        """
        if settings.machine == "qemu":
            return await (await self._runtime(settings)).start()
        from runtimes.desktop import open_desktop  # imported on first use

        width, height = settings.screen_size or _SIZE
        options = DesktopOptions(
            width=width,
            height=height,
            dpi=settings.desktop.dpi,
            accessibility=settings.desktop.accessibility,
        )
        return await open_desktop(await session.instance(), options)

    async def close(self) -> None:
        """Stop the virtual machines' runtime."""
        if self._host is not None:
            await self._host.close()

    async def _runtime(self, settings: VmSettings) -> MachineRuntime:
        async with self._turn:
            if self._computers is None:
                computers = await anyio.to_thread.run_sync(_qemu, settings)
                host = Hosted(lambda: computers)
                self._computers = await host.open()
                self._host = host
            return self._computers


def _qemu(settings: VmSettings) -> MachineRuntime:
    try:
        qemu: Any = import_module("runtimes.qemu")
    except ModuleNotFoundError as error:
        message = f"vm: machine `qemu` is not installed: {error}. Use `machine: desktop`."
        raise ToolFailure(ErrorKind.UNAVAILABLE, message) from None
    options = dict(settings.qemu)
    if settings.screen_size is not None:
        options.setdefault("screen_size", settings.screen_size)
    try:
        chosen = qemu.QemuSettings.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        hint = (
            did_you_mean(name, qemu.QemuSettings.model_fields) if first["type"] == "extra_forbidden" else ""
        )
        message = f"settings of vm: qemu.{name}: {first['msg']}.{hint}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message) from None
    computers: MachineRuntime = qemu.QemuRuntime(chosen)
    return computers
