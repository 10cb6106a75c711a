"""Documented names of engines, tools and outputs, and their equivalents here."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

from agentflow.models import Call, Completion, Message, Model, TextPart
from agentflow.team._rendering import call_line
from agentflow.trajectory import Episode, Turn

T = TypeVar("T")

SolverOutput: TypeAlias = Literal["base", "final", "direct"]

_PROMPTED = {"planner": "action_predictor", "executor": "tool_commander", "verifier": "verifier"}

DOCUMENTED_TOOLS: Final[Mapping[str, str]] = {
    "Base_Generator_Tool": "base_generator",
    "Generalist_Solution_Generator_Tool": "base_generator",
    "Google_Search_Tool": "web_search",
    "Ground_Google_Search_Tool": "web_search",
    "Python_Code_Generator_Tool": "python_coder",
    "Python_Coder_Tool": "python_coder",
    "Web_RAG_Search_Tool": "web_read",
    "Web_Search_Tool": "web_read",
    "Wikipedia_RAG_Search_Tool": "web_wikipedia",
    "Wikipedia_Search_Tool": "web_wikipedia",
}
"""Documented tool name -> our name."""

USUAL_TOOLS: Final = ("base_generator", "python_coder", "web_search", "web_wikipedia", "web_read")
"""Tools that `all` stands for."""

CORPUS_TOOLS: Final = ("rag_search", "rag_get")
"""Tools that `all` stands for without a model: search and reading in the bundled corpus."""

_DEFAULTS: Final[Mapping[str, str]] = {
    "dashscope": "dashscope/qwen2.5-7b-instruct",
    "gemini": "gemini/gemini-2.5-flash",
    "deepseek": "deepseek/deepseek-chat",
}
"""Provider name -> its default model."""

_PREFIXES: Final[Mapping[str, str]] = {
    "azure-": "azure/",
    "claude-": "anthropic/claude-",
    "dashscope-": "dashscope/",
    "deepseek-": "deepseek/deepseek-",
    "gemini-": "gemini/gemini-",
    "grok-": "xai/grok-",
    "litellm-": "litellm/",
    "ollama-": "ollama/",
    "together-": "together/",
    "vllm-": "vllm/",
}
"""Prefix of a documented model name -> our prefix; the rest of the name is kept."""

_SERVERS: Final = ("litellm-", "ollama-", "together-", "vllm-", "dashscope-", "azure-")
"""Prefixes that name a server and are not part of the model's own name."""


def model_name(engine: str, base_url: str) -> str:
    """Return our name of a documented engine; any other name is returned unchanged."""
    if base_url:
        return next((engine.removeprefix(each) for each in _SERVERS if engine.startswith(each)), engine)
    if engine in _DEFAULTS:
        return _DEFAULTS[engine]
    for before, here in _PREFIXES.items():
        if engine.startswith(before):
            return here + engine.removeprefix(before)
    return engine


def tool_name(name: str) -> str:
    """Return our name of a documented tool; any other name is returned unchanged."""
    return DOCUMENTED_TOOLS.get(name, name)


class PromptRecorder:
    """Model that records its prompts by role, in order."""

    def __init__(self, model: Model, prompts: dict[str, list[str]]) -> None:
        self._model = model
        self._prompts = prompts

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def vision(self) -> bool:
        return self._model.vision

    async def complete(self, call: Call[T]) -> Completion[T]:
        messages = (f"[{message.role}]\n{_text(message)}" for message in call.messages)
        self._prompts.setdefault(call.role, []).append("\n\n".join(messages))
        return await self._model.complete(call)


def result_of(
    episode: Episode, outputs: Sequence[SolverOutput], prompts: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return an episode under the documented keys.

    :param prompts: prompts of each role, in order.
    """
    analysis = episode.analysis
    result: dict[str, Any] = {
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
        result[f"action_predictor_{turn.number}_response"] = {
            name: getattr(turn.step, name) for name in turn.step.__struct_fields__
        }
        result[f"tool_commander_{turn.number}_response"] = (
            "" if turn.action is None else call_line(turn.action)
        )
        result[f"tool_result_{turn.number}"] = turn.result
        result[f"verifier_{turn.number}_response"] = None if decision is None else decision.analysis
    if "final" in outputs:
        result["final_output"] = "" if episode.solution is None else episode.solution.working
    if "direct" in outputs:
        result["direct_output"] = episode.answer
    return {**result, **_turn_prompts(episode, prompts)}


def _turn_prompts(episode: Episode, prompts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the prompts of each turn; of a repeated call, the last one."""
    found: dict[str, str] = {}
    for role, name in _PROMPTED.items():
        asked = [exchange.key for exchange in episode.exchanges if exchange.role == role]
        for key, shown in zip(asked, prompts.get(role, ()), strict=False):
            found[f"{name}_{key.partition('/')[0]}_prompt"] = shown
    return found


def _text(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def _remembered(turn: Turn) -> dict[str, object]:
    return {
        "tool_name": turn.step.tool_name,
        "sub_goal": turn.step.sub_goal,
        "command": {} if turn.action is None else turn.action.arguments,
        "result": turn.result,
    }
