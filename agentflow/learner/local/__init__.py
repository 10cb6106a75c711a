"""The local backbone: trains a causal model of transformers with torch, on one device or several. See docs/backbones.md."""

from agentflow.learner._policy import LoraSettings, OptimizerSettings, PolicySettings
from agentflow.learner.local._backbone import LocalBackbone
from agentflow.learner.local._fine_tune import (
    FineTuned,
    FineTuneSettings,
    Lesson,
    fine_tune,
    lesson_rows,
    lessons_of,
    mean_loss,
)
from agentflow.learner.local._model import merge_adapters

__all__ = [
    "FineTuneSettings",
    "FineTuned",
    "Lesson",
    "LocalBackbone",
    "LoraSettings",
    "OptimizerSettings",
    "PolicySettings",
    "fine_tune",
    "lesson_rows",
    "lessons_of",
    "mean_loss",
    "merge_adapters",
]
