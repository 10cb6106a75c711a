"""One call for everything."""

from collections.abc import Iterable
from os import PathLike

from agentflow.synthesis._config import SynthesisConfig, load_config
from agentflow.synthesis._report import Report
from agentflow.synthesis._seeds import load_seeds
from agentflow.synthesis.pipeline import Seeds, SynthesisPipeline

__all__ = ["SynthesisConfig", "asynthesize", "load_config", "load_seeds", "synthesize"]


def synthesize(
    *,
    config_path: str | PathLike[str] | None = None,
    seeds: Seeds | None = None,
    overrides: Iterable[str] = (),
) -> None:
    """Grow trees from seeds and write question-answer pairs, as the settings say. The same again goes on or finds nothing to do.

    :param config_path: a file of settings, JSON or YAML.
    :param seeds: a file of seeds, a seed, or a list of them; `None`: those of the settings.
    :param overrides: `key=value` words over the file.
    :raises ConfigurationError: if something can't be used, in one line; nothing was begun.
    :raises RunStopped: if it ended early; the same again goes on.
    """
    SynthesisPipeline(_config(config_path, overrides)).run(seeds)


async def asynthesize(
    *,
    config_path: str | PathLike[str] | None = None,
    seeds: Seeds | None = None,
    overrides: Iterable[str] = (),
) -> Report:
    """`synthesize` for code that awaits; gives the report."""
    return await SynthesisPipeline(_config(config_path, overrides)).arun(seeds)


def _config(path: str | PathLike[str] | None, overrides: Iterable[str]) -> SynthesisConfig:
    return load_config(None if path is None else str(path), overrides)
