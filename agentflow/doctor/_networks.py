"""Which networks answer?"""

import anyio

from agentflow.doctor._finding import Diagnosis, DiagnosisState

__all__ = ["HOSTS", "examine_host"]

AREA = "networks"

SECONDS = 5.0
"""Time for a host to answer."""

HOSTS = {
    "en.wikipedia.org": "web_wikipedia",
    "google.serper.dev": "web_search by Serper",
    "r.jina.ai": "web_visit by Jina Reader",
    "huggingface.co": "weights and data sets by name",
}
"""Hosts that the programs of here reach, and what for."""


async def examine_host(host: str, port: int = 443) -> Diagnosis:
    """Connect to it."""
    use = HOSTS.get(host, "")
    try:
        with anyio.fail_after(SECONDS):
            stream = await anyio.connect_tcp(host, port)
            await stream.aclose()
    except (OSError, TimeoutError) as error:
        why = " ".join(str(error).split()) or "no answer in time"
        said = f"can't be reached ({why}); without it there is no {use}"
        return Diagnosis(area=AREA, name=host, state=DiagnosisState.MISSING, said=said)
    return Diagnosis(area=AREA, name=host, state=DiagnosisState.WORKS, said=use)
