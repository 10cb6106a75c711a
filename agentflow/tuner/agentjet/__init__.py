"""AgentJet's workflows, judges and settings files, as parts of a tuning. See docs/migrating-tuner.md.

After `import agentflow.compat` these names are also those of `ajet` and its modules, so that files written for AgentJet load
unchanged.
"""

from agentflow.tuner.agentjet._judges import BaseJudge, EnvServiceJudge, create_external_llm_fn
from agentflow.tuner.agentjet._records import AgentJetTask as Task
from agentflow.tuner.agentjet._records import (
    WorkflowOutput,
    WorkflowTask,
    dataset_tasks,
    dummy_tasks,
    jsonl_tasks,
)
from agentflow.tuner.agentjet._settings import convert_settings
from agentflow.tuner.agentjet._workflow import AjetTuner, GatewayAccess, Workflow, workflow_agent

__all__ = [
    "AjetTuner",
    "BaseJudge",
    "EnvServiceJudge",
    "GatewayAccess",
    "Task",
    "Workflow",
    "WorkflowOutput",
    "WorkflowTask",
    "convert_settings",
    "create_external_llm_fn",
    "dataset_tasks",
    "dummy_tasks",
    "jsonl_tasks",
    "workflow_agent",
]
