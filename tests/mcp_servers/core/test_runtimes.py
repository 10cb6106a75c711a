"""Selection of the runtime by a name, or by a name with options."""

import json
from pathlib import Path

import pytest

from agentflow.errors import ConfigurationError
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.settings import load_settings
from mcp_servers import RuntimeSettings
from mcp_servers.core import check_runtime, runtime_maker
from mcp_servers.serving._settings import ServerSettings
from runtimes import InstanceSpec
from runtimes.docker import DockerRuntime
from runtimes.process import ProcessRuntime


@pytest.mark.promise("docker:word")
@pytest.mark.parametrize("model", [ServerSettings, SandboxSettings])
def test_a_name_or_a_mapping_selects_the_runtime_in_code_files_and_the_environment(
    model: type[ServerSettings | SandboxSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model().runtime == "process"
    file = tmp_path / "settings.yaml"
    file.write_text("runtime: {name: docker, image: 'python:3.12', pool: 4, socket: /run/engine.sock}")
    chosen = load_settings(model, file).runtime
    assert isinstance(chosen, RuntimeSettings)
    assert (chosen.name, chosen.image, chosen.pool) == ("docker", "python:3.12", 4)
    assert load_settings(model, file, ["runtime=runc"]).runtime == "runc"
    prefix = str(model.model_config.get("env_prefix"))
    monkeypatch.setenv(f"{prefix}RUNTIME", "gvisor")
    assert load_settings(model, file).runtime == "gvisor"
    monkeypatch.setenv(f"{prefix}RUNTIME", json.dumps({"name": "runc", "cpus": 0.5}))
    chosen = load_settings(model).runtime
    assert isinstance(chosen, RuntimeSettings)
    assert (chosen.name, chosen.cpus) == ("runc", 0.5)


@pytest.mark.promise("docker:word")
def test_each_name_creates_its_runtime() -> None:
    made = {word: runtime_maker(word, InstanceSpec())() for word in ("process", "docker", "runc", "gvisor")}
    assert isinstance(made.pop("process"), ProcessRuntime)
    assert all(isinstance(runtime, DockerRuntime) for runtime in made.values())


@pytest.mark.promise("docker:word")
@pytest.mark.parametrize(
    ("choice", "line"),
    [
        ("dokcer", r"^no runtime 'dokcer'\. Did you mean 'docker'\?$"),
        (RuntimeSettings(name="runc", image="x"), r"^runtime: runc has no option image; docker does$"),
        (RuntimeSettings(name="process", cpus=1), r"^runtime: process has no option cpus; docker or runc or gvisor does$"),
    ],
)  # fmt: skip
def test_an_unknown_runtime_or_option_is_refused_in_one_line(
    choice: str | RuntimeSettings, line: str
) -> None:
    with pytest.raises(ConfigurationError, match=line):
        check_runtime(choice)


@pytest.mark.promise("docker:word")
def test_an_unknown_option_in_a_file_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("runtime: {name: docker, imge: x}")
    with pytest.raises(ConfigurationError, match=r"runtime.*imge.*image") as caught:
        load_settings(ServerSettings, file)
    assert "\n" not in str(caught.value)


@pytest.mark.promise("docker:word")
@pytest.mark.parametrize("idle", [True, False])
async def test_programs_get_the_processor_priority_of_the_selected_runtime(idle: bool) -> None:
    settings = SandboxSettings(runtime=RuntimeSettings(name="process", idle=idle), backends=["code"])
    async with Sandbox(settings) as sandbox:
        ran = await sandbox.execute(
            "code:run", {"code": "import os\nos.sched_getscheduler(0) == os.SCHED_IDLE"}
        )
    assert ran.data["value"] == str(idle)
