"""Token and money usage, and its budgets."""

import time
from collections.abc import Callable, Mapping

from agentflow.errors import RunStopped, StopCause
from agentflow.trace import Usage


class Accounts:
    """Usage by role and by model, with budgets.

    A budget ends a run before its next request; requests in flight are still paid for and counted. See docs/models.md.
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
        """Start with no usage, or with that of an earlier part of the run.

        :param max_tokens: maximum number of prompt and completion tokens.
        :param max_cost: maximum cost, in the currency of the prices.
        :param max_seconds: maximum duration, from now on.
        :param already: usage of earlier parts of the run, by role.
        :param already_cost: cost of that usage.
        :param clock: monotonic clock, in seconds.
        """
        self.max_tokens = max_tokens
        self.max_cost = max_cost
        self.max_seconds = max_seconds
        self.cost = already_cost
        """Cost so far."""
        self._by_role = dict(already or {})
        self._by_model: dict[str, Usage] = {}
        self.total = sum(self._by_role.values(), Usage())
        """Usage of all roles."""
        self.answered: set[str] = set()
        """Roles that got a usable answer since this object was created."""
        self._tokens_elsewhere = 0
        self._cost_elsewhere = 0.0
        self._clock = clock
        self._began = clock()

    def add(self, role: str, usage: Usage, cost: float = 0.0, *, model: str = "") -> None:
        """Add the usage of one or more answers."""
        self._by_role[role] = self._by_role.get(role, Usage()) + usage
        self._by_model[model] = self._by_model.get(model, Usage()) + usage
        self.total += usage
        self.cost += cost

    def share(self, by_role: Mapping[str, Usage], cost: float) -> None:
        """Count the usage of other processes towards the budgets.

        :param by_role: usage of all processes, this one included.
        :param cost: its cost.
        """
        self._tokens_elsewhere = max(0, _tokens(sum(by_role.values(), Usage())) - _tokens(self.total))
        self._cost_elsewhere = max(0.0, cost - self.cost)

    @property
    def by_role(self) -> dict[str, Usage]:
        """Usage by role, including earlier parts of the run."""
        return dict(self._by_role)

    @property
    def by_model(self) -> dict[str, Usage]:
        """Usage by model since this object was created."""
        return dict(self._by_model)

    def check(self) -> None:
        """Check the budgets.

        :raises RunStopped: if one is used up.
        """
        tokens = _tokens(self.total) + self._tokens_elsewhere
        cost = self.cost + self._cost_elsewhere
        if self.max_tokens is not None and tokens >= self.max_tokens:
            self._stop(f"the budget of {self.max_tokens:,} tokens is used up ({tokens:,})")
        if self.max_cost is not None and cost >= self.max_cost:
            self._stop(f"the budget of {self.max_cost:g} is spent ({cost:.4g})")
        if self.max_seconds is not None and self._clock() - self._began >= self.max_seconds:
            self._stop(f"the budget of {self.max_seconds:g} seconds is used up")

    def _stop(self, reason: str) -> None:
        raise RunStopped(StopCause.BUDGET, f"{reason}; raise it and run the same command to resume")


def _tokens(used: Usage) -> int:
    return used.prompt_tokens + used.completion_tokens
