"""Run the first training: make a corpus, a model and its teacher, fine-tune, train, and evaluate before and after.

python examples/first_training/run.py [--seed N] [--out DIR] [--settings FILE] [key=value ...]
"""

import argparse
import sys
import time
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentflow.errors import AgentFlowError
from examples.first_training.plan import read_plan
from examples.first_training.report import report_on
from examples.first_training.training import first_training


def main() -> int:
    """Run it; run the same command to resume."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    parser.add_argument("--out", type=Path, help="output folder")
    parser.add_argument("--settings", type=Path, help="settings file instead of settings.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that override the file")
    given = parser.parse_args()
    folder = given.out or Path("first_training_results", str(given.seed))
    began = time.monotonic()

    def say(words: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {words}", flush=True)

    async def work() -> None:
        plan = read_plan(given.settings, given.overrides)
        judged = await first_training(plan, folder, given.seed, say=say)
        print(report_on(folder, judged, given.seed, time.monotonic() - began))

    try:
        anyio.run(work)
    except AgentFlowError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
