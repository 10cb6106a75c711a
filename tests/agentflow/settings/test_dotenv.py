"""`.env` is read because it lies in the working directory: it gives keys, addresses and plain values, and runs nothing."""

from pathlib import Path

import pytest

from agentflow.errors import ConfigurationError
from agentflow.learner import TrainConfig
from agentflow.sandbox import SandboxSettings
from agentflow.serving import ServingSettings
from agentflow.settings import Settings, load_settings
from agentflow.synthesis import SynthesisConfig
from mcp_servers.__main__ import main
from mcp_servers.serving._settings import ServerSettings

REFUSED: dict[type[Settings], list[str]] = {
    ServerSettings: [
        'BACKENDS={"mcp": {"servers": {"x": {"command": ["touch", "pwned"]}}}}',
        'BACKENDS__MCP__SERVERS__X__COMMAND=["touch", "pwned"]',
        'BACKENDS={"evil:Class": {}}',
        'SESSIONS={"mounts": {"a": "/etc"}}',
        "SESSIONS__MOUNTS__X=/etc",
        "SESSIONS__ENV__LD_PRELOAD=./evil.so",
        "SESSIONS__ARCHIVE__FOLDER=/etc",
        'RUNTIME={"name": "docker", "image": "evil/image"}',
    ],
    SynthesisConfig: [
        'IMPORTS=["evil.py"]',
        "SELECTION_STRATEGY=evil:pick",
        "SELECTION_STRATEGY=evil.py",
        "SANDBOX_CONFIG_PATH=evil.yaml",
        'RESOURCE_TYPES=["evil:Class"]',
        'RESOURCE_INIT_CONFIGS={"mcp": {}}',
        "JOURNAL=sqlite:////etc/x",
        "OUTPUT_DIR=/etc/x",
    ],
    TrainConfig: ["POLICY__TRUST_REMOTE_CODE=true", "POLICY__MODEL=./evil", "LOSS__NAME=evil:loss"],
    ServingSettings: ["PYTHON=./evil/python"],
    SandboxSettings: ['BACKENDS=["evil:Class"]', "SERVER_CONFIG=evil.yaml"],
}
TAKEN: dict[type[Settings], list[str]] = {
    ServerSettings: [
        "PORT=1", "HOST=127.0.0.1", "TOKEN=abc", 'TOKENS={"a": "b"}', "SESSIONS__MAX_SESSIONS=3", "LOG_LEVEL=debug",
        'RUNTIME={"name": "process", "idle": true}',
    ],
    SynthesisConfig: [
        "MODEL_NAME=Qwen/Qwen2.5", "BASE_URL=https://a.example/v1", "API_KEY=k", "MAX_DEPTH=3", "OUTPUT_DIR=out",
        'VERIFIER_MODEL={"api_key": "x", "base_url": "https://a.example/v1"}', "JOURNAL=postgresql://u:p@h/db",
    ],
    SandboxSettings: ["SERVER_URL=http://127.0.0.1:18890", "TOKEN=x"],
}  # fmt: skip


def cases(table: dict[type[Settings], list[str]]) -> list[tuple[type[Settings], str]]:
    return [(model, line) for model, lines in table.items() for line in lines]


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(model: type[Settings], line: str) -> str:
    variable = f"{model.model_config.get('env_prefix', '')}{line}"
    Path(".env").write_text(f"{variable}\n", encoding="utf-8")
    return variable.partition("=")[0]


@pytest.mark.promise("settings:dotenv")
@pytest.mark.parametrize(("model", "line"), cases(REFUSED))
def test_a_setting_that_can_name_code_or_files_is_refused_from_dotenv(
    model: type[Settings], line: str
) -> None:
    variable = write(model, line)
    with pytest.raises(
        ConfigurationError, match=r"^\.env: AGENTFLOW_\w+ can name code or files, and \.env may hold only "
    ) as raised:
        load_settings(model)
    named = str(raised.value).split()[1]
    assert variable.startswith(named) or named.startswith(variable)


@pytest.mark.promise("settings:dotenv")
@pytest.mark.parametrize(("model", "line"), cases(TAKEN))
def test_keys_addresses_and_plain_values_are_taken_from_dotenv(model: type[Settings], line: str) -> None:
    name = (
        write(model, line).removeprefix(str(model.model_config.get("env_prefix"))).partition("__")[0].lower()
    )
    assert name in load_settings(model).model_fields_set


@pytest.mark.promise("settings:dotenv")
def test_a_server_started_beside_a_hostile_dotenv_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    write(ServerSettings, 'BACKENDS={"evil:Class": {}}')
    Path("evil.py").write_text("open('pwned', 'w')\n", encoding="utf-8")
    assert main(["bash"]) == 2
    assert capsys.readouterr().err.startswith("mcp_servers: .env: AGENTFLOW_SERVER_BACKENDS can name code")
    assert not Path("pwned").exists()


@pytest.mark.promise("secrets:arguments")
@pytest.mark.parametrize(
    "word", ["tokens={a: s3cret", "tokens=[s3cret", "tokens:=x={s3cret", ".tokens=s3cret"]
)
def test_a_mistyped_setting_is_refused_without_its_value(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bash", word]) == 2
    said = capsys.readouterr().err
    assert "tokens" in said
    assert "s3cret" not in said
