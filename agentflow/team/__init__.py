"""Team of supervised actors: planner, executor, verifier, generator and reader; and a single agent.

Each role takes typed requests and returns typed replies. Failures of models and tools are data in the reply; only
`RunStopped` is raised. See docs/team.md.
"""

from agentflow.team._executor import Executor, call_tool
from agentflow.team._generator import Generator
from agentflow.team._messages import plan_messages
from agentflow.team._model_tools import model_tools
from agentflow.team._planner import Planner
from agentflow.team._reader import Reader
from agentflow.team._rendering import ObservationLimits, path_memory, prompt_versions, result_text
from agentflow.team._schemas import role_schema
from agentflow.team._solver import Solver, construct_solver
from agentflow.team._team import ROLES, Team
from agentflow.team._team_agent import TeamAgent
from agentflow.team._tool_agent import AgentAnswer, ToolAgent
from agentflow.team._verifier import Verifier, Verify, judge_by_rule

__all__ = [
    "ROLES",
    "AgentAnswer",
    "Executor",
    "Generator",
    "ObservationLimits",
    "Planner",
    "Reader",
    "Solver",
    "Team",
    "TeamAgent",
    "ToolAgent",
    "Verifier",
    "Verify",
    "call_tool",
    "construct_solver",
    "judge_by_rule",
    "model_tools",
    "path_memory",
    "plan_messages",
    "prompt_versions",
    "result_text",
    "role_schema",
]
