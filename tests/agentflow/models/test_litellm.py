"""LiteLLM's real library against the fake endpoint, in a process of its own."""

import sys

import anyio
import msgspec
import pytest

from agentflow.errors import ConfigurationError
from agentflow.models import Accounts, ModelSettings, _transport, make_model
from agentflow.testing import fake_endpoint

PROGRAM = """
import sys

import anyio
import msgspec

from agentflow.errors import ModelFailure, RunStopped
from agentflow.models import Accounts, Call, Message, ModelSettings, TextPart, ToolSpec, make_model


class Answer(msgspec.Struct):
    answer: str


said = (Message("user", (TextPart("How tall is it?"),)),)
tool = ToolSpec("rag_search", "Looks it up.", {"type": "object", "properties": {"query": {"type": "string"}}})


async def main(url: str) -> None:
    accounts, told = Accounts(), {}
    settings = ModelSettings(name="litellm/openai/m", api_key="k", max_attempts=2, extra_body={"api_base": url})
    async with make_model(settings, accounts) as model:
        told["value"] = (await model.complete(Call(role="generator", messages=said, reply=Answer))).value.answer
        [call] = (await model.complete(Call(role="planner", messages=said, reply=str, tools=(tool,)))).calls
        told["tool"] = call.name
        told["calls"] = accounts.total.calls
    gone = settings.model_copy(update={"extra_body": {"api_base": "http://127.0.0.1:9/v1"}})
    async with make_model(gone, accounts) as model:
        try:
            await model.complete(Call(role="generator", messages=said, reply=str))
        except ModelFailure as failure:
            told["gone"] = [failure.kind, failure.attempts]
    async with make_model(settings.model_copy(update={"name": "litellm/nobody"}), accounts) as model:
        try:
            await model.complete(Call(role="generator", messages=said, reply=str))
        except (ModelFailure, RunStopped) as failure:
            told["unknown"] = failure.message
    sys.stdout.write(msgspec.json.encode(told).decode())


anyio.run(main, sys.argv[1])
"""


# Loading the library alone takes many seconds.
@pytest.mark.timeout(400)
@pytest.mark.promise("models:litellm")
async def test_a_model_can_be_called_through_litellm() -> None:
    async with fake_endpoint() as url:
        done = await anyio.run_process([sys.executable, "-W", "ignore", "-c", PROGRAM, url], check=False)
    assert done.returncode == 0, done.stderr.decode()
    told = msgspec.json.decode(done.stdout)
    assert (told["value"], told["tool"], told["calls"]) == ("unknown", "rag_search", 2)
    assert told["gone"] == ["unavailable", 2]
    assert "LLM Provider NOT provided" in told["unknown"]
    assert "\n" not in told["unknown"]


@pytest.mark.promise("models:litellm")
def test_a_missing_litellm_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        del name

    monkeypatch.setattr(_transport, "find_spec", nothing)
    with pytest.raises(ConfigurationError, match=r"^model litellm/… needs the extra litellm: "):
        make_model(ModelSettings(name="litellm/openai/gpt-5"), Accounts(), environment={})


@pytest.mark.promise("models:litellm")
def test_a_litellm_proxy_is_an_endpoint_like_any_other() -> None:
    proxied = ModelSettings(name="litellm/gpt-5", base_url="http://127.0.0.1:4000")
    assert make_model(proxied, Accounts(), environment={}).name == "litellm/gpt-5"
