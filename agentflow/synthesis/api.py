"""Whole syntheses with one call."""

from collections.abc import Iterable
from os import PathLike

from agentflow.runs import run_sync
from agentflow.synthesis._config import SynthesisConfig, load_config
from agentflow.synthesis._report import Report
from agentflow.synthesis._seeds import Seeds, load_seeds
from agentflow.synthesis.pipeline import SynthesisPipeline

__all__ = ["SynthesisConfig", "asynthesize", "load_config", "load_seeds", "synthesize"]


def synthesize(
    *,
    config_path: str | PathLike[str] | None = None,
    seeds: Seeds | None = None,
    overrides: Iterable[str] = (),
    progress: bool = True,
) -> None:
    """Grow trees from seeds and write question-answer pairs. The same call resumes a run that ended early.

    It also works inside a running event loop, as in a notebook. In a terminal or a notebook it shows its progress with the
    newest pairs, and at the end the counts and some pairs, or the reason that there are none; elsewhere it prints nothing.

    :param config_path: settings file, JSON or YAML.
    :param seeds: a file of seeds, one seed, or a list of them; `None`: those of the settings.
    :param overrides: `key=value` settings that override the file.
    :param progress: false shows nothing in any case.
    :raises ConfigurationError: one line, if something can't be used; nothing was begun.
    :raises RunStopped: if it ended early; the same call resumes it.

    Example::

        synthesize(seeds=["Explore the harbour"], overrides=["output_dir=my_output"])
    """
    run_sync(asynthesize, config_path=config_path, seeds=seeds, overrides=overrides, progress=progress)


async def asynthesize(
    *,
    config_path: str | PathLike[str] | None = None,
    seeds: Seeds | None = None,
    overrides: Iterable[str] = (),
    progress: bool = True,
) -> Report:
    """Grow trees from seeds, write question-answer pairs and return the report on them. See `synthesize`.

    Example::

        report = await asynthesize(config_path="config.yaml")
    """
    return await SynthesisPipeline(load_config(config_path, overrides)).arun(seeds, progress=progress)
