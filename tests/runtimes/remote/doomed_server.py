"""Server that starts a remote sandbox, prints its id and waits to be killed."""

import sys

import anyio

from runtimes.remote import RemoteOptions, RemoteRuntime


async def main() -> None:
    name, options = sys.argv[1:]
    assert name in ("daytona", "e2b", "k8s", "modal")
    async with RemoteRuntime(name, RemoteOptions.model_validate_json(options)) as runtime:
        sys.stdout.write((await runtime.start()).id + "\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
