"""From settings to a model."""

from collections.abc import Mapping
from random import Random
from types import TracebackType
from typing import Self, TypeVar

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import ConfigurationError, ModelFailure
from agentflow.models._accounts import Accounts
from agentflow.models._endpoints import Endpoints
from agentflow.models._engine import HttpModel, OpenModel, Statistics
from agentflow.models._litellm import need_litellm
from agentflow.models._protocol import Call, Completion, Model
from agentflow.models._providers import LITELLM, find_address
from agentflow.models._settings import ModelSettings
from agentflow.settings import read_environment

__all__ = ["OFFLINE", "make_model"]

T = TypeVar("T")

OFFLINE = "offline"
"""The name of the engine that needs no endpoint."""


def make_model(
    settings: ModelSettings,
    accounts: Accounts,
    *,
    endpoints: Endpoints | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    random: Random | None = None,
) -> OpenModel:
    """The model that the settings name, accounted for in `accounts`.

    :param endpoints: models made with the same ones share connections and limits where they share an endpoint.
    :param environment: where keys are looked up; by default `.env`, and over it the process's environment.
    :raises ConfigurationError: if its key or, with a budget of money, its prices are missing, or it can't tell the
        tokens that are asked for.
    """
    if settings.name == OFFLINE:
        if settings.tokens:
            raise ConfigurationError("model offline: it tells no tokens; use vLLM or tokens=false")
        from agentflow.offline import OfflineModel

        return _Offline(OfflineModel(accounts))
    if accounts.max_cost is not None and settings.prices is None:
        raise ConfigurationError(
            f"model {settings.name}: a budget of money needs its prices; set prices (input, output per million tokens)"
        )
    if settings.name.startswith(f"{LITELLM}/") and not settings.base_url:
        need_litellm()
    address = find_address(settings, read_environment() if environment is None else environment)
    endpoint = (endpoints or Endpoints(clock)).at(address, settings.max_in_flight)
    return HttpModel(settings, accounts, address, endpoint, clock=clock, random=random)


class _Offline:
    """The offline engine, with the same doors as one behind an endpoint."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._calls = self._failures = 0

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def sees(self) -> bool:
        return self._model.sees

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def statistics(self) -> Statistics:
        return Statistics(calls=self._calls, failures=self._failures)

    async def complete(self, call: Call[T]) -> Completion[T]:
        self._calls += 1
        try:
            return await self._model.complete(call)
        except ModelFailure:
            self._failures += 1
            raise
