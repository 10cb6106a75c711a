"""Models at the same endpoint share its connections and its limit."""

import pytest
import uvicorn

from agentflow.actors import SYSTEM_CLOCK
from agentflow.models import Accounts, ModelEndpoints, make_model
from agentflow.models._transport import IDLE_SECONDS
from mcp_servers.rag import _embedders
from tests.agentflow.models._serving import call, painter, says, script, settings


@pytest.mark.promise("models:shared")
async def test_two_roles_at_one_endpoint_share_its_limit_and_either_may_close_first() -> None:
    endpoints = ModelEndpoints()
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
async def test_a_model_outside_async_with_raises_a_clear_error() -> None:
    model = make_model(settings("http://127.0.0.1:1/v1"), Accounts(), environment={})
    with pytest.raises(RuntimeError, match="inside `async with`"):
        await model.complete(call())


@pytest.mark.promise("models:proxies")
async def test_proxy_variables_apply_except_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with script(says()) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", "near.example.org")
        far = settings("http://far.example.org/v1", api_key="k")
        async with make_model(far, Accounts(), environment={}) as model:
            await model.complete(call())
        assert proxy.headers[0]["host"] == "far.example.org"
        async with script(says()) as here, painter(here.url) as model:
            await model.complete(call())
        assert (len(here.bodies), len(proxy.bodies)) == (1, 1)


@pytest.mark.promise("models:connections")
def test_an_idle_connection_is_closed_before_the_server_closes_it() -> None:
    closes = uvicorn.Config("nobody:serves").timeout_keep_alive
    assert max(IDLE_SECONDS, _embedders.IDLE_SECONDS) < closes
