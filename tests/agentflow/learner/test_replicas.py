"""The engine of a training whose policy has replicas, with a fake vLLM."""

from pathlib import Path

import anyio
import pytest

from agentflow.errors import ConfigurationError, RunStopped
from agentflow.journal import open_replicas
from agentflow.learner import TrainRun
from agentflow.learner._config import POLICY
from agentflow.learner._engine import keep_published, open_engine
from agentflow.models import ModelSettings
from tests._postgres import PostgresServer
from tests.agentflow.learner._training import config_of, some_tasks
from tests.agentflow.serving._fake_vllm import make_fake_vllm, make_weights, served

ROLES = {"planner": ModelSettings(name=POLICY)}


@pytest.mark.promise("replicas:training")
async def test_the_engine_of_a_training_is_all_replicas_of_the_policy(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    database = postgres.new_database()
    make_fake_vllm(packages := tmp_path / "packages")
    base = make_weights(tmp_path / "base", "0").folder
    config = config_of(engine={"base_url": database, "served_model_name": "painter"})
    with (
        served(base, database, packages=packages) as north,
        served(base, database, packages=packages) as south,
    ):
        async with open_engine(config, base, str(base), ROLES) as engine:
            planner = engine.models(ROLES)["planner"]
            assert (planner.name, planner.base_url, planner.tokens) == ("painter", database, "exact")
            folder = make_weights(tmp_path / "1", "1").folder
            assert (await engine.publish(folder, 1)).version == "1"
            assert [one.engine("weight_info")["weight_version"] for one in (north, south)] == ["1", "1"]
            with anyio.fail_after(60):
                await engine.ready()
        policy = make_weights(tmp_path / "policy", "1").folder
        await keep_published(config, folder, policy)
        with served(base, database, packages=packages) as joined:
            assert joined.engine("weight_info")["folder"] == str(policy)


@pytest.mark.promise("replicas:refused")
async def test_a_training_without_a_replica_stops_with_one_line(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentflow.journal.LEASE_SECONDS", 0.0, raising=False)
    database = postgres.new_database()
    folder = make_weights(tmp_path / "1", "1").folder
    config = config_of(engine={"base_url": database, "served_model_name": "painter"})
    async with open_engine(config, folder, str(folder), ROLES) as engine, open_replicas(database):
        with pytest.raises(RunStopped) as stopped:
            await engine.publish(folder, 1)
    assert str(stopped.value) == (
        f"no replica of painter is registered in {database}; start one with agentflow serve-model --register; "
        "fix the engine, then run the same command to resume"
    )


@pytest.mark.promise("replicas:refused")
async def test_rollouts_without_the_name_of_the_replicas_are_refused_in_one_line() -> None:
    config = config_of(backbone="debug", engine={"base_url": "postgresql://user@host/database"})
    with pytest.raises(
        ConfigurationError, match=r"^engine\.served_model_name: name the model of the replicas$"
    ):
        await TrainRun(config, tasks=some_tasks(1), say=print).run()
