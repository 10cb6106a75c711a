"""Server to be killed: a runtime with busy sessions of every kind. Run as a program."""

import asyncio
import sys
from functools import partial

import anyio

from runtimes import Instance, Language
from runtimes.process import ProcessRuntime
from tests.runtimes.process.hearing import Ear

BUSY: list[tuple[Language, str, str]] = [
    ("python", "x = 1", ""),
    ("python", "", "while True: pass"),
    ("python", "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)", ""),
    (
        "python",
        "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)",
        "time.sleep(1000)",
    ),
    ("python", "import os, time", "while True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)"),
    ("bash", "x=1", ""),
    ("bash", "", "while :; do :; done"),
    ("bash", "trap '' TERM HUP INT; setsid sleep 1000 & disown", "sleep 1000"),
    ("bash", "bomb() { bomb | bomb & }; bomb", "wait"),
    ("bash", "", "yes > /dev/null"),
]
"""Language, code before the start signal, and code after it."""
_SAYS = {"python": "print('begun', flush=True)", "bash": "echo begun"}


async def main(rounds: int) -> None:
    """Start every session, print their number, and never end."""
    async with ProcessRuntime(idle=False) as runtime, anyio.create_task_group() as tasks:
        instances: list[Instance] = []
        ears: list[Ear] = []
        for language, before, after in BUSY * rounds:
            instance = await runtime.start()
            instances.append(instance)
            await instance.run("python", "import os\nopen('f', 'w').write('x')")
            instances.append((await instance.fork()).instance)
            ears.append(Ear(b"begun"))
            source = f"{before}\n{_SAYS[language]}\n{after}"
            tasks.start_soon(partial(instance.run, language, source, on_output=ears[-1]))
        for ear in ears:
            await ear.heard.wait()
        sys.stdout.write(f"{len(instances)}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
