"""Files of the standard runs, and their digests in golden.toml: `python -m tests.system._golden --write` accepts a change.

The runs need no model and no GPU: the synthesis of `make run`, the rollout of configs/rollout/corpus.yaml, a training with
backbone=debug, a tuning through a gateway with random answers, and every export of the synthesis, the rollout and the tuning.
A format without rows is represented by its error message.
"""

import gzip
import hashlib
import re
import sqlite3
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from agentflow.errors import ConfigurationError
from agentflow.exports import ExportFormat, export_run
from agentflow.runs import JOURNAL_FILE
from tests.agentflow.cli._programs import run
from tests.agentflow.exports._trees import tune_agent
from tests.behaviour._tree import ROOT

DIGESTS = Path(__file__).with_name("golden.toml")
"""SHA-256 of each file."""
LEFT_OUT = ("summary.json", "episodes.db", f"{JOURNAL_FILE}-")
"""Beginnings of the names of files with durations or keys of episodes, and of SQLite's own files."""
NAMES_FOLDER = ("README.md", "manifest.json")
"""Files of an export that contain the key of a tuning, which depends on its folder."""
_TIME = re.compile(rb'begun [-0-9]{10} [:0-9]{5} UTC|"(?:seconds|started)":[-+.e0-9]+')


def golden_files(folder: Path) -> dict[str, bytes]:
    """Make the standard runs in an empty folder; return the deterministic contents of each file by its name."""
    synthesis, rollout = folder / "synthesis_results", folder / "rollout_results" / "corpus"
    printed = {
        "synthesis": _printed(folder, "agentflow.supervisor"),
        "training": _printed(folder, "agentflow.cli", "train", "--backbone=debug"),
    }
    _printed(folder, "agentflow.cli", "rollout", str(ROOT / "configs/rollout/corpus.yaml"))
    tuning = tune_agent(folder)
    found = {f"{name}/printed": text.encode() for name, text in printed.items()}
    for name, output in (("synthesis", synthesis), ("rollout", rollout), ("tuning", tuning)):
        found |= {f"{name}/{path}": content for path, content in contents_of(output)}
        for format in ExportFormat:
            exported = folder / "exports" / name / format
            try:
                export_run(output, format, exported)
            except ConfigurationError as error:
                found[f"exports/{name}/{format}"] = str(error).encode()
            else:
                found |= {
                    f"exports/{name}/{format}/{path}": content
                    for path, content in contents_of(exported)
                    if name != "tuning" or path not in NAMES_FOLDER
                }
    return dict(sorted(found.items()))


def _printed(folder: Path, module: str, *arguments: str) -> str:
    """Run a command there, and return its output."""
    process = run(module, *arguments, cwd=folder, python=sys.executable)
    assert process.returncode == 0, process.stderr
    return process.stdout


def contents_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the deterministic files of a folder."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, content = str(path.relative_to(folder)), path.read_bytes()
        if path.name == JOURNAL_FILE:
            yield from _records(path)
        elif path.suffix == ".gz":
            # Builds of Python compress with different libraries.
            yield name, gzip.decompress(content)
        elif not path.name.startswith(LEFT_OUT):
            yield name, _TIME.sub(b"", content)


def _records(journal: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the contents of a journal's tables, without times and the order of writing."""
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as database:
        for table, columns in (
            ("runs", "name, settings"),
            ("seeds", "number, name, origin, place, body, done"),
            ("entries", "seed, key, body"),
            ("blobs", "hash, data"),
        ):
            rows = database.execute(f"SELECT {columns} FROM agentflow_{table} ORDER BY {columns}")
            yield f"{JOURNAL_FILE}/{table}", b"".join(_TIME.sub(b"", repr(row).encode()) for row in rows)


def digests_of(files: dict[str, bytes]) -> dict[str, str]:
    """Return the digest of each file."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def expected_digests() -> dict[str, str]:
    """Read golden.toml."""
    return tomllib.loads(DIGESTS.read_text(encoding="utf-8"))


def write_digests() -> None:
    """Write golden.toml."""
    with tempfile.TemporaryDirectory() as folder:
        digests = digests_of(golden_files(Path(folder)))
    lines = "".join(f'"{name}" = "{digest}"\n' for name, digest in digests.items())
    DIGESTS.write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.system._golden --write")
    write_digests()
