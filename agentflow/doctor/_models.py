"""Which models can be asked?"""

from collections.abc import Mapping

import aiohttp

from agentflow.doctor._finding import Diagnosis, DiagnosisState
from agentflow.models import PROVIDERS, is_loopback

__all__ = ["examine_provider"]

AREA = "models"

SECONDS = 5.0
"""Time for an endpoint to answer."""


async def examine_provider(name: str, environment: Mapping[str, str]) -> Diagnosis:
    """Ask for its list of models, if there is a key or none is needed. The key is sent to nobody else."""
    provider = PROVIDERS[name]
    key, url = provider.key(environment), provider.address(environment)
    if not url:
        return _finding(name, DiagnosisState.MISSING, f"set {provider.url_variable} to use {name}/…")
    if not key and not is_loopback(url):
        return _finding(name, DiagnosisState.MISSING, f"set {provider.key_variable} to use {name}/…")
    headers = provider.make_api(environment).headers(key)
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers, trust_env=True) as session,
            session.get(f"{url}{provider.models_path}", allow_redirects=False) as answer,
        ):
            status = answer.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        why = str(error) or "no answer in time"
        return _finding(name, DiagnosisState.MISSING, f"{url} can't be reached: {why}")
    # Gemini calls a key that is none a bad request.
    if status in (400, 401, 403):
        return _finding(name, DiagnosisState.MISSING, f"{url} refuses the key: mend {provider.key_variable}")
    return _finding(
        name, DiagnosisState.WORKS if status < 500 else DiagnosisState.PARTLY, f"{url} answers with {status}"
    )


def _finding(name: str, state: DiagnosisState, said: str) -> Diagnosis:
    return Diagnosis(area=AREA, name=name, state=state, said=" ".join(said.split()))
