"""Replicas of a model as real programs, with a fake engine: registration, and weights that are published to all."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from agentflow.journal import open_replicas
from agentflow.models import Accounts, Call, Message, ModelSettings, TextPart, make_model
from agentflow.serving import Probe, ProbeText, ReplicaPublisher, WeightsFailure
from tests._postgres import PostgresServer
from tests.agentflow.cli._programs import run_here
from tests.agentflow.serving._fake_vllm import make_fake_vllm, make_weights, serve_model, served

MODEL = "painter"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    make_fake_vllm(folder)
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Folder of the weights that replicas start with."""
    return make_weights(tmp_path / "base", "0").folder


async def until(condition: Callable[[], bool]) -> None:
    while not await anyio.to_thread.run_sync(condition):
        await anyio.lowlevel.checkpoint()


@pytest.mark.promise("replicas:leases")
async def test_a_served_model_is_registered_until_it_is_stopped(
    base: Path, packages: Path, postgres: PostgresServer
) -> None:
    database = postgres.new_database()
    with served(base, database, packages=packages) as replica:
        async with open_replicas(database) as table:
            [found] = await table.live(MODEL)
            assert (found.url, found.weights, found.problem) == (replica.url, 0, None)
            settings = ModelSettings(name=MODEL, base_url=database)
            async with make_model(settings, Accounts(), environment={}) as model:
                question = (Message("user", (TextPart("Which colour?"),)),)
                assert (await model.complete(Call(role="planner", messages=question, reply=str))).text
            replica.process.send_signal(signal.SIGINT)
            assert await anyio.to_thread.run_sync(replica.process.wait) == 130
            assert await table.live(MODEL) == []


@pytest.mark.promise("replicas:publish")
async def test_weights_are_published_to_every_replica_and_to_those_that_join(
    base: Path, packages: Path, postgres: PostgresServer, tmp_path: Path
) -> None:
    database = postgres.new_database()
    with (
        served(base, database, packages=packages) as north,
        served(base, database, packages=packages) as south,
    ):
        async with open_replicas(database) as table:
            publisher = ReplicaPublisher(table, MODEL)
            for version in ("1", "2"):
                weights = make_weights(tmp_path / version, version)
                assert (await publisher.publish(weights)).version == version
                for replica in (north, south):
                    engine = replica.engine("weight_info")
                    assert (engine["weight_version"], engine["folder"]) == (version, str(weights.folder))
                    assert not engine["is_paused"]
            with served(base, database, packages=packages) as east:
                assert east.engine("weight_info")["weight_version"] == "2"
                assert {(one.url, one.weights) for one in await table.live(MODEL)} == {
                    (one.url, 2) for one in (north, south, east)
                }


@pytest.mark.promise("replicas:publish")
async def test_a_replica_that_dies_while_weights_are_published_is_left_out_until_it_has_them(
    base: Path, packages: Path, postgres: PostgresServer, tmp_path: Path
) -> None:
    database = postgres.new_database()
    with (
        served(base, database, packages=packages) as north,
        served(base, database, packages=packages) as south,
    ):
        async with open_replicas(database) as table:
            south.engine("hold")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ReplicaPublisher(table, MODEL).publish, make_weights(tmp_path / "1", "1"))
                # It is in the middle of its update, and the other one has ended it.
                await until(lambda: bool(south.engine("is_paused")["is_paused"]))
                await until(lambda: north.engine("weight_info")["weight_version"] == "1")
                south.process.kill()
            assert [(one.url, one.weights) for one in await table.live(MODEL)] == [(north.url, 1)]
            port = south.url.removesuffix("/v1").rpartition(":")[2]
            await anyio.to_thread.run_sync(south.process.wait)
            with served(base, database, f"port={port}", packages=packages) as again:
                assert again.url == south.url
                assert again.engine("weight_info")["weight_version"] == "1"
                assert {(one.url, one.weights) for one in await table.live(MODEL)} == {
                    (north.url, 1),
                    (south.url, 1),
                }


