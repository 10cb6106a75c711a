"""The figures of each step as a line of JSON."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agentflow._private_files import make_private_folder, open_private, write_private


class Jsonl:
    """Appends a line for each step, atomically. Non-finite numbers are `null`."""

    def __init__(self, path: Path, after: int = -1) -> None:
        """:param after: last valid step; lines of later steps are moved to a separate file."""
        self._path = path
        make_private_folder(path.parent)
        _cut(path, after)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write a line."""
        line = msgspec.json.encode({"step": step, **figures}) + b"\n"
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(f"{self._path}: only {written} of {len(line)} bytes could be written")
        except OSError:
            os.ftruncate(self._file, size)
            raise
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_figures(path: Path) -> list[dict[str, float | None]]:
    """Return the lines of a figures file, each with its `step`; a line truncated by a crash is skipped. See docs/trackers.md."""
    return [figures for _, figures in _lines(path)]


def _lines(path: Path) -> list[tuple[bytes, dict[str, float | None]]]:
    found: list[tuple[bytes, dict[str, float | None]]] = []
    for line in path.read_bytes().splitlines():
        try:
            found.append((line, msgspec.json.decode(line, type=dict[str, float | None])))
        except msgspec.DecodeError:
            continue
    return found


def _cut(path: Path, after: int) -> None:
    """Move the lines of steps that will be repeated to a separate file."""
    if not path.exists():
        return
    lines = _lines(path)
    kept = [line for line, figures in lines if (figures.get("step") or 0) <= after]
    gone = [line for line, figures in lines if (figures.get("step") or 0) > after]
    whole = b"".join(line + b"\n" for line in kept)
    if whole == path.read_bytes():
        return
    if gone:
        with open_private(path.with_suffix(".set-aside.jsonl"), "ab") as aside:
            aside.write(b"".join(line + b"\n" for line in gone))
    new = path.with_suffix(".new")
    write_private(new, whole)
    new.replace(path)
