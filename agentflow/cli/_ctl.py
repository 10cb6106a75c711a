"""`agentflow ctl`: calls the control server of an active run, or commands all processes of a run by its journal."""

import argparse
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from pydantic import ValidationError

from agentflow._decoding import DECODE_ERRORS
from agentflow._terminal import printable
from agentflow._typeguards import is_list, is_object
from agentflow.cli._display import RunView, follow
from agentflow.cli._output import Exit, print_json
from agentflow.cli._synth import synth_fields
from agentflow.errors import AgentFlowError, ConfigurationError, ErrorKind, ToolFailure
from agentflow.runs import ControlAddress, Phase, is_output_active, read_control_address, usage_text
from agentflow.sandbox import Sandbox
from agentflow.synthesis import load_seeds
from agentflow.synthesis.pipeline import CONTROL_FILE, StatusOutput, SynthesisStatus, status_table
from agentflow.telemetry import get_logger

if TYPE_CHECKING:
    from rich.table import Table

logger = get_logger(__name__)

TOKEN_VARIABLE = "AGENTFLOW_CONTROL_TOKEN"
WATCH_SECONDS = 0.5
"""Interval at which `watch` reads the progress; a change of phase is read at once."""
ANSWER_SECONDS = 10.0
"""Time in which `watch` expects an answer."""
_JOURNAL = re.compile(r"(postgres|sqlite)\w*(\+\w+)?://")
_LAST = (Phase.STOPPING, Phase.WRITING, Phase.DONE, Phase.STOPPED)
_GONE = (ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT, ErrorKind.SESSION_NOT_FOUND)
_NOTHING = StatusOutput(
    phase=Phase.STARTING, seeds=0, done=0, open_trees=0, nodes={}, questions=0, rejected=0,
    calls_in_flight=0, calls_failed=0, tokens=0, cost=0.0, seconds=0.0,
)  # fmt: skip


