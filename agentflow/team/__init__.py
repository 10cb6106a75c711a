"""Team of supervised actors: planner, executor, verifier, generator and reader; and a single agent.

Each role takes typed requests and returns typed replies. Failures of models and tools are data in the reply; only
`RunStopped` is raised. See docs/team.md.
"""

from agentflow.team._executor import Executor, PutBlob, call_tool
from agentflow.team._generator import Generator
from agentflow.team._ledger import EpisodeSettings, Prepare, TimedResult
from agentflow.team._messages import plan_messages
from agentflow.team._model_calls import ReadBlob
from agentflow.team._model_tools import model_tools
from agentflow.team._observations import ObservationLimits, path_memory, result_text
from agentflow.team._planner import Planner
from agentflow.team._pool import EffectGate
from agentflow.team._reader import Reader
from agentflow.team._rendering import prompt_versions
from agentflow.team._rules import judge_by_rule
from agentflow.team._schemas import card_of, fixed_arguments, fixed_names, role_schema
from agentflow.team._single import AgentAnswer, ToolAgent
from agentflow.team._solver import Solver, construct_solver
from agentflow.team._solving import EpisodeAgent, TeamAgent, bind_action
from agentflow.team._team import Team
from agentflow.team._verifier import Verifier, Verify

__all__ = [
    "AgentAnswer",
    "EffectGate",
    "EpisodeAgent",
    "EpisodeSettings",
    "Executor",
    "Generator",
    "ObservationLimits",
    "Planner",
    "Prepare",
    "PutBlob",
    "ReadBlob",
    "Reader",
    "Solver",
    "Team",
    "TeamAgent",
    "TimedResult",
    "ToolAgent",
    "Verifier",
    "Verify",
    "bind_action",
    "call_tool",
    "card_of",
    "construct_solver",
    "fixed_arguments",
    "fixed_names",
    "judge_by_rule",
    "model_tools",
    "path_memory",
    "plan_messages",
    "prompt_versions",
    "result_text",
    "role_schema",
]
