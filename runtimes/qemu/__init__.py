"""Virtual machines: booted once, restored for every session, forked while they run. See docs/qemu-runtime.md."""

from runtimes.qemu._machine import QemuMachine
from runtimes.qemu._runtime import QemuRuntime
from runtimes.qemu._settings import Accelerator, QemuSettings

__all__ = ["Accelerator", "QemuMachine", "QemuRuntime", "QemuSettings"]
