"""verl trains on a running Ray cluster, and leaves it as it was."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import pytest

from agentflow.learner._policy import PolicySettings
from agentflow.learner.local import LocalBackbone
from agentflow.learner.verl import VerlBackbone, VerlFailure, VerlSettings
from tests._verl import verl_python
from tests.agentflow.learner._models import save_tiny_model
from tests.agentflow.learner.verl import _head
from tests.agentflow.learner.verl._steps import LOSS, OPTIMIZER, episodes, weights_of
from tests.behaviour._tree import ROOT
from tests.system._supervised import wait_for

pytestmark = pytest.mark.timeout(900)

_KILLED = """
import sys
from agentflow.learner._policy import PolicySettings
from agentflow.learner.verl import VerlBackbone, VerlSettings
model, python, address, shared = sys.argv[1:]
VerlBackbone(PolicySettings(model=model, dtype="float32", device="cpu"), None,
             VerlSettings(python=python, ray_address=address, shared_folder=shared))
"""


class Head:
    """Ray cluster of one machine, with the Python of these tests."""

    def __init__(self, process: "Popen[str]") -> None:
        self._process = process
        self.address = self._read()
        self.actors()

    def actors(self) -> list[str]:
        """Use the whole cluster, then return the classes of the actors that live."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: list[str] = json.loads(self._read())
        # Ray may have started a worker for the head itself.
        self._own = set(self.processes())
        return found

    def workers(self) -> list[psutil.Process]:
        """Return the processes that were started since, and live."""
        return [process for process in set(self.processes()) - self._own if _name_of(process)]

    def processes(self) -> list[psutil.Process]:
        """Return all of its processes."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    tuning = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # The head has the worker that it uses, and no others.
        "RAY_prestart_worker_first_driver": "0",
    }
    with (
        pytest.MonkeyPatch.context() as patch,
        # The path of a socket is limited to about 100 characters.
        TemporaryDirectory(prefix="af-head-", dir="/tmp", ignore_cleanup_errors=True) as folder,
    ):
        # It listens on loopback only, and those that join it need the same variables.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", os.urandom(16).hex())
        with Popen(
            [sys.executable, _head.__file__, folder],
            env=os.environ | tuning,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        ) as process:
            cluster = Head(process)
            yield cluster
            below = cluster.processes()
            process.communicate()
        _, alive = psutil.wait_procs(below, timeout=30)
        assert alive == []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.promise("training:verl:cluster")
def test_verl_trains_on_a_running_ray_cluster_and_leaves_it_as_it_was(
    head: Head, model: Path, tmp_path: Path
) -> None:
    policy = PolicySettings(model=str(model), dtype="float32", device="cpu")
    shared = tmp_path / "shared"
    shared.mkdir()
    settings = VerlSettings(
        python=verl_python(), ray_address=head.address, shared_folder=shared, start_seconds=240
    )
    with (
        closing(LocalBackbone(policy, OPTIMIZER)) as local,
        closing(VerlBackbone(policy, OPTIMIZER, settings)) as verl,
    ):
        rows = episodes(local)
        expected, figures = local.step(rows, LOSS), verl.step(rows, LOSS)
        assert figures["step/loss"] == pytest.approx(expected["step/loss"], rel=1e-4, abs=1e-6)
        ours = weights_of(local.export(tmp_path / "local"))
        with pytest.raises(VerlFailure, match="another run of verl trains on this Ray cluster"):
            VerlBackbone(policy, OPTIMIZER, settings)
        theirs = weights_of(verl.export(tmp_path / "verl"))
        assert set(theirs) == set(ours)
        for name, values in theirs.items():
            assert np.abs(values - ours[name]).max() < 1e-6, name
        assert verl.log_probs(rows)[0] == pytest.approx(local.log_probs(rows)[0], abs=1e-5)
        workers = head.workers()
        assert workers
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert alive == []
    assert head.actors() == []
    assert list(shared.iterdir()) == []


@pytest.mark.promise("training:verl:cluster")
def test_a_killed_training_leaves_nothing_on_the_cluster(head: Head, model: Path, tmp_path: Path) -> None:
    words = [str(model), str(verl_python()), head.address, str(tmp_path)]
    with Popen([sys.executable, "-c", _KILLED, *words], cwd=ROOT, stdin=subprocess.DEVNULL) as process:
        wait_for(lambda: any(map(_is_queue, head.workers())) or process.poll() is not None)
        assert process.poll() is None
        process.kill()
    wait_for(lambda: not head.workers())
    assert head.actors() == []


def _is_queue(process: psutil.Process) -> bool:
    """Return whether it is verl's first actor beside the trainer."""
    return _name_of(process).startswith("ray::TransferQueue")


def _name_of(process: psutil.Process) -> str:
    try:
        # One that has ended and was not waited for has still a name.
        return "" if process.status() == psutil.STATUS_ZOMBIE else process.name()
    except psutil.NoSuchProcess:
        return ""
