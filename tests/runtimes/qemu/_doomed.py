"""Server to be killed: a machine and its fork. Run as a program."""

import sys

import anyio

from runtimes.qemu import QemuRuntime, QemuSettings


async def main(settings: str) -> None:
    """Start both, print the directory of their files, and never end."""
    async with QemuRuntime(QemuSettings.model_validate_json(settings)) as runtime:
        await (await runtime.start()).fork()
        sys.stdout.write(f"{runtime.folder}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
