"""A server that is going to be killed: a runtime with busy sessions of every kind. Run as a program."""

import asyncio
import sys

import anyio

from runtimes import Instance, Language
from runtimes.process import ProcessRuntime

BUSY: list[tuple[Language, str]] = [
    ("python", "x = 1"),
    ("python", "while True: pass"),
    ("python", "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)"),
    (
        "python",
        "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(1000)",
    ),
    ("python", "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)"),
    ("bash", "x=1"),
    ("bash", "while :; do :; done"),
    ("bash", "trap '' TERM HUP INT; setsid sleep 1000 & disown; sleep 1000"),
    ("bash", "bomb() { bomb | bomb & }; bomb; wait"),
    ("bash", "yes > /dev/null"),
]


async def main(rounds: int) -> None:
    """Start everything, say so, and never end."""
    async with ProcessRuntime() as runtime, anyio.create_task_group() as tasks:
        instances: list[Instance] = []
        for language, source in BUSY * rounds:
            instance = await runtime.start()
            instances.append(instance)
            await instance.run("python", "import os\nopen('f', 'w').write('x')")
            instances.append((await instance.fork()).instance)
            tasks.start_soon(instance.run, language, source)
        await anyio.wait_all_tasks_blocked()
        sys.stdout.write(f"{len(instances)}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
