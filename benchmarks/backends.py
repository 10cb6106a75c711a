"""Backends and runtimes, compared with the tools that they use, in the same run.

Run `python benchmarks/backends.py [--check] [PART ...]`: prints a table for each part, and as the last line one JSON object.
With `--check` it exits with 1 if a limit is missed. Parts: browser, desktop, docker, document, external, qemu, sql, web,
world. Each needs the component that it measures; docker starts its own engine, as root.
"""

import argparse
import importlib
import json
import logging
import sys
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._rows import Row

PARTS = ("browser", "desktop", "docker", "document", "external", "qemu", "sql", "web", "world")


async def measure(part: str) -> list[Row]:
    """The figures of one part."""
    return await importlib.import_module(f"benchmarks._backends_{part}").measure()


def show(part: str, rows: list[Row]) -> None:
    """Its table."""
    print(f"{part:<44}{'ours':>10}{'plain':>10}   {'':<28}{'floor':>8}")
    for row in rows:
        theirs = "" if row.theirs is None else f"{row.theirs:.2f}"
        floor = "" if row.floor is None else f"{'+' if row.added else ''}{row.floor:g}"
        missed = "" if row.held else "  missed"
        print(f"  {row.name:<42}{row.ours:>10.2f}{theirs:>10}   {row.beside:<28}{floor:>8}{missed}")
    print(flush=True)


def main() -> int:
    """Print the tables, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a floor is missed")
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to measure; by default all")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {min(unknown)!r}: there are {', '.join(PARTS)}")
    logging.disable(logging.WARNING)
    figures: dict[str, float] = {}
    missed = False
    for part in options.parts or PARTS:
        rows = anyio.run(measure, part)
        show(part, rows)
        for row in rows:
            figures[f"{part}: {row.name}"] = round(row.ours, 4)
            missed = missed or not row.held
    print(json.dumps(figures))
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
