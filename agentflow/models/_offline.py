"""The offline engine as a model: no endpoint, key or prices."""

from types import TracebackType
from typing import Self, TypeVar

import msgspec

from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.models._accounts import Accounts
from agentflow.models._http_model import Statistics
from agentflow.models._protocol import Call, Completion

T = TypeVar("T")

OFFLINE = "offline"
"""Name of the offline engine in settings."""


class OfflineModel:
    """Model that answers every role from the text of the request; equal requests have equal answers."""

    name = OFFLINE
    """Name in settings and reports."""
    vision = False
    """It accepts no images."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._calls = self._failures = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def statistics(self) -> Statistics:
        """Return the numbers of calls and failures."""
        return Statistics(calls=self._calls, failures=self._failures)

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer one call.

        :raises ModelFailure: if the call has no typed request, or expects another type of answer.
        :raises RunStopped: if a budget is used up.
        """
        self._accounts.check()
        self._calls += 1
        if call.request is None:
            raise self._refusal("the offline engine answers typed requests only; name a model for free text")
        from agentflow.offline import answer, usage_of

        value = answer(call.request)
        if not isinstance(value, call.reply):
            raise self._refusal(
                f"the offline engine answers this request with {type(value).__name__}, not {call.reply.__name__}"
            )
        usage = usage_of(call.request, value)
        self._accounts.add(call.role, usage, model=self.name)
        return Completion(value=value, text=msgspec.json.encode(value).decode(), usage=usage, model=self.name)

    def _refusal(self, message: str) -> ModelFailure:
        self._failures += 1
        return ModelFailure(ModelFailureKind.BAD_REQUEST, message)
