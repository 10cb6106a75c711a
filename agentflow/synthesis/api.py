"""Whole syntheses with one call, under the name of another package; see docs/migrating-data-synthesis.md."""

from agentflow.synthesis._config import SynthesisConfig, load_config
from agentflow.synthesis._seeds import load_seeds
from agentflow.synthesis.pipeline import asynthesize, synthesize

__all__ = ["SynthesisConfig", "asynthesize", "load_config", "load_seeds", "synthesize"]
