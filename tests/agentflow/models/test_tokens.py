"""Prompt and completion tokens, or an error of one line."""

from typing import Any

import msgspec
import pytest
from aiohttp import web

from agentflow.errors import ConfigurationError, ModelFailure, ModelFailureKind, RunStopped
from agentflow.models import Accounts, ModelSettings, make_model
from agentflow.trace import Tokens
from tests.agentflow.models._serving import Body, call, painter, says, script


def vllm(**changes: Any) -> Any:  # noqa: ANN401
    """Answer like vLLM, with tokens on request."""

    def answer(body: Body) -> web.Response:
        response = says()
        if not body.get("return_token_ids"):
            return response
        assert isinstance(response.body, bytes)
        said = msgspec.json.decode(response.body, type=dict[str, Any])
        drawn = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -9999.0}]
        choice = {"token_ids": [7, 8], "logprobs": {"content": drawn}, **changes}
        said["choices"][0] |= choice
        said["prompt_token_ids"] = choice.pop("prompt", [1, 2, 3])
        response.body = msgspec.json.encode(said)
        return response

    return answer


@pytest.mark.promise("models:tokens")
async def test_an_answer_has_its_tokens_on_request() -> None:
    async with script(vllm()) as endpoint:
        async with painter(endpoint.url, tokens=True) as model:
            told = await model.complete(call())
        async with painter(endpoint.url) as model:
            untold = await model.complete(call())
    assert told.tokens == Tokens(prompt=(1, 2, 3), sampled=(7, 8), logprobs=(-0.5, -9999.0), finish="stop")
    assert untold.tokens is None
    asked = {name: endpoint.bodies[0][name] for name in ("return_token_ids", "logprobs", "top_logprobs")}
    assert asked == {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}
    assert not asked.keys() & endpoint.bodies[1].keys()


@pytest.mark.promise("models:tokens")
@pytest.mark.parametrize(
    "changes",
    [{"logprobs": None}, {"logprobs": {"content": []}}, {"prompt": None}],
    ids=["no log-probabilities", "too few", "no prompt"],
)
async def test_inconsistent_tokens_are_rejected(changes: dict[str, Any]) -> None:
    async with (
        script(vllm(**changes)) as endpoint,
        painter(endpoint.url, tokens=True, max_attempts=2) as model,
    ):
        with pytest.raises(ModelFailure, match="2 tokens and") as failed:
            await model.complete(call())
    assert (failed.value.kind, len(endpoint.bodies)) == (ModelFailureKind.UNAVAILABLE, 2)


@pytest.mark.promise("models:tokens")
async def test_an_endpoint_without_tokens_ends_the_run_in_one_line() -> None:
    async with script(says()) as endpoint, painter(endpoint.url, tokens=True) as model:
        with pytest.raises(RunStopped, match=r"it returns no tokens; use vLLM or tokens=false$") as stopped:
            await model.complete(call())
    assert "\n" not in stopped.value.message
    assert len(endpoint.bodies) == 1


@pytest.mark.promise("models:tokens")
@pytest.mark.parametrize(
    "name", ["gpt-5", "openai/gpt-5", "anthropic/claude", "gemini/g", "ollama/q", "offline"]
)
def test_a_provider_without_tokens_is_refused_before_the_first_call(name: str) -> None:
    keys = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "GEMINI_API_KEY": "k"}
    with pytest.raises(ConfigurationError, match=f"^model {name}: .*returns no tokens; use vLLM"):
        make_model(ModelSettings(name=name, tokens=True), Accounts(), environment=keys)


@pytest.mark.promise("models:tokens")
async def test_vllm_can_be_selected_by_its_provider_name() -> None:
    async with script(vllm()) as endpoint:
        settings = ModelSettings(name="vllm/some/model", tokens=True)
        made = make_model(
            settings, Accounts(), environment={"VLLM_BASE_URL": endpoint.url, "VLLM_API_KEY": "k"}
        )
        async with made as model:
            completion = await model.complete(call())
    assert completion.tokens is not None
    assert completion.tokens.sampled == (7, 8)
    assert endpoint.bodies[0]["model"] == "some/model"
    assert endpoint.headers[0]["authorization"] == "Bearer k"
