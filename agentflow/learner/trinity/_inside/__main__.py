# pyright: basic, reportMissingImports=false
"""`python -m agentflow.learner.trinity._inside CONFIGURATION`, in the folder of requests: run Trinity's trainer.

Each request is the rows of a step; they are written to the trainer's SQL buffer. The trainer never ends on its own.
"""

import asyncio
import os
import sys
import threading
import traceback
from pathlib import Path

from trinity.buffer.buffer import get_buffer_writer
from trinity.cli.launcher import run_stage
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
    """Run until the trainer ends, which is a failure."""
    config = load_config(sys.argv[1])
    config.check_and_update()

    def write() -> None:
        try:
            asyncio.run(write_steps(config, Path.cwd()))
        except BaseException:  # The process ends with it; its log is shown.
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=write, daemon=True).start()
    status = run_stage(config)
    if status.error is not None:
        print(f"{status.error.type_name}: {' '.join(status.error.message.split())}", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    # Not `sys.exit`: a thread still writes.
    code = main()
    sys.stderr.flush()
    os._exit(code)
