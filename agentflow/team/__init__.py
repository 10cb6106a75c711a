"""The team: planner, executor, verifier and generator, as supervised actors.

Each takes a typed request and gives a typed answer. What may go wrong with a model or a tool is data in the answer;
only `RunStopped` is raised.
"""

from agentflow.team._asking import ReadBlob
from agentflow.team._cards import card_of, fixed_arguments
from agentflow.team._executor import Executors, PutBlob
from agentflow.team._generator import Generators
from agentflow.team._ledger import Through
from agentflow.team._model_tools import model_tools
from agentflow.team._planner import Planners
from agentflow.team._prompts import prompt_versions
from agentflow.team._rules import judge_by_rule
from agentflow.team._settings import EpisodeSettings
from agentflow.team._single import solve_alone
from agentflow.team._solver import Solver, construct_solver
from agentflow.team._solving import solve_task
from agentflow.team._team import Team
from agentflow.team._verifier import Verifiers, Verify

__all__ = [
    "EpisodeSettings",
    "Executors",
    "Generators",
    "Planners",
    "PutBlob",
    "ReadBlob",
    "Solver",
    "Team",
    "Through",
    "Verifiers",
    "Verify",
    "card_of",
    "construct_solver",
    "fixed_arguments",
    "judge_by_rule",
    "model_tools",
    "prompt_versions",
    "solve_alone",
    "solve_task",
]
