"""No file that a run leaves contains a secret, and only its user can read them."""

import gzip
import io
import logging
import os
import stat
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest

from agentflow.cli import main
from agentflow.errors import RunStopped, exit_report
from agentflow.journal import NewSeed
from agentflow.learner import TrainConfig, TrainRun
from agentflow.rollouts import RolloutConfig, RolloutRun, assign
from agentflow.runs import render_config
from agentflow.synthesis import SynthesisConfig
from agentflow.telemetry import configure_logging
from agentflow.testing import fake_endpoint
from mcp_servers.serving._settings import ServerSettings
from tests.agentflow.runs._planted import PROGRAM, SECRETS, database_settings, planted, server_settings
from tests.agentflow.synthesis._runs import run_to_the_end

SEEDS = [NewSeed("the lighthouse")]


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    stream = io.StringIO()
    configure_logging("debug", stream=stream)
    yield stream
    root.handlers, root.level = handlers, level


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Settings that contain every kind of secret."""
    for name, value in planted("process").items():
        monkeypatch.setenv(name, value)
    program = tmp_path / "server.py"
    program.write_text(PROGRAM, encoding="utf-8")
    own = planted("settings")
    return {
        "output_dir": str(tmp_path / "out"),
        "resource_init_configs": {
            "mcp": {"servers": server_settings(program, sys.executable)},
            "sql": database_settings(tmp_path),
            "web": {"serper_api_key": own["serper_api_key"], "jina_api_key": own["jina_api_key"]},
        },
        "available_tools": ["mcp_local_look"],
        "on_missing_tool": "drop",
        "model_name": "fake",
        "api_key": own["api_key"],
        "verifier_model": {"api_key": own["verifier_model.api_key"]},
        "sandbox_token": own["sandbox_token"],
    }


def leaked(data: bytes) -> list[tuple[str, str]]:
    """Return the planted secrets in some bytes."""
    return [place for place, value in SECRETS.items() if value.encode() in data]


def scan(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the planted secrets in the files of a directory, by file."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            if secrets := leaked(data):
                found[path.name] = secrets
    return found


def open_to_others(folder: Path) -> list[str]:
    """Return the files and directories that another user could read."""
    return [path.name for path in [folder, *folder.rglob("*")] if stat.S_IMODE(path.stat().st_mode) & 0o077]


@pytest.mark.promise("secrets:files")
@pytest.mark.promise("secrets:modes")
async def test_a_synthesis_and_a_rollout_leave_no_planted_secret_and_no_file_for_others(
    settings: dict[str, object], log: io.StringIO, tmp_path: Path
) -> None:
    assert len(SECRETS) == 40
    before = os.umask(0o002)
    try:
        async with fake_endpoint() as url:
            small = {"max_depth": 2, "depth_threshold": 1, "number_of_seed": 1, "base_url": url}
            synthesis = SynthesisConfig.model_validate({**settings, **small, "control": False})
            await run_to_the_end(synthesis, SEEDS)
            tasks = tmp_path / "tasks.jsonl"
            tasks.write_text('{"question": "Who?", "answer": "Nobody"}\n', encoding="utf-8")
            rollout = {"output_dir": str(tmp_path / "rollout"), "data_path": str(tasks), "base_url": url}
            worked = RolloutConfig.model_validate({**settings, **rollout})
            await RolloutRun(worked).run(assign(worked))
    finally:
        os.umask(before)
    journals = [tmp_path / "out" / "journal.db", tmp_path / "rollout" / "journal.db"]
    assert all(b"it can't be found with" in journal.read_bytes() for journal in journals)
    assert scan(tmp_path / "out") == {}
    assert scan(tmp_path / "rollout") == {}
    assert leaked(log.getvalue().encode()) == []
    assert open_to_others(tmp_path / "out") == open_to_others(tmp_path / "rollout") == []


@asynccontextmanager
async def refusing_endpoint() -> AsyncGenerator[str]:
    """An endpoint that refuses every request, and repeats its key and other secrets in the refusal."""

    async def refuse(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            asked = (await stream.receive()).decode(errors="replace")
            key = next(line for line in asked.splitlines() if line.lower().startswith("authorization:"))
            body = f'{{"error": {{"message": "Incorrect API key: {key}; see https://a.example/?key={SECRETS["query", "key"]}"}}}}'
            head = f"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            await stream.send(f"{head}Connection: close\r\n\r\n{body}".encode())

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with anyio.create_task_group() as group:
        group.start_soon(listener.serve, refuse)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
        group.cancel_scope.cancel()
    await listener.aclose()


@pytest.mark.promise("secrets:files")
async def test_an_endpoint_that_repeats_the_key_leaves_it_nowhere(
    settings: dict[str, object], log: io.StringIO, tmp_path: Path
) -> None:
    async with refusing_endpoint() as url:
        config = SynthesisConfig.model_validate(
            {**settings, "base_url": url, "number_of_seed": 1, "control": False}
        )
        with pytest.raises(RunStopped) as raised:
            await run_to_the_end(config, SEEDS)
    assert "Incorrect API key" in str(raised.value)
    assert leaked(str(raised.value).encode()) == []
    assert scan(tmp_path / "out") == {}
    assert leaked(log.getvalue().encode()) == []


@pytest.mark.promise("secrets:files")
def test_printed_settings_and_reports_of_a_crash_contain_no_planted_secret(
    settings: dict[str, object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SynthesisConfig.model_validate(settings)
    resources = {"resource_init_configs": settings["resource_init_configs"], "api_key": settings["api_key"]}
    training = TrainConfig.model_validate({"episodes": resources, "engine": {"api_key": settings["api_key"]}})
    server = ServerSettings.model_validate(
        {"backends": settings["resource_init_configs"], "token": settings["api_key"]}
    )
    assert leaked("".join(map(render_config, (config, training, server))).encode()) == []
    monkeypatch.setenv("AGENTFLOW_TRACEBACK", "1")
    try:
        raise ValueError(f"unusable: {settings} {planted('process')}")
    except ValueError as error:
        report = exit_report(error)
    assert leaked((report.message + capsys.readouterr().err).encode()) == []


@pytest.mark.promise("secrets:resume")
async def test_a_run_resumes_with_other_keys_and_its_settings_file_names_each_missing_variable(
    settings: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with fake_endpoint() as url:
        small = {"max_depth": 2, "depth_threshold": 1, "number_of_seed": 1, "base_url": url, "control": False}
        config = SynthesisConfig.model_validate({**settings, **small})
        await run_to_the_end(config, SEEDS)
        other = SynthesisConfig.model_validate({**settings, **small, "api_key": "another-k3y"})
        resumed, _ = await run_to_the_end(other, SEEDS)
        assert resumed.nothing_to_do
        written = tmp_path / "out" / "settings.yaml"
        monkeypatch.chdir(tmp_path)
        prefix = "AGENTFLOW_RESOURCE_INIT_CONFIGS__MCP__SERVERS__LOCAL"
        capsys.readouterr()
        missing: list[str] = []
        while main(["synth", str(written), "--print-config"]) == 2:
            line = capsys.readouterr().err
            assert line.count("\n") == 1 and "is masked (***); set the variable " in line
            missing.append(line.partition("set the variable ")[2].partition(",")[0])
            monkeypatch.setenv(
                missing[-1], "n3w-value" if "URL" not in missing[-1] else "http://127.0.0.1:9/mcp"
            )
            assert len(missing) < 60
    assert "GITHUB_PAT" in missing
    assert f"{prefix}__ARGS__0" in missing
    assert "AGENTFLOW_SANDBOX_TOKEN" in missing
    assert not any(name.endswith(("__API_KEY", "SERPER_API_KEY", "AGENTFLOW_API_KEY")) for name in missing)


@pytest.mark.promise("secrets:files")
@pytest.mark.promise("secrets:modes")
async def test_a_training_on_such_settings_shows_and_leaves_no_planted_secret(
    settings: dict[str, object], log: io.StringIO, tmp_path: Path
) -> None:
    tasks, shown = tmp_path / "tasks.jsonl", list[str]()
    tasks.write_text('{"question": "Who?", "answer": "Nobody"}\n', encoding="utf-8")
    names = ("resource_init_configs", "available_tools", "on_missing_tool", "api_key", "sandbox_token")
    async with fake_endpoint() as url:
        config = TrainConfig.model_validate({
            "backbone": "debug",
            "output_dir": str(tmp_path / "training"),
            "tasks": {"data_path": str(tasks)},
            "episodes": {"base_url": url, "model_name": "fake", **{name: settings[name] for name in names}},
        })  # fmt: skip
        await TrainRun(config, say=shown.append).run()
    assert "it can't be found with" in "".join(shown)
    assert leaked("".join([*shown, log.getvalue()]).encode()) == []
    assert scan(tmp_path / "training") == {}
