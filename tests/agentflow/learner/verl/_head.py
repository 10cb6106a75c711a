"""Program that holds a Ray cluster of one machine, which ends with it.

It prints the address, and for each line of its input the classes of the actors that live, once all CPUs and the GPU are free.
"""

import json
import sys

import ray
from ray._private.state import actors

CPUS = 16


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
    print(ray.get_runtime_context().gcs_address, flush=True)
    whole = ray.remote(num_cpus=CPUS, num_gpus=1)(lambda: None)
    for _ in sys.stdin:
        ray.get(whole.remote())
        alive = [actor["ActorClassName"] for actor in actors().values() if actor["State"] != "DEAD"]
        print(json.dumps(alive), flush=True)


if __name__ == "__main__":
    main()
