"""Usage by role and by model, and budgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import RunStopped, StopCause
from agentflow.models import Accounts, Prices
from agentflow.testing import VirtualClock
from agentflow.trace import Usage

amounts = st.builds(Usage, st.integers(0, 5), st.integers(0, 1000), st.integers(0, 1000))


@pytest.mark.promise("models:usage")
@given(st.lists(st.tuples(st.sampled_from(["planner", "generator"]), amounts)), amounts)
def test_the_total_is_the_sum_of_all_roles_including_earlier_usage(
    added: list[tuple[str, Usage]], before: Usage
) -> None:
    accounts = Accounts(already={"planner": before})
    for role, usage in added:
        accounts.add(role, usage)
    expected = sum((usage for _, usage in added), before)
    assert accounts.total == expected == sum(accounts.by_role.values(), Usage())


def stopped(accounts: Accounts) -> str:
    with pytest.raises(RunStopped) as end:
        accounts.check()
    assert end.value.cause is StopCause.BUDGET
    assert "\n" not in end.value.message
    return end.value.message


@pytest.mark.promise("models:budgets")
def test_a_token_budget_counts_an_interrupted_run() -> None:
    accounts = Accounts(max_tokens=100, already={"planner": Usage(1, 60, 30)})
    accounts.check()
    accounts.add("planner", Usage(1, 5, 5))
    assert stopped(accounts).startswith("the budget of 100 tokens is used up (100)")


@pytest.mark.promise("models:budgets")
def test_a_cost_budget_ends_a_run() -> None:
    accounts = Accounts(max_cost=2.5, already_cost=1.0)
    accounts.add("planner", Usage(1, 1, 1), 1.0)
    accounts.check()
    accounts.add("planner", Usage(1, 1, 1), 0.5)
    assert stopped(accounts).startswith("the budget of 2.5 is spent (2.5)")


@pytest.mark.promise("models:budgets")
def test_a_time_budget_ends_a_run() -> None:
    clock = VirtualClock(50)
    accounts = Accounts(max_seconds=10, clock=clock.now)
    clock.advance(9)
    accounts.check()
    clock.advance(1)
    assert stopped(accounts).startswith("the budget of 10 seconds is used up")


@pytest.mark.promise("models:budgets")
def test_the_cost_follows_from_the_prices() -> None:
    assert Prices(input=2, output=8).cost(Usage(1, 500_000, 250_000)) == 3.0
