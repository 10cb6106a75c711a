"""The two printed commands that train, word for word; all that differs between machines is `train/config.yaml`."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from anyio.from_thread import start_blocking_portal

from agentflow.learner import load_train_config
from agentflow.learner.trackers import METRICS, read_figures
from agentflow.serving import ModelServer
from agentflow.serving._server import kept_port
from tests._real_model import real_model
from tests._vllm import PYTHON, as_it_was, make_environment
from tests.agentflow.cli.test_serve_model import STAND_IN
from tests.agentflow.compat._printed import printed
from tests.behaviour._tree import ROOT

SERVE, TRAIN = (
    line for line in printed("flow_grpo")["train"].text.splitlines() if line.startswith("bash train/")
)
REWARD = """
def odd_length(answer, task):
    return len(answer) % 2
"""
"""A reward that also tells answers of random weights apart."""

Configure = Callable[[Mapping[str, Any]], None]


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Copy the printed folder, and return a function that puts the settings for two cores in place of the published ones."""
    shutil.copytree(ROOT / "train", tmp_path / "train")
    program = tmp_path / "bin/python3"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    monkeypatch.chdir(tmp_path)
    published: dict[str, Any] = yaml.safe_load(
        (ROOT / "configs/train/smollm2_cpu.yaml").read_text(encoding="utf-8")
    )

    def write(changes: Mapping[str, Any]) -> None:
        config = published | {"output_dir": "run"}
        for name, section in changes.items():
            config[name] |= section
        Path("train/config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    return write


@contextmanager
def served() -> Generator["subprocess.Popen[bytes]"]:
    """Run the first printed command while a block runs; then press Ctrl-C."""
    with (
        open("serve.out", "wb") as output,
        subprocess.Popen(
            ["bash", "-c", SERVE], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as window,
    ):
        try:
            yield window
        finally:
            os.killpg(window.pid, signal.SIGINT)


def trained() -> list[dict[str, float | None]]:
    """Run the second printed command; return the figures of its steps."""
    done = subprocess.run(["bash", "-c", TRAIN], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + Path("serve.out").read_text(encoding="utf-8")
    assert Path("training_results/train.log").read_text(encoding="utf-8") == done.stdout
    return read_figures(Path("run") / METRICS)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.promise("compat:shell")
@pytest.mark.promise("training:serve")
def test_the_first_command_serves_at_the_address_of_the_settings_until_ctrl_c(
    configure: Configure, tmp_path: Path
) -> None:
    python = tmp_path / "vllm-python"
    python.write_text(STAND_IN, encoding="utf-8")
    python.chmod(0o755)
    with kept_port("127.0.0.1") as port:
        address = f"http://127.0.0.1:{port}"
        engine = {"base_url": address, "server": {"python": str(python), "device": "cpu"}}
        configure({"policy": {"model": str(tmp_path)}, "engine": engine})
        with served() as window:
            while "is served at" not in Path("serve.out").read_text(encoding="utf-8"):
                assert window.poll() is None, Path("serve.out").read_text(encoding="utf-8")
        assert window.returncode == 130
    line = Path("serve.out").read_text(encoding="utf-8")
    assert line == f"{tmp_path} is served at {address}/v1; its key is in run/engine/key\n"
    assert Path("training_results/serve.log").read_text(encoding="utf-8") == line
    key = Path("run/engine/key")
    assert key.stat().st_mode & 0o777 == 0o600
    config = load_train_config("train/config.yaml")
    assert config.engine.api_key.get_secret_value() == key.read_text(encoding="utf-8")


@pytest.mark.timeout(600)
@pytest.mark.promise("compat:shell")
@pytest.mark.promise("training:serve")
def test_the_second_command_trains_at_an_engine_whose_key_is_in_its_folder(
    vllm: ModelServer, configure: Configure
) -> None:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(as_it_was(vllm)) as model:
        Path("rewards.py").write_text(REWARD, encoding="utf-8")
        Path("run/engine").mkdir(parents=True)
        Path("run/engine/key").write_text(vllm.key, encoding="utf-8")
        configure(
            {
                "policy": {"model": str(model), "threads": 1},
                "optimizer": {"learning_rate": 1e-3},
                "tasks": {"metric": "rewards:odd_length"},
                "validation": {"data_path": None, "temperature": None},
                "schedule": {"steps": 1, "tasks_per_step": 1},
                "engine": {"base_url": vllm.url, "server": {}, "served_model_name": vllm.model},
            }
        )
        (step,) = trained()
        assert step["episodes/count"] == 8
        assert weights(Path("run/policy")) != weights(model)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.promise("compat:shell")
@pytest.mark.promise("training:serve")
def test_the_two_commands_train_smollm2(configure: Configure) -> None:
    make_environment()
    model = real_model()
    with kept_port("127.0.0.1") as port:
        engine = {
            "base_url": f"http://127.0.0.1:{port}",
            "server": {"python": str(PYTHON), "max_model_len": 1024},
        }
        configure({"policy": {"model": str(model)}, "engine": engine})
        with served() as window:
            steps = trained()
        assert window.returncode == 130
    assert [step["step"] for step in steps] == list(range(9))
    assert weights(Path("run/policy")) != weights(model)
    (begin, *_, end) = (step["validation/score"] for step in steps if "validation/score" in step)
    assert begin is not None
    assert end is not None
    assert end > begin
