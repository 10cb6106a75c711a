"""A judge at a real endpoint."""

import json
from pathlib import Path

import anyio
import pytest

from agentflow.models import Accounts, ModelSettings, make_model
from agentflow.scoring import make_metric
from agentflow.testing import fake_endpoint
from tests.agentflow.scoring._judging import task


@pytest.mark.promise("scoring:judge")
@pytest.mark.parametrize("structured", ["json_schema", "text"])
async def test_an_endpoint_is_asked_for_its_strictest_structured_output(
    structured: str, tmp_path: Path
) -> None:
    log, accounts = tmp_path / "log.jsonl", Accounts()
    async with fake_endpoint(log=log, structured=structured) as url:
        settings = ModelSettings(name="judge", base_url=url)
        async with make_model(settings, accounts, environment={}) as model:
            scored = await make_metric("llm_judgement", judge=model).score("Lutetia", task("Paris"))
    assert (scored.score, scored.failure) == (1.0, None)
    assert scored.usage.calls >= 1
    bodies = [json.loads(line) for line in (await anyio.Path(log).read_text()).splitlines()]
    assert {body["temperature"] for body in bodies} == {0.0}
    if structured == "json_schema":
        assert bodies[-1]["response_format"]["json_schema"]["strict"] is True


@pytest.mark.promise("scoring:judge-votes")
async def test_a_failing_endpoint_does_not_count_as_a_wrong_answer() -> None:
    async with fake_endpoint(down_after=0) as url:
        settings = ModelSettings(name="judge", base_url=url, max_attempts=1)
        async with make_model(settings, Accounts(), environment={}) as model:
            scored = await make_metric("llm_judgement", judge=model).score("Lutetia", task("Paris"))
    assert scored.failure is not None
    assert scored.failure.kind == "unavailable"
