"""`agentflow train`, as somebody starts it."""

import json
import sys
from pathlib import Path

import anyio
import numpy as np
import pytest
from aiohttp import web
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType] - typed in part

from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.learner import _engine, claimed_engine, load_train_config
from agentflow.learner._run import make_backbone
from agentflow.serving._server import kept_port
from tests.agentflow.cli._programs import run
from tests.agentflow.learner._models import save_tiny_model
from tests.agentflow.learner._training import a_backbone, a_loop

PROGRAM = "agentflow.cli"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory of the command."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.promise("training:debug")
@pytest.mark.promise("training:command")
def test_rollouts_are_shown_without_settings(folder: Path) -> None:
    ended = run(PROGRAM, "train", "--backbone=debug", cwd=folder, python=sys.executable)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("task bamboogle_")
    assert ended.stdout.count("    reward: ") == 4
    assert list(folder.iterdir()) == []


@pytest.mark.promise("training:command")
def test_invalid_settings_give_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["schedule.step=3"], "schedule.step is unknown; did you mean steps?"),
        (["tasks.data_path=x"], "policy.model is missing; name the folder of the model to train"),
        (["--config=none.yaml"], "none.yaml: no such file"),
        (["policy.model=a/b/c", "tasks.benchmark_name=bamboogle"], "policy.model: there is no folder a/b/c"),
        (
            ["policy.model=x", "--resume=always", "tasks.benchmark_name=bamboogle"],
            "resume: training_results contains no run to resume",
        ),
    ):
        assert main(["train", *words]) == 2
        said = capsys.readouterr().err.splitlines()
        assert message in said[-1]
        assert not any("Traceback" in line for line in said)


@pytest.mark.promise("training:serve")
def test_an_engine_that_can_not_be_served_gives_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("file").touch()
    address = "engine.base_url=http://127.0.0.1:1"
    for words, message in (
        ([address], "policy.model is missing; name the folder of the model to train"),
        (["policy.model=./none", address], "policy.model: there is no folder ./none; name another"),
        (["policy.model=m"], "engine.base_url: it is not set, so the training starts its engine itself"),
        (["policy.model=m", "engine.base_url=https://h"], "--serve needs an address of this machine"),
        (["policy.model=m", address, "output_dir=/usr"], "output_dir: /usr is shared with other files"),
        (["policy.model=m", address, "output_dir=file/x"], "output_dir: file/x can't be written: Not a"),
        (["policy.model=m", address, "engine.server.python=none"], "python: there is no none"),
    ):
        assert main(["train", "--serve", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


@pytest.mark.promise("training:serve")
def test_a_training_without_its_engine_ends_in_one_line_that_says_how_to_start_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_engine, "CONNECT_SECONDS", 0.2)
    words = ["policy.model=m", "tasks.benchmark_name=bamboogle", "engine.base_url=http://127.0.0.1:1"]
    assert main(["train", *words]) == 3
    said = capsys.readouterr().err.splitlines()
    message = "no engine answers at http://127.0.0.1:1; start it first: agentflow train --serve with the same settings"
    assert message in said[-1]
    assert not any("Traceback" in line for line in said)


@pytest.mark.promise("training:serve")
async def test_a_training_waits_for_an_engine_that_is_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine, "CONNECT_SECONDS", 0.2)
    with kept_port("127.0.0.1") as port:
        config = load_train_config(
            overrides=["policy.model=m", f"engine.base_url=http://127.0.0.1:{port}/v1", "output_dir=run"]
        )
        runner = web.AppRunner(application_of_engine())
        await runner.setup()
        with anyio.fail_after(60), claimed_engine(config):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_engine.wait_for_engine, config)
                await anyio.wait_all_tasks_blocked()
                await web.TCPSite(runner, "127.0.0.1", port).start()
        await runner.cleanup()


def application_of_engine() -> web.Application:
    """Return a server that says that it is healthy."""

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response()

    application = web.Application()
    application.router.add_get("/health", healthy)
    return application


@pytest.mark.promise("training:command")
def test_the_settings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["policy.model=m", "engine.api_key=sesame", "--backbone=debug"]
    assert main(["train", "--print-config", *words]) == 0
    said = capsys.readouterr().out
    assert "backbone: debug" in said
    assert "tasks_per_step: 32" in said
    assert "sesame" not in said


@pytest.mark.promise("training:command")
@pytest.mark.promise("training:reproducible")
@pytest.mark.timeout(300)
def test_stored_rollouts_train_a_model_and_a_second_run_has_nothing_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_tiny_model(folder / "model")
    anyio.run(a_loop(folder / "played", a_backbone(model), steps=2).run)
    words = [
        "train",
        "--json",
        f"policy.model={model}",
        "policy.dtype=float32",
        "policy.device=cpu",
        "loss.kl_coef=0",
        "schedule.replay=played/rollouts",
        "output_dir=run",
    ]
    for _ in range(2):
        capsys.readouterr()
        assert main(words) == 0
        outcome = json.loads(capsys.readouterr().out)["outcome"]
        assert (outcome["steps"], outcome["version"], outcome["policy"]) == (2, 2, "run/policy")
    assert len((folder / "run/metrics.jsonl").read_text().splitlines()) == 2
    weights = [(folder / name / "model.safetensors").read_bytes() for name in ("run/policy", "model")]
    assert weights[0] != weights[1]


@pytest.mark.promise("training:processes")
def test_processes_that_were_not_started_are_an_error_of_one_line() -> None:
    config = load_train_config(overrides=["policy.model=m", "policy.processes=2"])
    with pytest.raises(ConfigurationError, match=r"policy\.processes: 2 are set and 1 started"):
        make_backbone(config)


@pytest.mark.soak
@pytest.mark.promise("training:processes")
def test_the_processes_of_the_settings_make_the_steps_of_one(folder: Path) -> None:
    model = save_tiny_model(folder / "model")
    anyio.run(a_loop(folder / "played", a_backbone(model), steps=2).run)
    words = [
        *("train", f"policy.model={model}", "policy.dtype=float32", "policy.device=cpu", "loss.kl_coef=0"),
        *("schedule.replay=played/rollouts", "tasks.benchmark_name=bamboogle"),
    ]
    for count in (1, 2):
        ended = run(
            PROGRAM,
            *words,
            f"policy.processes={count}",
            f"output_dir={count}",
            cwd=folder,
            python=sys.executable,
        )
        assert ended.returncode == 0, ended.stderr
    one, two = (load_file(folder / name / "policy/model.safetensors") for name in ("1", "2"))
    assert all(np.allclose(one[name], two[name], rtol=0, atol=1e-5) for name in one)
    ended = run(PROGRAM, "train", "policy.model=m", "policy.processes=2", cwd=folder, python=sys.executable)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
