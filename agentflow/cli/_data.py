"""`agentflow data`: preparation of training data, and tasks of any reader."""

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from agentflow._private_files import replace_file
from agentflow.cli._output import Exit, print_json, write_out
from agentflow.errors import ConfigurationError
from agentflow.learner.data import Prepared, prepare
from agentflow.readers import PreparedTasks, ReaderSettings, prepare_tasks, task_record
from agentflow.settings import Settings, load_settings


def run_data(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    :raises ConfigurationError: one line, if something can't be read or written.
    """
    if arguments.action == "read":
        return _read(arguments)
    prepared = prepare(
        arguments.output,
        search=arguments.search,
        math=arguments.math,
        aime24=arguments.aime24,
        validation=arguments.validation,
        limit=arguments.limit,
        seed=arguments.seed,
    )
    read = write_out(partial(_show, prepared, arguments.output, as_json=arguments.json))
    return Exit.DONE if read else Exit.INTERRUPTED


def _show(prepared: Prepared, output: str, *, as_json: bool) -> None:
    if as_json:
        print_json(prepared)
        return
    for path, rows in prepared.files.items():
        sys.stdout.write(f"{output}/{path}: {rows} questions\n")
    if prepared.duplicates or prepared.tested:
        sys.stdout.write(f"left out: {prepared.duplicates} duplicates, {prepared.tested} of the test set\n")


class _ReadSettings(Settings):
    """Settings of `agentflow data read`."""

    reader: ReaderSettings
    """Reader of the tasks."""


_WIDTH = 100


def _read(arguments: argparse.Namespace) -> int:
    """Read tasks, write them, and show counts and the first ones."""
    words = ["reader.source=source", *(f"reader.{word}" for word in arguments.words)]
    reader = load_settings(_ReadSettings, overrides=words).reader
    prepared = prepare_tasks(reader.model_copy(update={"source": arguments.source}))
    if not prepared.tasks:
        raise ConfigurationError(
            f"{arguments.source}: no task is left; {_counts(prepared.left_out) or 'it has none'}"
        )
    if arguments.output is not None:
        lines = [msgspec.json.encode(task_record(task)) + b"\n" for task in prepared.tasks]
        path = Path(arguments.output)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, b"".join(lines))
        except OSError as error:
            raise ConfigurationError(f"{path}: can't be written: {error.strerror or error}") from None
    read = write_out(partial(_show_tasks, prepared, arguments.output, arguments.show, as_json=arguments.json))
    return Exit.DONE if read else Exit.INTERRUPTED


def _show_tasks(prepared: PreparedTasks, output: str | None, count: int, *, as_json: bool) -> None:
    if as_json:
        counts = msgspec.to_builtins(prepared)
        del counts["tasks"]
        records = [task_record(task) for task in prepared.tasks[:count]]
        print_json({**counts, "kept": len(prepared.tasks), "output": output, "first": records})
        return
    sys.stdout.write(f"read {prepared.read} tasks, kept {len(prepared.tasks) - prepared.variants}\n")
    if prepared.left_out:
        sys.stdout.write(f"left out: {_counts(prepared.left_out)}\n")
    if prepared.variants or prepared.rejected:
        rejected = f"; rejected: {_counts(prepared.rejected)}" if prepared.rejected else ""
        sys.stdout.write(f"added {prepared.variants} variants{rejected}\n")
    for task in prepared.tasks[:count]:
        answers = f" -> {' | '.join(task.references)}" if task.references else ""
        sys.stdout.write(f"  {_short(task.id)}: {_short(task.question)}{_short(answers)}\n")
    if output is not None:
        sys.stdout.write(f"{output}: {len(prepared.tasks)} tasks\n")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in counts.items())


def _short(text: str) -> str:
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    line = " ".join(line.split()) if not line.startswith(" ->") else f" {' '.join(line.split())}"
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"
