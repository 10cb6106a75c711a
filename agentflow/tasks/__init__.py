"""Verified tasks: derived from grown trees, each with its initial state, a solution, and a verifier.

A task is data. Its verifier reads the state or the answer outside the agent's session, and a task is kept only if its
solution passes while the initial state, an attempt without effect and every known mistake fail, twice each. See
docs/tasks.md.
"""

from agentflow.tasks._contract import (
    GOLD,
    INITIAL,
    NO_OP,
    DerivedTasks,
    RejectedTask,
    TaskAttempt,
    TaskCheck,
    TaskFinding,
    TaskKind,
    TaskPredicate,
    TaskProblem,
    TaskRelation,
    TaskSetup,
    TaskTrial,
    TaskVerifier,
    VerifiableTask,
    check_task,
    relation_holds,
    task_id,
)
from agentflow.tasks._data_analysis import DataAnalysis, open_data_analysis
from agentflow.tasks._derivation import DerivationSettings, TaskAuthor, TaskRoles
from agentflow.tasks._desktop import DesktopState
from agentflow.tasks._document_pictures import DocumentPictures, PictureRoles, check_images
from agentflow.tasks._household import HouseholdState
from agentflow.tasks._instructions import InstructionAuthor, InstructionSettings
from agentflow.tasks._state_tasks import StateTasks, StateTaskSettings
from agentflow.tasks._states import State, StateCondition, StateReader
from agentflow.tasks._task_verification import (
    STATE_KINDS,
    StateKind,
    TaskVerifiers,
    check_state_tools,
    hidden_settings,
    open_task_verifiers,
    rollout_task,
    scored_verdict,
    verifiable_task,
)
from agentflow.tasks._terminal import TerminalState
from agentflow.tasks._text2sql import Text2Sql, open_text2sql
from agentflow.trace import TaskVerdict

__all__ = [
    "GOLD",
    "INITIAL",
    "NO_OP",
    "STATE_KINDS",
    "DataAnalysis",
    "DerivationSettings",
    "DerivedTasks",
    "DesktopState",
    "DocumentPictures",
    "HouseholdState",
    "InstructionAuthor",
    "InstructionSettings",
    "PictureRoles",
    "RejectedTask",
    "State",
    "StateCondition",
    "StateKind",
    "StateReader",
    "StateTaskSettings",
    "StateTasks",
    "TaskAttempt",
    "TaskAuthor",
    "TaskCheck",
    "TaskFinding",
    "TaskKind",
    "TaskPredicate",
    "TaskProblem",
    "TaskRelation",
    "TaskRoles",
    "TaskSetup",
    "TaskTrial",
    "TaskVerdict",
    "TaskVerifier",
    "TaskVerifiers",
    "TerminalState",
    "Text2Sql",
    "VerifiableTask",
    "check_images",
    "check_state_tools",
    "check_task",
    "hidden_settings",
    "open_data_analysis",
    "open_task_verifiers",
    "open_text2sql",
    "relation_holds",
    "rollout_task",
    "scored_verdict",
    "task_id",
    "verifiable_task",
]
