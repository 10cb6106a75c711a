"""Program that holds a Ray cluster of one machine, which ends with it.

It prints the address, and for each line of its input the classes of the actors that live, once all CPUs and the GPU are free.
"""

# pyright: basic

import json
import sys
from typing import Any

import ray
from ray._private import state

CPUS = 5
"""verl needs four for a process, and one more."""


def main() -> None:
    """Start the cluster in a temporary folder, and answer until the input ends."""
    # verl counts a GPU for each process, also on the CPU.
    ray.init(
        num_cpus=CPUS,
        num_gpus=1,
        object_store_memory=100_000_000,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=sys.argv[1],
    )
    _say(ray.get_runtime_context().gcs_address)
    whole = ray.remote(num_cpus=CPUS, num_gpus=1)(lambda: None)
    for _ in sys.stdin:
        ray.get(whole.remote())
        actors: dict[str, Any] = state.actors()
        _say(json.dumps([actor["ActorClassName"] for actor in actors.values() if actor["State"] != "DEAD"]))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
