"""A synthesis as an object: made from settings, run with or without `await`."""

from os import PathLike
from pathlib import Path

from agentflow.journal import NewSeed
from agentflow.runs import CONTROL_FILE, Phase, Resume, run_sync
from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._progress import SynthesisStatus
from agentflow.synthesis._render import render_report
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
    "render_report",
    "seeds_for",
]


class SynthesisPipeline:
    """Grow trees from seeds and turn them into question-answer pairs.

    Example::

        SynthesisPipeline(config=load_config("config.json"), output_dir="my_output").run(["Explore the harbour"])
    """

    def __init__(self, config: SynthesisConfig, output_dir: str | PathLike[str] | None = None) -> None:
        """Describe it.

        :param output_dir: output directory, instead of that of the settings.
        """
        self._config = config
        self._output_dir = None if output_dir is None else Path(output_dir)

    def run(self, seeds: Seeds | None = None) -> None:
        """Work on all unfinished seeds and write the files.

        It also works inside a running event loop, as in a notebook.

        :param seeds: seeds to grow; `None`: those of the settings.
        :raises ConfigurationError: one line, if something can't be used; nothing was begun.
        :raises RunStopped: if it ended early; the same call resumes it.
        """
        run_sync(self.arun, seeds)

    async def arun(self, seeds: Seeds | None = None) -> Report:
        """Work on all unfinished seeds, write the files and return the report on them. See `run`."""
        return await SynthesisRun(self._config, self._output_dir).run(self._new_seeds(seeds))

    def _new_seeds(self, seeds: Seeds | None) -> list[NewSeed]:
        return seeds_for(self._config) if seeds is None else new_seeds(seeds)[: self._config.number_of_seed]
