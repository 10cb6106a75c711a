"""`agentflow synth`: a synthesis from its settings to its files, with somebody watching."""

import argparse
import os
import signal
import stat
import sys
from importlib.util import find_spec
from typing import TextIO

import anyio
import anyio.abc
import msgspec

from agentflow.cli._exits import Exit
from agentflow.cli._screen import Screen, screen_for
from agentflow.cli._summary import print_summary
from agentflow.errors import AgentFlowError, RunStopped
from agentflow.journal import NewSeed
from agentflow.synthesis import load_config, render_config
from agentflow.synthesis.pipeline import SynthesisRun, seeds_for

__all__ = ["run_synth"]

LAST_SECONDS = 5.0
"""After a second signal everything is closed at once; what takes longer than this is left to the system."""


def run_synth(given: argparse.Namespace) -> int:
    """Do what the arguments say; gives the exit status.

    :raises AgentFlowError: in one line, if it can't be done.
    """
    config = load_config(given.config, given.settings)
    if given.print_config:
        sys.stdout.write(render_config(config))
        return Exit.DONE
    seeds = seeds_for(config)
    run = SynthesisRun(config, resume=given.resume)
    with screen_for(run) as screen:
        program = _Program(run, screen)
        # The faster loop is an extra: a tenth less CPU where it is installed.
        anyio.run(program.go, seeds, backend_options={"use_uvloop": find_spec("uvloop") is not None})
    status = program.status()
    try:
        _say(run, program.ended, status, as_json=given.json)
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads any more; what is left in the buffer must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.INTERRUPTED
    return status


class _Program:
    """A run with its signals and its screen."""

    def __init__(self, run: SynthesisRun, screen: Screen) -> None:
        self.ended: RunStopped | None = None
        """Why it ended early, if it did."""
        self._failed: AgentFlowError | None = None
        self._run = run
        self._screen = screen
        self._interrupted = False

    def status(self) -> Exit:
        """The exit status.

        :raises AgentFlowError: if it failed.
        """
        if self._failed is not None:
            raise self._failed
        if self.ended is None:
            return Exit.DONE
        return Exit.INTERRUPTED if self._interrupted else Exit.STOPPED

    async def go(self, seeds: list[NewSeed]) -> None:
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._listen)
            tasks.start_soon(self._screen.watch)
            for stream in (sys.stdout, sys.stderr):
                if _is_pipe(stream):
                    tasks.start_soon(self._watch_reader, stream.fileno())
            try:
                await self._run.run(seeds)
            except RunStopped as stopped:
                self.ended = stopped
            except AgentFlowError as error:
                self._failed = error
            tasks.cancel_scope.cancel()

    async def _listen(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            first = await anext(signals)
            self._stop(f"{first.name} came")
            await anext(signals)
            self._run.hurry()
            with anyio.move_on_after(LAST_SECONDS):
                await anext(signals)
            # Nothing is lost by it: whatever is killed at any time goes on the same way.
            os._exit(Exit.INTERRUPTED)

    async def _watch_reader(self, descriptor: int) -> None:
        """A program whose output nobody reads any more stops."""
        # The writing end of a pipe is never readable, until its reader is gone.
        await anyio.wait_readable(descriptor)
        self._stop("its output was closed")

    def _stop(self, why: str) -> None:
        self._interrupted = True
        self._run.stop(why)


def _is_pipe(stream: TextIO) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _say(run: SynthesisRun, ended: RunStopped | None, status: Exit, *, as_json: bool) -> None:
    """What there is now, on stdout; why it ended early, on stderr."""
    if ended is not None:
        sys.stderr.write(f"agentflow: {ended.message}\n")
    if as_json:
        said = {
            "status": int(status),
            "stopped": None if ended is None else {"cause": ended.cause, "message": ended.message},
            "nothing_to_do": run.found_nothing_to_do,
            "output_dir": str(run.place.folder),
            "report": run.report,
        }
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
    elif run.report is not None:
        print_summary(run, run.report)
