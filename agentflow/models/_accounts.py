"""What was consumed, by whom, and how much may be."""

import time
from collections.abc import Callable, Mapping

from agentflow.errors import RunStopped, StopCause
from agentflow.trajectory import Usage

__all__ = ["Accounts"]


class Accounts:
    """Usage by role and by model, and the budgets that it is held to.

    A budget ends a run before the next call; what is in flight by then is still paid, and counted.
    """

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        max_seconds: float | None = None,
        already: Mapping[str, Usage] | None = None,
        already_cost: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open them.

        :param max_tokens: the most tokens, read and written.
        :param max_cost: the most money, in the currency of the prices.
        :param max_seconds: the longest time from now on.
        :param already: what the run consumed before, by role.
        :param already_cost: what that cost.
        :param clock: gives seconds that only ever grow.
        """
        self.max_tokens = max_tokens
        self.max_cost = max_cost
        self.max_seconds = max_seconds
        self.cost = already_cost
        """Money spent."""
        self._by_role = dict(already or {})
        self._by_model: dict[str, Usage] = {}
        self._total = sum(self._by_role.values(), Usage())
        self._clock = clock
        self._began = clock()

    def add(self, role: str, usage: Usage, cost: float = 0.0, *, model: str = "") -> None:
        """Something was consumed."""
        self._by_role[role] = self._by_role.get(role, Usage()) + usage
        self._by_model[model] = self._by_model.get(model, Usage()) + usage
        self._total += usage
        self.cost += cost

    @property
    def by_role(self) -> dict[str, Usage]:
        """What each role consumed, in this run and before."""
        return dict(self._by_role)

    @property
    def by_model(self) -> dict[str, Usage]:
        """What each model consumed since these accounts were opened."""
        return dict(self._by_model)

    @property
    def total(self) -> Usage:
        """What all roles consumed."""
        return self._total

    def check(self) -> None:
        """Whether there is anything left to spend.

        :raises RunStopped: if not.
        """
        tokens = self._total.prompt_tokens + self._total.completion_tokens
        if self.max_tokens is not None and tokens >= self.max_tokens:
            self._stop(f"the budget of {self.max_tokens:,} tokens is used up ({tokens:,})")
        if self.max_cost is not None and self.cost >= self.max_cost:
            self._stop(f"the budget of {self.max_cost:g} is spent ({self.cost:.4g})")
        if self.max_seconds is not None and self._clock() - self._began >= self.max_seconds:
            self._stop(f"the budget of {self.max_seconds:g} seconds is used up")

    def _stop(self, reason: str) -> None:
        raise RunStopped(StopCause.BUDGET, f"{reason}; raise it and run the same again to go on")
