"""Do the backends work, as they come?"""

from collections.abc import Mapping
from typing import Final

from agentflow.doctor._finding import Diagnosis, DiagnosisState
from agentflow.errors import AgentFlowError
from agentflow.sandbox import Sandbox, Tool

__all__ = ["examine_backend"]

AREA = "backends"

_TRIALS: Final[Mapping[str, tuple[str, Mapping[str, object]]]] = {
    "bash": ("bash:run", {"command": "true"}),
    "browser": ("browser:navigate", {"url": "about:blank"}),
    "code": ("code:run", {"code": "1"}),
    "data": ("data:inspect", {}),
    "document": ("document:outline", {}),
    "files": ("files:list", {}),
    "rag": ("rag:stats", {}),
    "sql": ("sql:list_databases", {}),
    "vm": ("vm:screenshot", {}),
    "world": ("world:reset", {}),
}
"""A call that changes nothing and needs what most calls need."""


async def examine_backend(name: str) -> Diagnosis:
    """Start it, make it live in a session, and call a tool of it."""
    try:
        async with Sandbox(backends=[name]) as sandbox:
            await sandbox.warmup(name)
            tools = [tool for tool in await sandbox.tools() if tool.backend == name]
            trial = _TRIALS.get(name)
            if trial is not None:
                result = await sandbox.execute(*trial)
                if result.error is not None:
                    return _finding(name, DiagnosisState.MISSING, result.error.message)
    except AgentFlowError as error:
        return _finding(name, DiagnosisState.MISSING, str(error))
    return _by_tools(name, tools)


def _by_tools(name: str, tools: list[Tool]) -> Diagnosis:
    unusable = {tool.name: tool.unusable for tool in tools if tool.unusable}
    if not unusable:
        return _finding(
            name,
            DiagnosisState.WORKS,
            f"{len(tools)} tools" if tools else "its tools are those of the servers that its settings name",
        )
    reasons = dict.fromkeys(unusable.values())
    told = "; ".join(
        f"{', '.join(tool for tool, why in unusable.items() if why == reason)}: {reason}"
        for reason in reasons
    )
    return _finding(
        name, DiagnosisState.PARTLY if len(unusable) < len(tools) else DiagnosisState.MISSING, told
    )


def _finding(name: str, state: DiagnosisState, said: str) -> Diagnosis:
    return Diagnosis(area=AREA, name=name, state=state, said=" ".join(said.split()))
