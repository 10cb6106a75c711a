"""Train the planner on the exact tokens that it sampled.

`train(config_path=…)` runs the whole loop: rollout, step, weight update of the engine. The subpackages contain the
losses, prefix packing, the backbones, trackers and training data. Only those that compute import torch.
See docs/training.md.
"""

from typing import TYPE_CHECKING

from agentflow.learner._groups import Sample, sample_of_calls
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.learner._backbone import Backbone
    from agentflow.learner._checkpoints import Checkpoints
    from agentflow.learner._config import (
        FROZEN,
        JUDGE,
        POLICY,
        EvidenceSettings,
        TrainConfig,
        load_train_config,
    )
    from agentflow.learner._debug import debug_counts, models_at_engine, report_step
    from agentflow.learner._engine import claimed_engine
    from agentflow.learner._episode_runner import open_episode_runner, open_sandbox_pool
    from agentflow.learner._flywheel import FlywheelRun, FlywheelStatus
    from agentflow.learner._group_rollout import PolicyRollout, external_failure
    from agentflow.learner._groups import (
        ANSWER_SCORE,
        EVIDENCE,
        Batch,
        EpisodeResult,
        FailureCause,
        Group,
        TaskDraw,
    )
    from agentflow.learner._progress import TrainOutcome, TrainStatus
    from agentflow.learner._rounds import (
        ROUNDS,
        FlywheelResult,
        FlywheelRound,
        guidance,
        questions_of_round,
        read_rounds,
        steps_of_pairs,
    )
    from agentflow.learner._run import Reward, TrainRun, atrain, train
    from agentflow.learner._sources import TaskOrder
    from agentflow.learner._team_rollouts import RolloutContext, RolloutFactory, TeamRollouts
    from agentflow.learner._token_page import EpisodeTokens, RunTokens, episodes_page
    from agentflow.learner._trial import TrialResult, try_training
    from agentflow.learner.packing import Row

__all__ = [
    "ANSWER_SCORE",
    "EVIDENCE",
    "FROZEN",
    "JUDGE",
    "POLICY",
    "ROUNDS",
    "Backbone",
    "Batch",
    "Checkpoints",
    "EpisodeResult",
    "EpisodeTokens",
    "EvidenceSettings",
    "FailureCause",
    "FlywheelResult",
    "FlywheelRound",
    "FlywheelRun",
    "FlywheelStatus",
    "Group",
    "PolicyRollout",
    "Reward",
    "RolloutContext",
    "RolloutFactory",
    "Row",
    "RunTokens",
    "Sample",
    "TaskDraw",
    "TaskOrder",
    "TeamRollouts",
    "TrainConfig",
    "TrainOutcome",
    "TrainRun",
    "TrainStatus",
    "TrialResult",
    "atrain",
    "claimed_engine",
    "debug_counts",
    "episodes_page",
    "external_failure",
    "guidance",
    "load_train_config",
    "models_at_engine",
    "open_episode_runner",
    "open_sandbox_pool",
    "questions_of_round",
    "read_rounds",
    "report_step",
    "sample_of_calls",
    "steps_of_pairs",
    "train",
    "try_training",
]


# Settings and rows import neither rollouts nor servers.
__getattr__ = lazy_exports(
    __name__,
    {
        "._backbone": ["Backbone"],
        "._checkpoints": ["Checkpoints"],
        "._config": ["FROZEN", "JUDGE", "POLICY", "EvidenceSettings", "TrainConfig", "load_train_config"],
        "._debug": ["debug_counts", "models_at_engine", "report_step"],
        "._engine": ["claimed_engine"],
        "._episode_runner": ["open_episode_runner", "open_sandbox_pool"],
        "._flywheel": ["FlywheelRun", "FlywheelStatus"],
        "._group_rollout": ["PolicyRollout", "external_failure"],
        "._groups": [
            "ANSWER_SCORE",
            "EVIDENCE",
            "Batch",
            "EpisodeResult",
            "FailureCause",
            "Group",
            "TaskDraw",
        ],
        "._progress": ["TrainOutcome", "TrainStatus"],
        "._token_page": ["EpisodeTokens", "RunTokens", "episodes_page"],
        ".packing": ["Row"],
        "._rounds": [
            "ROUNDS",
            "FlywheelResult",
            "FlywheelRound",
            "guidance",
            "questions_of_round",
            "read_rounds",
            "steps_of_pairs",
        ],
        "._run": ["Reward", "TrainRun", "atrain", "train"],
        "._sources": ["TaskOrder"],
        "._trial": ["TrialResult", "try_training"],
        "._team_rollouts": ["RolloutContext", "RolloutFactory", "TeamRollouts"],
    },
)
