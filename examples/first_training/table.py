"""Combine the figures of several seeds in one table: `python examples/first_training/table.py DIR...`."""

import argparse
import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.first_training.report import Figures, table_of


def main() -> int:
    """Print the table; the last line is a JSON object of all figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("folders", type=Path, nargs="+", help="where `run.py` wrote, one for each seed")
    given = parser.parse_args()
    paths = [folder / "figures.json" for folder in given.folders]
    if missing := next((path for path in paths if not path.exists()), None):
        print(f"{missing} is missing; run run.py --out {missing.parent} first", file=sys.stderr)
        return 1
    seeds = [msgspec.json.decode(path.read_bytes(), type=Figures) for path in paths]
    print(table_of(seeds))
    print(msgspec.json.encode({"seeds": seeds}).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
