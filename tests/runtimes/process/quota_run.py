"""Use up the kernel's quotas of a user in one sandbox; see what is left for others. Run as a program."""

import json
import sys

import anyio

from runtimes import Instance, InstanceSpec, Limits
from runtimes.process import ProcessRuntime
from tests.runtimes.process.hearing import Ear

USE = r"""
import ctypes, resource
libc = ctypes.CDLL(None, use_errno=True)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_char * 48)]
event, timer = Event(0, 10, 1), ctypes.c_void_p()
def count(take, most):
    for n in range(most):
        if take() < 0:
            return n
    return most
def take_all(most):
    watches = count(lambda: libc.inotify_init1(0), most)
    timers = count(lambda: libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)), most)
    return [watches, timers, count(lambda: libc.posix_openpt(2), most)]
"""
"""Take inotify instances, timers and terminals."""
_ONE = f"{USE}\nprint(take_all(1))"


async def _use(instance: Instance) -> object:
    result = await instance.run("python", f"{USE}\ntake_all(5000)")
    return json.loads(result.value or "null")


async def _use_as_root(first: Instance, second: Instance) -> object:
    """Use up the quotas of root inside of one sandbox; return those of root inside of the other meanwhile."""
    take = f"{USE}\nprint(take_all(5000), flush=True)\n"
    ear = Ear(b"]")
    seen: object = None
    async with anyio.create_task_group() as tasks:

        async def occupy() -> None:
            await first.exec(
                [sys.executable, "-c", f"{take}import time; time.sleep(1000)"], user="root", on_output=ear
            )

        tasks.start_soon(occupy)
        await ear.heard.wait()
        seen = json.loads((await second.exec([sys.executable, "-c", take], user="root")).stdout)
        tasks.cancel_scope.cancel()
    return seen


async def run() -> dict[str, object]:
    """Use up the quotas of two sandboxes, then ask the host."""
    spec = InstanceSpec(limits=Limits(wall_seconds=60))
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        first, second = await runtime.start(spec), await runtime.start(spec)
        report: dict[str, object] = {"first": await _use(first)}
        host = await anyio.run_process([sys.executable, "-c", _ONE])
        report["host"] = json.loads(host.stdout)
        report["second"] = await _use(second)
        limits = await second.run(
            "python",
            "[resource.getrlimit(k)[1] for k in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE)]",
        )
        report["limits"] = json.loads(limits.value or "null")
        if runtime.capabilities.root:
            report["root of the second"] = await _use_as_root(first, second)
        return report


def main() -> None:
    """Print what each could take."""
    sys.stdout.write(json.dumps(anyio.run(run)))


if __name__ == "__main__":
    main()
