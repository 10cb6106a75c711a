"""Agents that play environments of other frameworks, for `tune(solve, …)`."""

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from openai import AsyncOpenAI, OpenAIError

from agentflow._decoding import JsonError, decode_json
from agentflow._typeguards import is_list, is_object
from agentflow.errors import AgentFlowError, error_line
from agentflow.gateway import EpisodeOutcome
from agentflow.readers import OpenEnvClient, OpenEnvFailure, OpenEnvStep, open_openenv, play_verifiers
from agentflow.trace import Task

_MAX_STEPS: Final = 100


class PolicyAddress(Protocol):
    """Address of the policy for one episode."""

    @property
    def base_url(self) -> str:
        """Base URL of the APIs."""
        ...

    @property
    def api_key(self) -> str:
        """Key of the episode."""
        ...

    @property
    def model(self) -> str:
        """Name of the model."""
        ...


class ActionFailure(AgentFlowError):
    """A model's text is no action of an environment. One line."""


def action_of(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action that a model wrote: a JSON object, also in a code fence, or the value of the only required field.

    >>> action_of("left", {"required": ["move"]})
    {'move': 'left'}

    :raises ActionFailure: if it is neither.
    """
    text = text.strip()
    if text.startswith("```") and text.endswith("```"):
        text = "\n".join(text.splitlines()[1:-1]).strip()
    try:
        decoded: object = decode_json(text)
    except JsonError:
        decoded = text
    if is_object(decoded):
        return decoded
    required: object = schema.get("required")
    if is_list(required) and len(required) == 1:
        return {str(required[0]): decoded}
    raise ActionFailure(f"the answer is no JSON object with an action: {text[:200]!r}")


async def solve_openenv(task: Task, policy: PolicyAddress) -> EpisodeOutcome:
    """Play an episode of an OpenEnv environment with the policy; the reward is the sum of the rewards of its steps.

    Tools that the first observation lists are called natively; other environments get actions as JSON. An answer that is no
    action ends the episode. See docs/interop.md.

    :raises OpenEnvFailure: if the environment can't be reached, or fails.
    """
    reset = task.metadata["openenv"]["reset"]
    async with (
        open_openenv(task) as environment,
        AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key, max_retries=2) as model,
    ):
        first = await environment.reset(**reset)
        tools = first.observation.get("tools")
        player = _ToolPlayer(tools) if is_list(tools) and tools else _TextPlayer(await environment.schema())
        return await _play(player, environment, first, model, policy.model)


async def solve_verifiers(task: Task, policy: PolicyAddress) -> EpisodeOutcome:
    """Play an episode of a verifiers environment with the policy; its rewards are the environment's.

    An episode that failed there is a failure here, not a reward of 0. See docs/interop.md.

    :raises VerifiersFailure: if it can't be played.
    """
    episode = await play_verifiers(task, base_url=policy.base_url, api_key=policy.api_key, model=policy.model)
    failure = "" if episode["ok"] else "; ".join(episode["errors"])[:500] or "the episode failed"
    return EpisodeOutcome(
        reward=float(episode["reward"]) if episode["ok"] else None,
        answer=episode["answer"],
        metrics={**episode["metrics"], "turns": float(episode["turns"])},
        failure=failure,
    )


class _TextPlayer:
    """A model that writes actions as text."""

    tools: list[Any] | None = None

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    def opening(self, step: OpenEnvStep) -> dict[str, Any]:
        content = {"observation": step.observation, "action_schema": dict(self._schema)}
        return {"role": "user", "content": json.dumps(content, ensure_ascii=False)}

    def actions(self, message: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        return [("", action_of(str(message.get("content") or ""), self._schema))]

    def reply(self, call: str, step: OpenEnvStep) -> dict[str, Any]:
        return {"role": "user", "content": json.dumps({"observation": step.observation}, ensure_ascii=False)}


class _ToolPlayer:
    """A model that calls tools; a text without a call is its answer."""

    def __init__(self, tools: list[Any]) -> None:
        self.tools: list[Any] | None = tools

    def opening(self, step: OpenEnvStep) -> dict[str, Any]:
        return {"role": "user", "content": str(step.observation.get("text", ""))}

    def actions(self, message: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        calls: list[dict[str, Any]] = message.get("tool_calls", [])
        if not calls:
            return [("", {"answer": str(message.get("content") or "")})]
        return [(call["id"], _called(call["function"])) for call in calls]

    def reply(self, call: str, step: OpenEnvStep) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call, "content": str(step.observation.get("text", ""))}


def _called(function: Mapping[str, Any]) -> dict[str, Any]:
    try:
        arguments: object = decode_json(function["arguments"] or "{}")
    except JsonError:
        # The environment says what is wrong with it.
        arguments = {}
    return {"tool": function["name"], "arguments": arguments if is_object(arguments) else {}}


async def _play(
    player: _TextPlayer | _ToolPlayer,
    environment: OpenEnvClient,
    step: OpenEnvStep,
    model: AsyncOpenAI,
    name: str,
) -> EpisodeOutcome:
    messages: list[dict[str, Any]] = [player.opening(step)]
    total, steps, answer = 0.0, 0, ""
    scored = False
    while not step.done and steps < _MAX_STEPS:
        message = await _policy_message(model, name, messages, player.tools)
        messages.append(message)
        answer = str(message.get("content") or "")
        try:
            actions = player.actions(message)
        except ActionFailure as failure:
            return EpisodeOutcome(
                reward=total, answer=answer, metrics={"steps": steps}, failure="" if scored else str(failure)
            )
        for call, action in actions:
            step = await environment.step(action)
            steps += 1
            if step.reward is not None:
                total, scored = total + step.reward, True
            messages.append(player.reply(call, step))
            if step.done:
                break
    if not scored:
        raise OpenEnvFailure(f"openenv:{environment.url}: the episode of {steps} steps has no reward")
    return EpisodeOutcome(reward=total, answer=answer, metrics={"steps": float(steps)})


async def _policy_message(
    model: AsyncOpenAI, name: str, messages: list[dict[str, Any]], tools: list[Any] | None
) -> dict[str, Any]:
    request: dict[str, Any] = {"model": name, "messages": messages}
    if tools:
        request["tools"] = tools
    try:
        create: Any = model.chat.completions.create
        completion: Any = await create(**request)
    except OpenAIError as error:
        raise OpenEnvFailure(f"the policy did not answer: {error_line(error)}") from error
    message = completion.choices[0].message
    reply: dict[str, Any] = {"role": "assistant", "content": message.content or ""}
    if message.tool_calls:
        reply["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    return reply
