import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeVar

from agentflow.errors import AgentFlowError

if TYPE_CHECKING:
    from agentflow import Sandbox

Made = TypeVar("Made")

_PREPARE = "echo 'written before the fork' > note.txt; colour=blue; cd /tmp"
_ANALYSE = """
import pandas as pd
sales = pd.DataFrame({"fruit": ["apple", "pear", "apple"], "kg": [3, 5, 4]})
sales.groupby("fruit").kg.sum().to_dict()
"""
_LOOK_BASH = "echo $colour, in $PWD, note: $(cat ~/note.txt)"
_LOOK_PYTHON = "{'rows': len(sales), 'total': int(sales.kg.sum())}"
_CHANGE_BASH = "colour=red; cd /; echo 'written after the fork' > ~/note.txt"
_CHANGE_PYTHON = "sales = sales.head(1)"


def main() -> int:
    """Show it on stdout; 0 if all went well, else 1 with one line on stderr."""
    print(f"AgentFlow {version('agentflow')}: a sandbox that forks", flush=True)
    try:
        asyncio.run(_tell(time.perf_counter))
    except AgentFlowError as error:
        print(f"agentflow.demo: {error}", file=sys.stderr)
        return 1
    return 0


async def _tell(clock: Callable[[], float]) -> None:
    # Loaded here so that the first line stands on the screen before the libraries are loaded.
    from agentflow import Sandbox

    async def timed(what: str, step: Awaitable[Made]) -> Made:
        begin = clock()
        made = await step
        print(f"{(clock() - begin) * 1000:8.1f} ms  {what}", flush=True)
        return made

    async with Sandbox() as sandbox:
        print("\nA sandbox has a shell and a Python session over the same files:")
        await timed(
            "bash: the runtime starts; a file, a variable, another directory", _bash(sandbox, _PREPARE)
        )
        totals = await timed("python: a table is summed with pandas", _python(sandbox, _ANALYSE))
        print(f"             => {totals}")
        async with Sandbox() as another:
            print("\nAnother one, now that the runtime is warm:")
            await timed("bash", _bash(another, _PREPARE))
            await timed("python: the same table", _python(another, _ANALYSE))

        print("\nFork the first while it is live, then change everything in the fork:")
        fork = await timed("fork: shell, interpreter and files", sandbox.fork())
        async with fork:
            await timed("bash in the fork", _bash(fork, _CHANGE_BASH))
            await timed("python in the fork", _python(fork, _CHANGE_PYTHON))
            await _compare(sandbox, fork)
    print(
        "\nTimes are of this run on this machine. `make bench` measures with care, `make test` runs the suite."
    )


async def _compare(sandbox: "Sandbox", fork: "Sandbox") -> None:
    """Print what each side sees now."""
    print()
    for name, side in (("sandbox", sandbox), ("fork", fork)):
        print(f"  {name:<8} bash    {await _bash(side, _LOOK_BASH)}")
        print(f"  {'':<8} python  {await _python(side, _LOOK_PYTHON)}")


async def _bash(sandbox: "Sandbox", command: str) -> str:
    return str(await _field(sandbox, "bash:run", {"command": command}, "stdout")).strip()


async def _python(sandbox: "Sandbox", code: str) -> object:
    return await _field(sandbox, "code:run", {"code": code}, "value")


async def _field(sandbox: "Sandbox", tool: str, arguments: dict[str, object], field: str) -> object:
    """One field of what a call returned.

    :raises AgentFlowError: if the call failed, or the program in it did.
    """
    result = await sandbox.execute(tool, arguments)
    if result.error is not None:
        raise AgentFlowError(f"{tool}: {result.error.message}")
    if result.data.get("error") or result.data.get("exit_code"):
        raise AgentFlowError(f"{tool}: {result.data}")
    return result.data[field]
