"""The synthesis as a whole, for programs: with and without `await`."""

from os import PathLike
from pathlib import Path

from agentflow.journal import NewSeed
from agentflow.runs import CONTROL_FILE, Phase, Resume, run_sync
from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._progress import SynthesisStatus
from agentflow.synthesis._report import Report
from agentflow.synthesis._run import SynthesisRun
from agentflow.synthesis._seeds import Seeds, new_seeds, seeds_for

__all__ = [
    "CONTROL_FILE",
    "Phase",
    "Resume",
    "Seeds",
    "SynthesisPipeline",
    "SynthesisRun",
    "SynthesisStatus",
    "seeds_for",
]


class SynthesisPipeline:
    """Grows trees from seeds and turns them into question-answer pairs.

    ::

        SynthesisPipeline(config=load_config("config.json"), output_dir="my_output").run(["Explore the harbour"])
    """

    def __init__(self, config: SynthesisConfig, output_dir: str | PathLike[str] | None = None) -> None:
        """Describe it.

        :param output_dir: where the files go, if not where the settings say.
        """
        self._config = config
        self._output_dir = None if output_dir is None else Path(output_dir)

    def run(self, seeds: Seeds | None = None) -> None:
        """Do everything that is not done yet; the files are in the output directory then.

        It also works where a loop runs already, as in a notebook: the work has a thread of its own.

        :param seeds: what to grow; `None`: what the settings say.
        :raises ConfigurationError: if something can't be used, in one line; nothing was begun.
        :raises RunStopped: if it ended early; the same again goes on.
        """
        run_sync(self.arun, seeds)

    async def arun(self, seeds: Seeds | None = None) -> Report:
        """`run` for code that awaits; gives the report."""
        return await SynthesisRun(self._config, self._output_dir).run(self._new_seeds(seeds))

    def _new_seeds(self, seeds: Seeds | None) -> list[NewSeed]:
        return seeds_for(self._config) if seeds is None else new_seeds(seeds)[: self._config.number_of_seed]
