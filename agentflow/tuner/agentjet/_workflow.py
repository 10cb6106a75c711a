"""AgentJet's workflow classes as agents of a tuning: each episode has a thread and an event loop of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from msgspec import Struct
from pydantic import BaseModel, ConfigDict

from agentflow._typeguards import is_list, is_mapping, is_object
from agentflow.errors import ConfigurationError
from agentflow.gateway import EpisodeOutcome
from agentflow.readers import EnvironmentService, EnvironmentState
from agentflow.runs import run_sync
from agentflow.settings import import_object
from agentflow.trace import Task
from agentflow.tuner._config import AGENTJET
from agentflow.tuner._workflow import PolicyEndpoint
from agentflow.tuner.agentjet._judges import BaseJudge
from agentflow.tuner.agentjet._records import AgentJetTask, WorkflowOutput, WorkflowTask
from agentflow.tuner.agentjet._settings import FileSettings, with_defaults

if TYPE_CHECKING:
    from openai import AsyncOpenAI

T = TypeVar("T")
_ENVIRONMENT: Final = "environment"
"""Field of a task with its environment."""


class GatewayAccess(Struct, frozen=True):
    """Address and key of an episode."""

    base_url: str
    """Address for OpenAI clients; ends with `/v1`."""
    api_key: str
    """Key of the agent in this episode."""
    model: str
    """Name of the model."""


class ContextTracker(Struct, frozen=True):
    """State of an episode's conversations."""

    context_overflow: bool = False
    """Always false: a prompt that is too long is an error of its call."""


class AjetTuner:
    """The model of an episode in the forms that AgentJet's workflows ask for. See docs/migrating-tuner.md."""

    def __init__(self, config: FileSettings, policy: PolicyEndpoint, targets: list[str] | None) -> None:
        """:param targets: tags of trained agents; none: all."""
        self.config = config
        """Settings of the file, by attribute."""
        self._policy = policy
        self._targets = targets or []
        self._clients: list[AsyncOpenAI] = []

    def as_oai_baseurl_apikey(
        self, agent_name: str = "default_agent_name", target_tag: str = "default_target_tag"
    ) -> GatewayAccess:
        """Return the address and the key of the trained model. See docs/migrating-tuner.md.

        :raises ConfigurationError: if that agent is not trained.
        """
        if not self._trains(target_tag):
            raise ConfigurationError(
                f"{agent_name}: {target_tag} is not in trainable_targets; call its own model, or add it"
            )
        return GatewayAccess(self._policy.base_url, self._policy.api_key, self._policy.model)

    def as_raw_openai_sdk_client(
        self,
        agent_name: str = "default_agent_name",
        target_tag: str = "default_target_tag",
        debug_model: str | None = "gpt-4o",
    ) -> "AsyncOpenAI":
        """Return a client of OpenAI's SDK whose model is the trained one, or `debug_model`. See docs/migrating-tuner.md."""
        from openai import AsyncOpenAI

        if not self._trains(target_tag) and debug_model:
            client, model = AsyncOpenAI(), debug_model
        else:
            client = AsyncOpenAI(base_url=self._policy.base_url, api_key=self._policy.api_key)
            model = self._policy.model
        self._clients.append(client)
        completions: Any = client.chat.completions
        completions.create = partial(completions.create, model=model, max_tokens=self._max_tokens)
        return client

    def as_agentscope_model(
        self,
        agent_name: str = "default_agent_name",
        target_tag: str = "default_target_tag",
        debug_model: object = None,
    ) -> Any:  # noqa: ANN401 - a class of AgentScope
        """Return a chat model of the installed AgentScope, 1.x or 2.x: the trained one, or `debug_model`.

        See docs/migrating-tuner.md.

        :raises ConfigurationError: if AgentScope is not installed.
        """
        if not self._trains(target_tag) and debug_model is not None:
            return debug_model
        if find_spec("agentscope") is None:
            raise ConfigurationError("as_agentscope_model: AgentScope is missing; pip install agentscope")
        return (_model_of_2 if find_spec("agentscope.credential") else _model_of_1)(
            self._policy, self._max_tokens
        )

    def get_context_tracker(self) -> ContextTracker:
        """Return the state of the conversations. See docs/migrating-tuner.md."""
        return ContextTracker()

    async def close(self) -> None:
        """Close the clients. See docs/migrating-tuner.md."""
        for client in self._clients:
            await client.close()

    @property
    def _max_tokens(self) -> int:
        return self.config.ajet.rollout.max_response_length_in_one_turn

    def _trains(self, target: str) -> bool:
        return not self._targets or target in self._targets


