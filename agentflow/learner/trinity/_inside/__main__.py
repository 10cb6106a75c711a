# pyright: basic, reportMissingImports=false
"""`python -m agentflow.learner.trinity._inside TRAINER [EXPLORER]`, in the folder of requests: run Trinity's trainer.

Each request is the rows of a step; they are written to the trainer's SQL buffer. The trainer never ends on its own. The arguments are configurations; the explorer shares Ray with the trainer.
"""

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ray
from trinity.buffer.buffer import get_buffer_writer
from trinity.cli.launcher import StageStatus, run_stage, serve
from trinity.common.config import Config, load_config

from agentflow.learner._exchange import (
    READY,
    TrainerRequest,
    TrainerResponse,
    read_message,
    unpack_rows,
    write_message,
)
from agentflow.learner.trinity._inside import experiences_of

_POLL_SECONDS = 0.05


async def write_steps(config: Config, folder: Path) -> None:
    """Write the rows of each request to the buffer, in order."""
    storage = config.buffer.trainer_input.experience_buffer.to_storage_config()
    # The trainer reads through an actor of its own; both open the same file.
    storage.wrap_in_ray = False
    writer = get_buffer_writer(storage)
    await writer.acquire()
    (folder / READY).touch()
    while True:
        for order in _orders(folder):
            _, arrays = read_message(order, TrainerRequest)
            step = int(order.stem)
            error = ""
            try:
                await writer.write(experiences_of(unpack_rows(arrays), step, config.buffer.train_batch_size))
            except Exception as problem:  # Reported by the response.
                error = " ".join(f"{type(problem).__name__}: {problem}".split())
            order.rename(order.with_suffix(".taken"))
            write_message(order.with_suffix(".answer"), TrainerResponse(error=error), {})
        await asyncio.sleep(_POLL_SECONDS)


def _orders(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.order"))


def main() -> int:
    """Run until the trainer or the explorer ends, which is a failure."""
    config, *explorers = [load_config(path).check_and_update() for path in sys.argv[1:]]
    _in_thread(lambda: asyncio.run(write_steps(config, Path.cwd())))
    for explorer in explorers:
        _in_thread(partial(_explore, explorer))
    _print_error(run_stage(config))
    return 1


def _explore(config: Config) -> None:
    """Run the explorer in the trainer's Ray."""
    while not ray.is_initialized():  # `run_stage` starts it
        time.sleep(_POLL_SECONDS)
    _print_error(serve(config))
    sys.stderr.flush()
    os._exit(1)


def _in_thread(work: Callable[[], None]) -> None:
    def run() -> None:
        try:
            work()
        except BaseException:  # The process ends with it; its log is shown.
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=run, daemon=True).start()


def _print_error(status: StageStatus) -> None:
    if status.error is not None:
        print(f"{status.error.type_name}: {' '.join(status.error.message.split())}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    # Not `sys.exit`: a thread still writes.
    code = main()
    sys.stderr.flush()
    os._exit(code)