@pytest.mark.promise("replicas:publish")
async def test_a_replica_that_is_too_slow_gets_no_calls_until_it_has_the_weights(
    base: Path, packages: Path, postgres: PostgresServer, tmp_path: Path
) -> None:
    database = postgres.new_database()
    with (
        served(base, database, packages=packages) as north,
        served(base, database, packages=packages) as south,
    ):
        async with open_replicas(database) as table:

            async def usable() -> list[str]:
                return [one.url for one in await table.live(MODEL) if one.problem is None]

            south.engine("hold")
            publisher = ReplicaPublisher(table, MODEL, seconds=3.0)
            weights = make_weights(tmp_path / "1", "1")
            while True:
                try:
                    await publisher.publish(weights)
                    break
                except WeightsFailure:
                    # On a busy machine, neither had them in time: once more.
                    pass
            assert await usable() == [north.url]
            south.engine("release")
            while len(await usable()) < 2:
                await anyio.lowlevel.checkpoint()
            assert south.engine("weight_info")["weight_version"] == "1"


@pytest.mark.promise("replicas:publish")
async def test_weights_that_no_replica_can_take_are_refused_with_the_reason(
    base: Path, packages: Path, postgres: PostgresServer, tmp_path: Path
) -> None:
    database = postgres.new_database()
    with served(base, database, packages=packages) as replica:
        async with open_replicas(database) as table:
            publisher = ReplicaPublisher(table, MODEL)
            weights = make_weights(tmp_path / "1", "1")
            shutil.rmtree(weights.folder)
            with pytest.raises(
                WeightsFailure,
                match=rf"^no replica of painter has taken the weights of version 1: {replica.url}: .*/1: no config\.json with",
            ):
                await publisher.publish(weights)
            # It is tried again, with what is there then.
            make_weights(tmp_path / "1", "1")
            while not [one for one in await table.live(MODEL) if one.problem is None]:
                await anyio.lowlevel.checkpoint()
            assert replica.engine("weight_info")["weight_version"] == "1"


@pytest.mark.promise("replicas:refused")
async def test_weights_without_a_replica_are_refused_in_one_line(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    database = postgres.new_database()
    async with open_replicas(database) as table:
        publisher = ReplicaPublisher(table, MODEL, patience=0.0)
        with pytest.raises(WeightsFailure) as failure:
            await publisher.publish(
                make_weights(tmp_path / "1", "1"),
                Probe(texts=(ProbeText(tokens=(1, 2), begin=1, logprobs=(-1.0,)),)),
            )
    assert str(failure.value) == (
        f"no replica of painter is registered in {database}; start one with agentflow serve-model --register"
    )


@pytest.mark.promise("replicas:refused")
async def test_a_server_that_can_not_take_the_published_weights_does_not_start(
    base: Path, packages: Path, postgres: PostgresServer, tmp_path: Path
) -> None:
    database = postgres.new_database()
    async with open_replicas(database) as table:
        await table.publish(MODEL, "1", str(make_weights(tmp_path / "1", "1").folder), None)
    with serve_model(base, database, "trains=false", packages=packages) as process:
        said = process.communicate()[1]
    assert process.returncode == 2
    assert said.splitlines()[-1] == (
        "agentflow: painter: its weights can't be changed while it runs; set trains=true"
    )


@pytest.mark.promise("replicas:refused")
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--address", "http://north:8000/v1"],
            "--address: the server is not registered; add --register, or leave it out",
        ),
        (["--register", "north"], "--register: write postgresql://user@host/database"),
    ],
)
def test_a_registration_that_can_not_be_used_is_refused_in_one_line(
    words: list[str], line: str, tmp_path: Path
) -> None:
    done = run_here("serve-model", "model", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (2, f"agentflow: {line}\n", "")
