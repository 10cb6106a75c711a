"""Try every attack on snapshots, control channels and forks, as the current user, and print the outcomes as JSON.

Run as a program: as root, as an ordinary user with a range of ids, or as one without.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Final

import anyio

from runtimes.process import ProcessRuntime
from tests.attacks import control, forks, snapshots
from tests.attacks._table import Attack

ATTACKS: Final[list[Attack]] = [*snapshots.ATTACKS, *control.ATTACKS, *forks.ATTACKS]
"""Attacks on what the runtime does with sandboxes."""


async def attack_runtime(*, soak: bool) -> dict[str, str]:
    """Try attacks; return the outcomes by id."""
    seen: dict[str, str] = {}
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        for module in (snapshots, control, forks):
            table = [attack for attack in module.ATTACKS if soak or not attack.soak]
            with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
                seen |= await module.observe(runtime, table, Path(folder))
    return seen


async def _all() -> dict[str, str]:
    return await attack_runtime(soak=True)


def main() -> None:
    """Print the outcomes by attack."""
    sys.stdout.write(json.dumps(anyio.run(_all)))


if __name__ == "__main__":
    main()
