"""Launches on a Ray cluster of two machines, with workers and machines that are killed and join again."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen

import anyio
import pytest
from sqlalchemy import make_url

from tests._postgres import PostgresServer, postgres_server
from tests.agentflow.cli._programs import run_here
from tests.agentflow.launch._cluster import HEAD, MEMBER, Cluster, cluster, relayed
from tests.agentflow.launch._launched import (
    COMMANDS,
    ROUNDS,
    Disturbances,
    Shared,
    ended,
    files,
    kill,
    let_pass,
    one_machine,
    suspended,
    words,
)
from tests.agentflow.learner._models import save_tiny_model
from tests.agentflow.learner._training import a_backbone, a_loop
from tests.system._supervised import Endpoint, endpoint, wait_for

pytestmark = pytest.mark.timeout(300)

BEFORE = 4
"""Calls answered before workers of two machines hold seeds."""


@pytest.fixture(scope="module")
def machines() -> Generator[Cluster]:
    """Return a running cluster."""
    with cluster() as made:
        made.start(HEAD)
        made.start(MEMBER)
        yield made


class Launch:
    """Launch on a cluster, with the services that it uses."""

    def __init__(
        self, process: "Popen[str]", shared: Shared, at: Endpoint, again: Callable[[], "Popen[str]"]
    ) -> None:
        self.process = process
        self.shared = shared
        self.at = at
        self.again = again


@contextmanager
def launch(
    command: str,
    machines: Cluster,
    postgres: PostgresServer,
    folder: Path,
    seeds: int = 6,
    *,
    outside: bool = False,
) -> Generator[Launch]:
    """Launch a command whose model calls wait after the first ones.

    :param outside: launch it with Ray's client on a machine that is not in the cluster.
    """
    inside = () if outside else ("ip", "netns", "exec", machines.namespace(HEAD))
    on = f"ray://{machines.addresses[HEAD]}:10001" if outside else machines.address
    with ExitStack() as stack:
        at = stack.enter_context(endpoint(hold_after=BEFORE, log=folder / "log"))
        url = make_url(postgres.new_database())
        database = stack.enter_context(relayed(machines.bridge, postgres.port))
        model_port = make_url(at.url).port
        assert model_port is not None
        model = stack.enter_context(relayed(machines.bridge, model_port))
        there = Endpoint(f"http://{machines.bridge}:{model}/v1")
        journal = str(url.set(host=machines.bridge, port=database))
        (folder / "work").mkdir()
        given = words(command, folder / "work", there, seeds)

        def start() -> "Popen[str]":
            process = stack.enter_context(
                Popen(
                    [
                        *(*inside, sys.executable, "-m", "agentflow.cli"),
                        *("launch", "--on", on, "--working-dir", ".", *given),
                        *(f"output_dir={folder / 'out'}", f"journal={journal}"),
                    ],
                    cwd=folder / "work",
                    # The workers get it with the command: the raylets do not have it.
                    env=machines.environment() | {"OPENAI_API_KEY": "key-of-the-launch"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    encoding="utf-8",
                )
            )
            stack.callback(process.kill)
            return process

        yield Launch(start(), Shared(str(url)), at, start)


@pytest.mark.promise("launch:cluster")
@pytest.mark.parametrize("command", COMMANDS)
def test_two_machines_share_a_run_and_the_files_are_those_of_one(
    command: str, machines: Cluster, postgres: PostgresServer, tmp_path: Path
) -> None:
    whole, alone = one_machine(command)
    with launch(command, machines, postgres, tmp_path) as running:
        holders = running.shared.wait_for_holders(running.process, 2)
        assert set(holders.values()) == set(machines.addresses.values())
        running.at.release()
        ended(running.process)
        counted = running.at.stats()
    assert files(tmp_path / "out") == whole
    assert (counted["calls"], counted["repeated_bodies"]) == (alone["calls"], 0)
    assert running.shared.hosts() == set(machines.addresses.values())


@pytest.mark.promise("launch:cluster:kills")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_killed_workers_and_machines_change_no_byte_and_no_recorded_call_is_made_again(
    rounds: int, machines: Cluster, postgres: PostgresServer, tmp_path: Path
) -> None:
    seeds = 6 if rounds < 6 else 12
    whole, alone = one_machine("synth", seeds)
    unrecorded, last = 0, BEFORE
    with launch("synth", machines, postgres, tmp_path, seeds) as running:
        for number in range(rounds):
            holders = running.shared.wait_for_holders(running.process, 2)
            running.at.wait_for(calls=last + 2)
            (victim,) = (owner for owner, host in holders.items() if host == machines.addresses[MEMBER])
            if number % 2:
                kill(victim)
            else:
                machines.kill(MEMBER)
                machines.start(MEMBER)
            wait_for(lambda victim=victim: victim not in running.shared.holders())
            unrecorded += last - running.shared.recorded_calls()
            running.shared.wait_for_holders(running.process, 2)
            running.at.release()
            last = running.at.hold(1)
        running.at.release()
        ended(running.process)
        counted = running.at.stats()
    assert files(tmp_path / "out") == whole
    assert counted["distinct_bodies"] == alone["distinct_bodies"]
    assert counted["repeated_bodies"] - alone["repeated_bodies"] <= unrecorded


@pytest.mark.promise("launch:cluster:network")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_network_that_is_slow_or_cut_for_a_moment_changes_nothing(
    rounds: int, machines: Cluster, postgres: PostgresServer, tmp_path: Path
) -> None:
    seeds = 6 if rounds < 6 else 12
    whole, alone = one_machine("synth", seeds)
    last = BEFORE
    with launch("synth", machines, postgres, tmp_path, seeds) as running:
        for number in range(rounds):
            running.shared.wait_for_holders(running.process, 2)
            running.at.wait_for(calls=last + 2)
            # The answers are sent while the member is cut off or slow, and those of the other machine lead to its next call.
            with machines.slow(MEMBER) if number % 2 else machines.cut(MEMBER):
                running.at.release()
                last = running.at.hold(1)
                running.at.wait_for(calls=last)
        running.at.release()
        ended(running.process)
        counted = running.at.stats()
    assert running.shared.takeovers() == 0
    assert files(tmp_path / "out") == whole
    assert (counted["calls"], counted["repeated_bodies"]) == (alone["calls"], 0)


@pytest.mark.promise("launch:cluster:network")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_machine_that_is_away_for_longer_than_its_leases_loses_its_seeds_and_comes_back(
    rounds: int, machines: Cluster, postgres: PostgresServer, tmp_path: Path
) -> None:
    seeds = 3 * rounds
    whole, alone = one_machine("synth", seeds)
    with launch("synth", machines, postgres, tmp_path, seeds) as running:
        shared, at = running.shared, running.at
        disturbances = Disturbances(shared, tmp_path / "log")
        for number in range(rounds):
            holders = shared.wait_for_holders(running.process, 2)
            (victim,) = (owner for owner, host in holders.items() if host == machines.addresses[MEMBER])
            before = machines.losses()
            with suspended(machines.processes(MEMBER)) if number % 2 else machines.cut(MEMBER):
                disturbances.add()
                shared.end_lease(victim)
                let_pass(at, 2 * alone["calls"] // seeds)
                wait_for(lambda victim=victim: victim not in shared.holders())
                at.hold()
                wait_for(lambda before=before: machines.losses() > before)
            machines.rejoin(MEMBER)
        at.release()
        ended(running.process)
        counted = at.stats()
    assert shared.takeovers() >= rounds
    assert files(tmp_path / "out") == whole
    assert counted["distinct_bodies"] == alone["distinct_bodies"]
    again, allowed = disturbances.repeated()
    assert again <= allowed


@pytest.mark.promise("launch:cluster:database")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_database_that_is_killed_is_waited_for_on_both_machines(
    rounds: int, machines: Cluster, tmp_path: Path
) -> None:
    seeds = 6 if rounds < 6 else 12
    whole, alone = one_machine("synth", seeds)
    last = BEFORE
    with postgres_server() as server, launch("synth", machines, server, tmp_path, seeds) as running:
        for _ in range(rounds):
            running.shared.wait_for_holders(running.process, 2)
            running.at.wait_for(calls=last + 2)
            server.kill()
            running.at.release()
            last = running.at.hold(1)
            server.start()
        running.at.release()
        ended(running.process)
        counted = running.at.stats()
        assert running.shared.takeovers() == 0
    assert files(tmp_path / "out") == whole
    assert (counted["calls"], counted["repeated_bodies"]) == (alone["calls"], 0)


@pytest.mark.promise("launch:cluster:join")
def test_a_machine_that_joins_during_a_run_gets_work(
    machines: Cluster, postgres: PostgresServer, tmp_path: Path
) -> None:
    whole, _ = one_machine("synth")
    machines.kill(MEMBER)
    with launch("synth", machines, postgres, tmp_path) as running:
        holders = running.shared.wait_for_holders(running.process, 1)
        assert list(holders.values()) == [machines.addresses[HEAD]]
        machines.start(MEMBER)
        running.shared.wait_for_holders(running.process, 2)
        running.at.release()
        ended(running.process)
    assert files(tmp_path / "out") == whole
    assert running.shared.hosts() == set(machines.addresses.values())


@pytest.mark.promise("launch:cluster")
def test_an_interrupt_from_outside_stops_both_machines_and_the_same_command_resumes(
    machines: Cluster, postgres: PostgresServer, tmp_path: Path
) -> None:
    whole, _ = one_machine("synth")
    with launch("synth", machines, postgres, tmp_path, outside=True) as running:
        running.shared.wait_for_holders(running.process, 2)
        # The calls are released only afterwards: otherwise the runs could end before the request reaches them.
        running.process.send_signal(signal.SIGINT)
        said = ended(running.process, 130)
        assert said.splitlines()[-1] == (
            "agentflow: stopped: received SIGINT; run the same command again to resume"
        )
        assert running.shared.holders() == {}
        running.at.release()
        ended(running.again())
    assert files(tmp_path / "out") == whole


@pytest.mark.soak
@pytest.mark.promise("launch:cluster")
def test_a_launch_asks_again_when_the_process_of_the_head_that_serves_it_dies(
    machines: Cluster, postgres: PostgresServer, tmp_path: Path
) -> None:
    whole, _ = one_machine("synth")
    with launch("synth", machines, postgres, tmp_path, outside=True) as running:
        wait_for(machines.kill_server_of_client)
        running.at.release()
        assert "ray client server did not start" in ended(running.process)
    assert files(tmp_path / "out") == whole


@pytest.mark.promise("launch:cluster:training")
def test_a_training_is_placed_on_one_machine_and_writes_into_the_shared_folder(
    machines: Cluster, tmp_path: Path
) -> None:
    model = save_tiny_model(tmp_path / "model")
    anyio.run(a_loop(tmp_path / "played", a_backbone(model), steps=1).run)
    words = [
        *("policy.dtype=float32", "policy.device=cpu", "loss.kl_coef=0"),
        *(
            f"policy.model={model}",
            f"schedule.replay={tmp_path}/played/rollouts",
            f"output_dir={tmp_path}/run",
        ),
    ]
    done = subprocess.run(
        [
            *("ip", "netns", "exec", machines.namespace(HEAD), sys.executable, "-m", "agentflow.cli"),
            *("launch", "--on", machines.address, "train", *words),
        ],
        cwd=tmp_path,
        env=machines.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"Its model, figures and checkpoints are in {tmp_path}/run.\n")
    assert (tmp_path / "run/policy/config.json").is_file()
    assert done.stderr.count('"event": "host joined"') == 1, done.stderr
    # The same command finds that nothing is left to do.
    again = run_here("train", "--json", *words, cwd=tmp_path)
    assert json.loads(again.stdout.splitlines()[-1])["outcome"]["steps"] == 1


@pytest.mark.promise("launch:refused")
def test_a_cluster_that_is_not_there_is_reported_in_one_line(tmp_path: Path) -> None:
    done = run_here("launch", "--on", "127.0.0.1:1", "synth", "journal=postgresql://h/d", cwd=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last.partition(":1: ")[0]) == (2, "agentflow: --on 127.0.0.1"), done.stderr
