"""Do sandboxes run here?"""

from agentflow.doctor._finding import Diagnosis, DiagnosisState
from agentflow.errors import AgentFlowError
from mcp_servers.core import runtime_maker
from runtimes import Capabilities, InstanceSpec, Outcome

__all__ = ["examine_runtime"]

AREA = "runtimes"


async def examine_runtime(name: str) -> Diagnosis:
    """Start a sandbox and run something in it."""
    try:
        async with runtime_maker(name, InstanceSpec())() as runtime:
            instance = await runtime.start()
            try:
                ran = await instance.exec(["true"])
            finally:
                await instance.stop()
            if ran.outcome is not Outcome.OK or ran.exit_code:
                return _finding(
                    name, DiagnosisState.MISSING, ran.detail or f"a command ended with {ran.exit_code}"
                )
            able = runtime.capabilities
    except AgentFlowError as error:
        return _finding(name, DiagnosisState.MISSING, " ".join(str(error).split()))
    notes = "; ".join(able.notes)
    return _finding(name, DiagnosisState.PARTLY if notes else DiagnosisState.WORKS, notes or _abilities(able))


def _abilities(able: Capabilities) -> str:
    words = [f"fork: {able.fork}", "snapshots" if able.snapshot else "", "screen" if able.screen else ""]
    return ", ".join(word for word in words if word)


def _finding(name: str, state: DiagnosisState, said: str) -> Diagnosis:
    return Diagnosis(area=AREA, name=name, state=state, said=said)
