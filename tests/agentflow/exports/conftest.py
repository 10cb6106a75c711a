"""Finished runs: of the offline engine, of models that report tokens, and of an agent through the gateway."""

import json
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from agentflow.cli import main
from agentflow.testing import fake_endpoint
from tests.agentflow.exports._trees import QUESTIONS, roll_out, synthesise, tune_agent
from tests.trainers._runs import RIGHT, sampling_endpoint


@pytest.fixture(scope="package")
def synthesis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesise(tmp_path_factory.mktemp("synthesis"))


@pytest.fixture(scope="package")
def rollout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return roll_out(tmp_path_factory.mktemp("rollout"))


@pytest.fixture(scope="package")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a synthesis whose engine reports tokens."""
    folder = tmp_path_factory.mktemp("sampled")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_endpoint()) as url:
        return synthesise(folder, f"base_url={url}", "model_name=fake", "control=false", "tokens=true")


@pytest.fixture(scope="package")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluate a model that reports tokens and is right half the time; return the folder of all its rollouts."""
    folder = tmp_path_factory.mktemp("evaluation")
    tasks = [{**task, "answer": RIGHT} for task in QUESTIONS]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(sampling_endpoint()) as url:
        settings = (
            f"output_dir={folder / 'eval'}",
            f"base_url={url}",
            "tokens=exact",
            "agent=single",
            "samples=6",
        )
        data = ("--data", str(folder / "tasks.jsonl"), "--models", "fake")
        assert main(["eval", "bamboogle", *data, *settings, "available_tools=[rag_search,rag_get]"]) == 0
    return folder / "eval"


@pytest.fixture(scope="package")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tune_agent(tmp_path_factory.mktemp("tuning"))
