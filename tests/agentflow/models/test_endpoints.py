"""Models at the same endpoint share its connections and its limit."""

import pytest

from agentflow.actors import SYSTEM_CLOCK
from agentflow.models import Accounts, Endpoints, make_model
from tests.agentflow.models._serving import call, says, script, settings


@pytest.mark.promise("models:shared")
async def test_two_roles_at_one_endpoint_share_its_limit_and_either_may_close_first() -> None:
    endpoints = Endpoints()
    async with script(says()) as endpoint:
        said = settings(endpoint.url)
        one, two = (
            make_model(said, Accounts(), endpoints=endpoints, environment={}, clock=SYSTEM_CLOCK)
            for _ in range(2)
        )
        async with one:
            async with two:
                await two.complete(call())
            await one.complete(call())
        assert one.statistics().limit == two.statistics().limit
        assert (one.statistics().calls, two.statistics().calls) == (1, 1)
        async with two:
            await two.complete(call())
    assert len(endpoint.bodies) == 3


@pytest.mark.promise("models:shared")
async def test_a_model_that_is_not_open_says_so() -> None:
    model = make_model(settings("http://127.0.0.1:1/v1"), Accounts(), environment={})
    with pytest.raises(RuntimeError, match="inside `async with`"):
        await model.complete(call())
