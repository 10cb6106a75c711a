"""Run a program over a data directory and over perturbed copies of it, and print the last line of each output.

The request is JSON on the standard input: `source`, `root` (the directory as the program names it), `copies` (their
number), `seconds` for each run. The reply is JSON: for each directory, the original first, `{"output": …, "error": …}`. A
program that fails on the original is not run on the copies.
"""

import csv
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_BYTES = 64 * 1024 * 1024
"""Largest data directory of which copies are made."""
MAX_OUTPUT = 20_000
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


def main() -> None:
    """Answer the request on the standard input."""
    request: dict[str, Any] = json.load(sys.stdin)
    root, source = str(request["root"]), str(request["source"])
    if "pandas" in source:
        with suppress(ImportError):  # each run is forked from here and need not load it again
            importlib.import_module("pandas")
    seconds, copies = float(request["seconds"]), int(request["copies"])
    runs = [run(source, seconds)]
    if runs[0]["error"]:
        runs *= copies + 1
    else:
        with tempfile.TemporaryDirectory() as scratch:
            for number in range(copies):
                copy = os.path.join(scratch, f"copy{number}")
                perturb_folder(Path(root), Path(copy), number)
                runs.append(run(relocate(source, root, copy), seconds))
    sys.stdout.write(json.dumps(runs))


def relocate(source: str, root: str, folder: str) -> str:
    """Return a program that reads another directory."""
    return (
        source if folder == root else re.sub(rf"(?<![\w./]){re.escape(root)}(?=[/'\"\s]|$)", folder, source)
    )


def run(source: str, seconds: float) -> dict[str, str]:
    """Run a program in a process of its own, in an empty directory."""
    with tempfile.TemporaryDirectory() as scratch:
        output = os.path.join(scratch, "output")
        child = os.fork()
        if child == 0:
            _run_here(source, scratch, output, seconds)
        _, status = os.waitpid(child, 0)
        text = Path(output).read_text(encoding="utf-8", errors="replace")[-MAX_OUTPUT:]
        problem = os.path.join(scratch, "error")
        error = Path(problem).read_text(encoding="utf-8") if os.path.exists(problem) else ""
        if status and not error:
            error = f"it needs more than {seconds:.0f} seconds, or was killed"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return {"output": lines[-1] if lines and not error else "", "error": error}


def _run_here(source: str, scratch: str, output: str, seconds: float) -> None:
    """Run a program in this process, which ends with it."""
    status = 1
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 2)
        work = os.path.join(scratch, "work")
        os.mkdir(work)
        os.chdir(work)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        random.seed(0)
        sys.argv = ["program"]
        exec(compile(source, "program", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        status = 0
    except SystemExit as ended:
        sys.stdout.flush()
        status = 0 if ended.code in (None, 0) else 1
    except BaseException as error:  # boundary: the program is not ours
        text = traceback.format_exception_only(type(error), error)[-1].strip()
        with open(os.path.join(scratch, "error"), "w", encoding="utf-8") as file:
            file.write(text[:500])
    finally:
        os._exit(status)


def perturb_folder(folder: Path, copy: Path, number: int) -> None:
    """Copy a data directory with other rows in its tables; other files are copied as they are."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if sum(path.stat().st_size for path in files) > MAX_BYTES:
        raise SystemExit(f"the data has more than {MAX_BYTES} bytes")
    copy.mkdir()
    for path in files:
        target = copy / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        kind = path.suffix.lower()
        if kind in (".csv", ".tsv"):
            _perturb_csv(path, target, number, "\t" if kind == ".tsv" else ",")
        elif kind in (".parquet", ".pq"):
            _perturb_parquet(path, target, number)
        else:
            shutil.copyfile(path, target)


def _perturb_csv(path: Path, target: Path, number: int, separator: str) -> None:
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    first = text.split("\n", 1)[0]
    separator = max((separator, ";", "\t", ","), key=first.count)
    header, *rows = list(csv.reader(text.splitlines(), delimiter=separator)) or [[]]
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(perturb(header, rows, number))


def _perturb_parquet(path: Path, target: Path, number: int) -> None:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    table: Any = parquet.read_table(path)
    names: list[str] = table.column_names
    rows = [[row[name] for name in names] for row in table.to_pylist()]
    changed = [dict(zip(names, row, strict=True)) for row in perturb(names, rows, number)]
    arrow: Any = importlib.import_module("pyarrow")
    parquet.write_table(arrow.Table.from_pylist(changed, schema=table.schema), target)


def perturb(header: list[str], rows: list[list[Any]], number: int) -> list[list[Any]]:
    """Return near copies of rows: changed numbers, values of the next row, some rows deleted and some twice.

    Columns whose values identify a row keep their values.
    """
    columns = range(len(header))
    fixed = {column for column in columns if _identifies(header[column], rows, column)}
    changed: list[list[Any]] = []
    for index, row in enumerate(rows):
        if len(row) != len(header) or (index + 3 + number) % 7 == 0:
            continue
        new = list(row)
        following = rows[(index + 1) % len(rows)]
        for column in columns:
            if column in fixed:
                continue
            if _is_number(row[column]):
                if index % 3 == number % 3:
                    new[column] = _more(row[column], 1 + (index + column) % 9)
            elif index % 4 == number % 4 and len(following) == len(header):
                new[column] = following[column]
        changed.append(new)
        if (index + number) % 11 == 0:
            changed.append(new)
    return changed


def _identifies(name: str, rows: list[list[Any]], column: int) -> bool:
    """Tell whether a column holds the identity of a row."""
    if re.search(r"(?:^|_)id$|Id$", name):
        return True
    values = [str(row[column]) for row in rows if column < len(row)]
    return len(values) > 3 and len(set(values)) == len(values) and not all(map(_is_number, values))


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return _NUMBER.fullmatch(value.strip()) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _more(value: Any, step: int) -> Any:  # noqa: ANN401 - a cell of any type
    """Return a number with as many decimals, a little larger."""
    if not isinstance(value, str):
        return value + step
    _, point, decimals = value.strip().partition(".")
    return f"{float(value) + step:.{len(decimals)}f}" if point else str(int(value) + step)


if __name__ == "__main__":
    main()