def _model_of_2(policy: PolicyEndpoint, max_tokens: int) -> object:
    credentials: Any = import_module("agentscope.credential")
    kind: Any = import_module("agentscope.model").OpenAIChatModel
    credential = credentials.OpenAICredential(api_key=policy.api_key, base_url=policy.base_url)
    return kind(credential, policy.model, kind.Parameters(max_tokens=max_tokens), stream=False)


def _model_of_1(policy: PolicyEndpoint, max_tokens: int) -> object:
    base: Any = import_module("agentscope.model").OpenAIChatModel

    class PolicyChatModel(base):
        """Chat model that also takes messages of DashScope's formatters, whose parts have no type."""

        async def __call__(self, messages: list[dict[str, Any]], *rest: Any, **options: Any) -> Any:  # noqa: ANN401
            answer: Any = super()
            return await answer.__call__([_typed(message) for message in messages], *rest, **options)

    return PolicyChatModel(
        policy.model,
        api_key=policy.api_key,
        stream=False,
        client_args={"base_url": policy.base_url},
        generate_kwargs={"max_tokens": max_tokens},
    )


def _typed(message: Mapping[str, Any]) -> dict[str, Any]:
    parts = message.get("content")
    if not is_list(parts):
        return dict(message)
    typed = [
        {"type": "text", **part} if is_object(part) and "type" not in part and "text" in part else part
        for part in parts
    ]
    return {**message, "content": typed}


