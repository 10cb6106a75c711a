"""The seeds that a run begins with."""

from pathlib import Path

from agentflow.errors import ConfigurationError
from agentflow.journal import NewSeed
from agentflow.runs import explores_bundled_corpus
from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._seeds import load_seeds

__all__ = ["new_seeds", "seeds_for"]

BUNDLED = Path(__file__).parent / "_bundled" / "seeds.jsonl"
"""Where to begin in the corpus that comes along."""


def new_seeds(seeds: object) -> list[NewSeed]:
    """Seeds in any form in which they may be given, for the journal.

    :raises ConfigurationError: one line, if one can't be used.
    """
    loaded = load_seeds(seeds)  # pyright: ignore[reportArgumentType] - whatever it is, it says what is wrong with it
    return [NewSeed(seed["content"], seed["kwargs"], seed.get("id")) for seed in loaded]


def seeds_for(config: SynthesisConfig) -> list[NewSeed]:
    """The seeds that the settings name, as many as they want.

    :raises ConfigurationError: if they name none, or one can't be used.
    """
    file = Path(config.seeds_file) if config.seeds_file else BUNDLED
    if not config.seeds_file and not explores_bundled_corpus(config):
        raise ConfigurationError(
            "seeds_file: nothing says what to start from; name a JSONL file, or pass seeds"
        )
    seeds = new_seeds(file)[: config.number_of_seed]
    if not seeds:
        raise ConfigurationError(f"seeds_file: {file} has no seed; add a line, or raise number_of_seed")
    return seeds
