"""Task and outcome of a workflow, with AgentJet's fields."""

from typing import Any

from pydantic import BaseModel, Field


class AgentJetTask(BaseModel):
    """A task as AgentJet's workflows see it."""

    main_query: str = ""
    """Question."""
    init_messages: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """Conversation to start with: of the task or its environment, else the question."""
    task_id: str = ""
    """Id."""
    env_type: str = ""
    """Type of its environment."""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Other fields of its file, and `answer`: its first reference."""


class WorkflowTask(BaseModel):
    """An episode as AgentJet's workflows see it."""

    env_type: str = ""
    """Type of the environment."""
    task_id: str = ""
    """Id of the task."""
    episode_uuid: str = ""
    """Id of the episode."""
    task: AgentJetTask = AgentJetTask()
    """Task."""
    gym_env: Any = None
    """Environment with `step`, `evaluate` and `service_url`; `None`: the task has none."""


class WorkflowOutput(BaseModel):
    """Outcome of a workflow, as AgentJet's workflows return it."""

    reward: float | list[float] | None = None
    """Reward; `None`: the judge gives it. A list is refused."""
    is_success: bool | None = None
    """The task was solved; `None`: unknown."""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Values for the judge; `final_answer` is the answer of the episode."""
    log_metrics: dict[str, float | list[float] | dict[str, Any]] = Field(
        default_factory=dict[str, float | list[float] | dict[str, Any]]
    )
    """Figures: a list counts with its mean, a mapping with `/` between names."""
