"""Judges with AgentJet's interface."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentflow.errors import ConfigurationError
from agentflow.settings import read_environment
from agentflow.tuner.agentjet._records import WorkflowOutput, WorkflowTask

_DASHSCOPE = "https://dashscope.aliyuncs.com/compatible-mode/v1"


class BaseJudge:
    """Base of AgentJet's judges. See docs/migrating-tuner.md."""

    def __init__(self, config: Any) -> None:  # noqa: ANN401 - settings of any file, by attribute
        """:param config: settings of the file, by attribute."""
        self.config = config

    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool | None]:
        """Return the reward, and whether the task was solved. See docs/migrating-tuner.md."""
        raise NotImplementedError


class EnvServiceJudge(BaseJudge):
    """Judge that takes the reward of the environment service as it is; 1 or more is a success."""

    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool | None]:
        """Return the service's reward. See docs/migrating-tuner.md.

        :raises ConfigurationError: if the tasks have no environment.
        """
        if workflow_task.gym_env is None:
            raise ConfigurationError(
                "task_judge.judge_protocol: the tasks have no environment; name a judge of answers"
            )
        reward = workflow_task.gym_env.evaluate()
        return reward, reward >= 1


def create_external_llm_fn(
    alien_llm_model: str, alien_llm_response_length: int
) -> Callable[..., dict[str, str]]:
    """Return a function that asks a model of DashScope: `ask(messages=[…])["content"]`.

    The key is in `DASHSCOPE_API_KEY`; `DASHSCOPE_BASE_URL` names another address. See docs/migrating-tuner.md.
    """
    from openai import OpenAI

    def ask(
        messages: Sequence[Mapping[str, str]], sampling_params_override: Mapping[str, Any] | None = None
    ) -> dict[str, str]:
        environment = read_environment()
        key = environment.get("DASHSCOPE_API_KEY", "")
        if not key:
            raise ConfigurationError(f"model {alien_llm_model}: there is no key; set DASHSCOPE_API_KEY")
        with OpenAI(api_key=key, base_url=environment.get("DASHSCOPE_BASE_URL") or _DASHSCOPE) as client:
            options = {"temperature": 0.0, "max_tokens": alien_llm_response_length}
            given: Any = {**options, **(sampling_params_override or {}), "messages": list(messages)}
            create: Any = client.chat.completions.create
            message = create(model=alien_llm_model, **given).choices[0].message
        return {"role": message.role, "content": message.content or ""}

    return ask
