"""The local backbone: a causal model of transformers, trained by torch on this machine, on one device or several."""

from agentflow.learner._policy import LoraSettings, OptimiserSettings, PolicySettings
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

__all__ = [
    "FineTuneSettings",
    "FineTuned",
    "Lesson",
    "LocalBackbone",
    "LoraSettings",
    "OptimiserSettings",
    "PolicySettings",
    "fine_tune",
    "lesson_rows",
    "lessons_of",
    "mean_loss",
]