class Workflow(BaseModel):
    """Base of AgentJet's workflows. See docs/migrating-tuner.md."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    name: str = "default_workflow"
    """Name."""
    trainable_targets: list[str] | None = None
    """Tags of trained agents; none: all."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        """Play an episode. See docs/migrating-tuner.md."""
        raise NotImplementedError


class GymEnvironment:
    """Environment of an episode, with blocking calls."""

    def __init__(self, url: str) -> None:
        self.service_url = url
        """Address of its service."""
        self._instance = ""

    def step(self, action: Mapping[str, Any]) -> tuple[object, float, bool, dict[str, Any]]:
        """Send a message; return observation, reward, whether the task has ended, and further facts."""
        content: object = action.get("content")
        if is_list(content):
            texts = [str(part.get("text", "")) for part in content if is_object(part)]
            action = {**action, "content": "".join(texts)}
        state = self._ask(lambda service: service.step(self._instance, action))
        return _observation(state), state.reward, state.done, state.info

    def evaluate(self, episode_uuid: str = "", params: Mapping[str, Any] | None = None) -> float:
        """Return the reward."""
        return self._ask(lambda service: service.evaluate(self._instance, params=params))

    def create(self, env_type: str, task_id: str) -> EnvironmentState:
        """Create the environment; return its first observation."""
        self._instance, state = self._ask(lambda service: service.create(env_type, task_id))
        return state

    def release(self) -> None:
        """End the environment."""
        self._ask(lambda service: service.release(self._instance))

    def _ask(self, work: Callable[[EnvironmentService], Awaitable[T]]) -> T:
        async def ask() -> T:
            async with EnvironmentService(self.service_url) as service:
                return await work(service)

        return run_sync(ask)


def _observation(state: EnvironmentState) -> object:
    """Return the text of a single message, and several messages as they are."""
    return state.text if len(state.messages) == 1 else list(state.messages)


def workflow_agent(
    reference: str, settings: Mapping[str, Any] | None = None
) -> Callable[[Task, PolicyEndpoint], EpisodeOutcome]:
    """Return the agent of a workflow class: `module->Class` or `file.py->Class`.

    Example::

        swarm.work(workflow_agent("math_agent.py->MathWorkflow"))

    :param settings: content of AgentJet's file; `None`: its defaults.
    :raises ConfigurationError: if there is no such class, or its judge can't be used; one line.
    """
    if find_spec(AGENTJET) is None:
        raise ConfigurationError(
            f"{reference}: the names of AgentJet are missing; run ajet --conf FILE, or import agentflow.compat first"
        )
    config = with_defaults(settings or {})
    workflow = _imported("rollout.user_workflow", reference, "execute")
    protocol = config.ajet.task_judge.judge_protocol
    custom = config.ajet.task_judge.judge_type == "customized_protocol"
    judge = (
        _imported("task_judge.judge_protocol", protocol, "compute_reward")(config)
        if protocol and custom
        else None
    )
    return _WorkflowAgent(workflow, judge, config)


def _imported(key: str, reference: str, method: str) -> Any:  # noqa: ANN401 - a class of the user
    module, arrow, name = reference.partition("->")
    try:
        found = import_object(f"{module.strip()}:{name.strip()}" if arrow else reference)
    except ConfigurationError as error:
        raise ConfigurationError(f"{key}: {error}") from None
    if not isinstance(found, type) or not hasattr(found, method):
        raise ConfigurationError(f"{key}: {reference} is no class with {method}; write module->Class")
    return found


class _WorkflowAgent:
    """Plays a workflow; blocking code is fine, because each episode has a thread of its own."""

    def __init__(self, workflow: type[Workflow], judge: BaseJudge | None, config: FileSettings) -> None:
        self._workflow = workflow
        self._judge = judge
        self._config = config

    def __call__(self, task: Task, policy: PolicyEndpoint) -> EpisodeOutcome:
        workflow = self._workflow(name="ajet-workflow")
        tuner = AjetTuner(self._config, policy, workflow.trainable_targets)
        episode = _episode_of(task, policy)
        environment = self._environment(task, episode)

        async def execute() -> object:
            try:
                return await workflow.execute(episode, tuner)
            finally:
                await tuner.close()

        try:
            return self._outcome(episode, asyncio.run(execute()))
        finally:
            if environment is not None:
                environment.release()

    def _environment(self, task: Task, episode: WorkflowTask) -> GymEnvironment | None:
        origin: object = task.metadata.get(_ENVIRONMENT)
        if not is_object(origin):
            return None
        url = self._config.ajet.task_reader.env_service.env_url
        environment = GymEnvironment(url)
        state = environment.create(str(origin["env_type"]), str(origin["task_id"]))
        episode.task.init_messages = list(state.messages)
        episode.task.main_query = str(state.messages[-1].get("content", "")) if state.messages else ""
        episode.gym_env = environment
        return environment

    def _outcome(self, episode: WorkflowTask, output: object) -> EpisodeOutcome:
        if not isinstance(output, WorkflowOutput):
            kind = type(output).__name__
            return EpisodeOutcome(failure=f"the workflow returned {kind}; return a WorkflowOutput")
        reward, success = output.reward, output.is_success
        if reward is None and self._judge is not None:
            reward, success = self._judge.compute_reward(episode, output)
        if isinstance(reward, list):
            return EpisodeOutcome(failure="the reward is a list; return one number")
        answer = output.metadata.get("final_answer")
        return EpisodeOutcome(
            reward=reward,
            answer=None if answer is None else str(answer),
            success=None if success is None else bool(success),
            metrics=dict(_figures(output.log_metrics)),
        )


def _episode_of(task: Task, policy: PolicyEndpoint) -> WorkflowTask:
    answer = {"answer": task.references[0]} if task.references else {}
    metadata = {"question": task.question, **answer, **task.metadata}
    env_type = str(metadata.get("env_type", "no_env"))
    messages: object = metadata.get("init_messages")
    own = AgentJetTask(
        main_query=task.question,
        init_messages=messages
        if is_list(messages) and messages
        else [{"role": "user", "content": task.question}],
        task_id=task.id,
        env_type=env_type,
        metadata=metadata,
    )
    return WorkflowTask(env_type=env_type, task_id=task.id, episode_uuid=policy.episode, task=own)


def _figures(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if is_mapping(value):
            yield from _figures(value, f"{prefix}{name}/")
        elif is_list(value) and value:
            yield f"{prefix}{name}", fmean(value)
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", float(value)
