"""The model that some settings name: at an endpoint, or the offline engine, which needs no endpoint, key or prices."""

from collections.abc import Mapping
from random import Random
from typing import Self, TypeVar

import msgspec

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import ConfigurationError, ModelFailure, ModelFailureKind
from agentflow.models._accounts import Accounts
from agentflow.models._endpoints import ModelEndpoints
from agentflow.models._http_model import HttpModel, OpenModel, Statistics
from agentflow.models._protocol import Call, Completion
from agentflow.models._providers import LITELLM, find_address, full_name
from agentflow.models._settings import ModelSettings
from agentflow.models._tracing import ModelTrace
from agentflow.models._transport import need_litellm
from agentflow.settings import read_environment
from agentflow.trace import Request

T = TypeVar("T")
OFFLINE = "offline"
"""Name of the offline engine in settings."""


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
    if accounts.max_cost is not None and settings.known_prices is None:
        raise ConfigurationError(
            f"model {settings.name}: max_cost needs the prices of its tokens; set prices (input, output per million tokens)"
        )
    if full_name(settings).startswith(f"{LITELLM}/") and not settings.base_url:
        need_litellm()
    address = find_address(settings, read_environment() if environment is None else environment)
    endpoint = (endpoints or ModelEndpoints(clock)).at(address, settings.max_concurrency)
    return HttpModel(settings, accounts, address, endpoint, clock=clock, random=random)


class OfflineModel:
    """Model that answers every role from the text of the request; equal requests have equal answers."""

    name = OFFLINE
    """Name in settings and reports."""
    vision = False
    """It accepts no images."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._calls = self._failures = 0
        self._trace = ModelTrace(self.name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return

    def statistics(self) -> Statistics:
        """Return the numbers of calls and failures."""
        kinds = {str(ModelFailureKind.BAD_REQUEST): self._failures} if self._failures else {}
        return Statistics(calls=self._calls, failures=self._failures, failures_by_kind=kinds)

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call.

        :raises ModelFailure: if the call has no typed request, or expects another type of answer.
        :raises RunStopped: if a budget is used up.
        """
        self._accounts.check()
        self._calls += 1
        if call.request is None:
            raise self._refusal("the offline engine answers typed requests only; name a model for free text")
        with self._trace.begin(call) as operation:
            completion = self._answered(call, call.request)
            self._trace.end(operation, call, completion)
        return completion

    def _answered(self, call: Call[T], request: Request[T]) -> Completion[T]:
        from agentflow.offline import answer, usage_of

        value = answer(request)
        if not isinstance(value, call.reply):
            raise self._refusal(
                f"the offline engine answers this request with {type(value).__name__}, not {call.reply.__name__}"
            )
        usage = usage_of(request, value)
        self._accounts.add(call.role, usage, model=self.name)
        return Completion(value=value, text=msgspec.json.encode(value).decode(), usage=usage, model=self.name)

    def _refusal(self, message: str) -> ModelFailure:
        self._failures += 1
        return ModelFailure(ModelFailureKind.BAD_REQUEST, message, attempts=0)
