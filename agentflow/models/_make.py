"""The model that some settings name."""

from collections.abc import Mapping
from random import Random

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import ConfigurationError
from agentflow.models._accounts import Accounts
from agentflow.models._endpoints import ModelEndpoints
from agentflow.models._http_model import HttpModel, OpenModel
from agentflow.models._litellm import need_litellm
from agentflow.models._offline import OFFLINE, OfflineModel
from agentflow.models._providers import LITELLM, find_address
from agentflow.models._settings import ModelSettings
from agentflow.settings import read_environment


def make_model(
    settings: ModelSettings,
    accounts: Accounts,
    *,
    endpoints: ModelEndpoints | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    random: Random | None = None,
) -> OpenModel:
    """Return the model that the settings name; its usage is added to `accounts`. See docs/models.md.

    :param endpoints: models at one endpoint share its connections and its concurrency limit through this object.
    :param environment: variables that hold keys; by default the process's environment over `.env`.
    :raises ConfigurationError: if the key is missing, the prices are missing under a money budget, or the provider
        does not return tokens.
    """
    if settings.name == OFFLINE:
        if settings.tokens:
            raise ConfigurationError("model offline: it returns no tokens; use vLLM or tokens=false")
        return OfflineModel(accounts)
    if accounts.max_cost is not None and settings.prices is None:
        raise ConfigurationError(
            f"model {settings.name}: max_cost needs the prices of its tokens; set prices (input, output per million tokens)"
        )
    if settings.name.startswith(f"{LITELLM}/") and not settings.base_url:
        need_litellm()
    address = find_address(settings, read_environment() if environment is None else environment)
    endpoint = (endpoints or ModelEndpoints(clock)).at(address, settings.max_concurrency)
    return HttpModel(settings, accounts, address, endpoint, clock=clock, random=random)
