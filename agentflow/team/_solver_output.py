"""What a solver gives: an episode under the documented names."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from agentflow.models import Call, Completion, Message, Model, Text
from agentflow.team._rendering import called
from agentflow.trajectory import Episode, Turn

__all__ = ["Heard", "Output", "result_of"]

T = TypeVar("T")

Output: TypeAlias = Literal["base", "final", "direct"]

_PROMPTED = {"planner": "action_predictor", "executor": "tool_commander", "verifier": "verifier"}


class Heard:
    """A model that keeps what it was asked, by role and in order."""

    def __init__(self, model: Model, heard: dict[str, list[str]]) -> None:
        self._model = model
        self._heard = heard

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def vision(self) -> bool:
        return self._model.vision

    async def complete(self, call: Call[T]) -> Completion[T]:
        said = (f"[{message.role}]\n{_text(message)}" for message in call.messages)
        self._heard.setdefault(call.role, []).append("\n\n".join(said))
        return await self._model.complete(call)


def result_of(
    episode: Episode, outputs: Sequence[Output], heard: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """The documented keys.

    :param heard: what each role was shown, in order.
    """
    analysis = episode.analysis
    said: dict[str, Any] = {
        "query_analysis": {}
        if analysis is None
        else {name: getattr(analysis, name) for name in analysis.__struct_fields__},
        "memory": {f"Action Step {turn.number}": _remembered(turn) for turn in episode.turns},
        "step_count": len(episode.turns),
        "execution_time": round(episode.seconds, 3),
        "ending": str(episode.ending),
        "failure": None if episode.failure is None else episode.failure.message,
    }
    for turn in episode.turns:
        decision = turn.decision
        said[f"action_predictor_{turn.number}_response"] = {
            name: getattr(turn.step, name) for name in turn.step.__struct_fields__
        }
        said[f"tool_commander_{turn.number}_response"] = "" if turn.action is None else called(turn.action)
        said[f"tool_result_{turn.number}"] = turn.result
        said[f"verifier_{turn.number}_response"] = None if decision is None else decision.analysis
    if "final" in outputs:
        said["final_output"] = "" if episode.solution is None else episode.solution.working
    if "direct" in outputs:
        said["direct_output"] = episode.answer
    return {**said, **_prompts(episode, heard)}


def _prompts(episode: Episode, heard: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What the roles were shown in each turn; of calls that were written again the last one."""
    found: dict[str, str] = {}
    for role, name in _PROMPTED.items():
        asked = [exchange.key for exchange in episode.exchanges if exchange.role == role]
        for key, shown in zip(asked, heard.get(role, ()), strict=False):
            found[f"{name}_{key.partition('/')[0]}_prompt"] = shown
    return found


def _text(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, Text))


def _remembered(turn: Turn) -> dict[str, object]:
    return {
        "tool_name": turn.step.tool_name,
        "sub_goal": turn.step.sub_goal,
        "command": {} if turn.action is None else turn.action.arguments,
        "result": turn.result,
    }