def run_ctl(parsed: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises AgentFlowError: one line, if it fails.
    """
    if parsed.action == "watch":
        return _watch(parsed)
    if parsed.action == "open":
        from agentflow.cli._view import view_runs

        if parsed.url:
            raise ConfigurationError(
                "--url: the page reads the files of the run; name its output_dir with --dir"
            )
        _address(Path(parsed.dir))
        return view_runs(parsed.dir, port=parsed.port, opens=not parsed.no_open, as_json=parsed.json)
    adds = parsed.action == "add"
    words: list[str] = parsed.seeds if adds else []
    location = parsed.place if not adds else words.pop(0) if _JOURNAL.match(words[0]) else ""
    if adds and not words:
        raise ConfigurationError("add: name the seeds after the journal")
    seeds = [seed for text in words for seed in load_seeds(text)]
    if not location and not adds and parsed.journal:
        raise ConfigurationError("--journal: name the folder whose settings name it, too")
    if location:
        from agentflow.cli._watch import command_place

        if parsed.url:
            raise ConfigurationError(f"--url: leave it out; a run in {location} is commanded by its journal")
        answers = command_place(
            location,
            parsed.action,
            journal="" if adds else parsed.journal,
            run=parsed.run,
            seeds=seeds,
            origin=parsed.name if adds else "",
        )
    elif parsed.run:
        raise ConfigurationError("--run: name the journal of the run, too")
    else:
        verb = "add_seeds" if adds else parsed.action
        arguments: dict[str, object] = {"seeds": seeds, "name": parsed.name} if adds else {}
        answers = [anyio.run(_ask, control_address(parsed), f"run:{verb}", arguments)]
    for answer in answers:
        _print(parsed, answer)
    return Exit.DONE


def _print(arguments: argparse.Namespace, answer: Mapping[str, object]) -> None:
    if arguments.json:
        print_json(answer)
        return
    shown = {name: value for name, value in answer.items() if value != ""}
    sys.stdout.writelines(f"{printable(f'{name:<16} {_text(value)}')}\n" for name, value in shown.items())


async def _ask(address: ControlAddress, tool: str, arguments: dict[str, object]) -> dict[str, object]:
    try:
        async with Sandbox(address.url, token=address.token, timeout=60) as sandbox:
            return await _call(sandbox, tool, arguments)
    except ToolFailure as failure:
        if failure.kind is ErrorKind.UNAVAILABLE:
            raise AgentFlowError(f"no run responds at {address.url}: it has ended or was killed") from None
        wrong = failure.kind is ErrorKind.BAD_ARGUMENTS
        raise (ConfigurationError if wrong else AgentFlowError)(failure.message) from None


async def _call(sandbox: Sandbox, tool: str, arguments: dict[str, object]) -> dict[str, object]:
    result = await sandbox.execute(tool, arguments)
    if result.error is not None:
        raise ToolFailure(result.error.kind, result.error.message)
    return result.data


def control_address(arguments: argparse.Namespace) -> ControlAddress:
    """Return the address that the arguments of a command name.

    :raises AgentFlowError: one line, if there is none.
    """
    if not arguments.url:
        return _address(Path(arguments.dir))
    token = arguments.token or os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise ConfigurationError(
            f"token: it is missing; pass --token, or set {TOKEN_VARIABLE}; it is in {CONTROL_FILE}"
        )
    return ControlAddress(arguments.url, token)


def _address(folder: Path) -> ControlAddress:
    file = folder / CONTROL_FILE
    try:
        address = read_control_address(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise _NoRun(
            f"no run is active in {folder} (there is no {CONTROL_FILE}); name its output_dir with --dir"
        ) from None
    except OSError as error:
        raise AgentFlowError(f"{file}: can't be read: {error.strerror}") from None
    except DECODE_ERRORS:
        raise AgentFlowError(f"{file}: damaged; stop the run by a signal and start it again") from None
    if not address.is_own:
        raise _NoRun(
            f"no run of this machine responds at {address.url}, which {file} names: it has ended or was killed; "
            "ask a server elsewhere with --url and --token"
        )
    return address


class _NoRun(AgentFlowError):
    """No run of this machine is active in a directory."""


def _text(value: object) -> str:
    if is_object(value):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
    if is_list(value):
        return "; ".join(" ".join(str(item).split()) for item in value) or "none"
    return "–" if value is None else str(value)


def _watch(arguments: argparse.Namespace) -> int:
    """Show the progress of a run until it ends; it goes on if this process is interrupted."""
    if arguments.place:
        from agentflow.cli._watch import watch_place

        if arguments.url:
            raise ConfigurationError(f"--url: leave it out; {arguments.place} is followed by its journal")
        return watch_place(
            arguments.place, journal=arguments.journal, patience=arguments.patience, as_json=arguments.json
        )
    if not (math.isfinite(arguments.patience) and arguments.patience >= 0):
        raise ConfigurationError("--patience: give a number of seconds, 0 or more")
    watch = _RunWatch(arguments)
    watch.has_ended()  # refused before anything is shown, if there is no run
    view = RunView(watch.status, {"watched": arguments.url or arguments.dir}, synth_fields, watch.table)
    return follow(watch, view, as_json=arguments.json)


class _RunWatch:
    """Progress of a run that was started elsewhere, read from its control server again and again."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._address = control_address(arguments) if arguments.url else None
        self._seen: StatusOutput | None = None
        self._lost = False

    def status(self) -> SynthesisStatus:
        """Return the last progress that was read."""
        return (self._seen or _NOTHING).status()

    def table(self, status: SynthesisStatus) -> "Table":
        """Return it as a table."""
        notes = list((self._seen or _NOTHING).notes)
        if self._lost:
            notes.insert(0, "the run does not respond; waiting for it")
        return status_table(notes, status)

    def exit(self) -> Exit:
        """Return the exit status: that of the run, as far as it was seen."""
        return Exit.STOPPED if self._stopped else Exit.DONE

    def print_end(self) -> None:
        """Print a line about the end on stdout."""
        status = self.status()
        kept = f"{status.tasks} tasks" if status.tasks else f"{status.questions} questions accepted"
        sys.stdout.write(
            f"the run has {'stopped early' if self._stopped else 'ended'}: {status.done} of {status.seeds} seeds, "
            f"{kept}, {usage_text(status.tokens, status.cost)}\n"
        )

    @property
    def _stopped(self) -> bool:
        return self._seen is not None and self._seen.phase in (Phase.STOPPING, Phase.STOPPED)

    async def read_until_end(self) -> None:
        """Read until the run ends.

        :raises AgentFlowError: one line, if there is none, or it was killed and is not started again in time.
        """
        waiting_since: float | None = None
        while not self.has_ended():
            try:
                address = self._address or _address(Path(self._arguments.dir))
                async with Sandbox(address.url, token=address.token, timeout=ANSWER_SECONDS) as sandbox:
                    while True:
                        await self._read(sandbox)
                        waiting_since = None
            except ToolFailure as failure:
                if failure.kind not in _GONE:
                    raise AgentFlowError(failure.message) from None
                if self._seen is None and self._address is not None:
                    raise AgentFlowError(
                        f"no run responds at {self._address.url}: it has ended or was killed"
                    ) from None
            except _NoRun:
                # It is starting or ending: its lock is there before and after the address.
                pass
            if self._seen is not None and not self._lost:
                logger.warning("the run does not respond; waiting for it")
            self._lost = True
            now = anyio.current_time()
            waiting_since = now if waiting_since is None else waiting_since
            if now - waiting_since >= self._arguments.patience and not self._is_alive():
                raise AgentFlowError(self._lost_line())
            await anyio.sleep(WATCH_SECONDS)

    async def _read(self, sandbox: Sandbox) -> None:
        phase = "" if self._seen is None or self._lost else self._seen.phase
        answer = await _call(sandbox, "run:status", {"known_phase": phase, "wait_seconds": WATCH_SECONDS})
        try:
            seen = StatusOutput.model_validate(answer)
        except ValidationError:
            raise AgentFlowError(
                "the run is of another version of agentflow; use agentflow ctl status"
            ) from None
        if self._arguments.json and seen != self._seen:
            print_json(answer)
            sys.stdout.flush()
        self._seen, self._lost = seen, False

    def has_ended(self) -> bool:
        """Return true if the run has ended by itself.

        :raises _NoRun: if there was none.
        """
        if self._address is not None:
            return self._lost and self._seen is not None and self._seen.phase in _LAST
        folder = Path(self._arguments.dir)
        if (folder / CONTROL_FILE).exists() or is_output_active(folder):
            return False
        if self._seen is None:
            _address(folder)  # raises, if it was not written just now
            return False
        return True

    def _is_alive(self) -> bool:
        """Return true if the process that does not respond still exists."""
        if self._address is not None:
            return False
        try:
            _address(Path(self._arguments.dir))
        except _NoRun:
            return False
        return True

    def _lost_line(self) -> str:
        where = self._address.url if self._address is not None else self._arguments.dir
        if self._seen is None:
            return (
                f"no run responds in {where}: it was killed, or has no control server; "
                f"run its command again to resume, or follow it by its journal: agentflow ctl watch {where}"
            )
        seeds = f"{self._seen.done} of {self._seen.seeds} seeds were done"
        return f"the run in {where} does not respond any more ({seeds}); run its command again to resume"
