"""`agentflow init`: a minimal settings file and seeds to begin with, or an example."""

import argparse
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from agentflow._import_path import own_environment
from agentflow._typeguards import is_object
from agentflow.cli._output import Exit, print_json, print_progress
from agentflow.errors import ConfigurationError
from agentflow.extras import add_command

_SETTINGS = """\
# Question-answer pairs from seeds. Check it, look at two seeds, then run it:
#   agentflow check config.yaml
#   agentflow preview config.yaml
#   agentflow synth config.yaml
seeds_file: seeds.jsonl
output_dir: output
tools: [rag_search, rag_get]

# Without this, the bundled corpus is searched. A folder of texts, HTML, PDF or Office files:
# resource_init_configs:
#   rag: {index_path: documents}

# The offline engine needs no key. Any other model takes its key from the environment or a file .env:
model_name: offline
# model_name: gpt-4.1-2025-04-14

max_depth: 4
branching_factor: 2
"""
_SEEDS = """\
{"content": "Explore the Grey Petrel: who commanded her, where she was built and what became of her."}
{"content": "Explore Skyreach Observatory and the people and instruments connected with it."}
{"content": "Explore the lighthouses of Lucan Thorne and their keepers."}
"""
FILES = {"config.yaml": _SETTINGS, "seeds.jsonl": _SEEDS}
"""Content of the new files, by name."""


def run_init(arguments: argparse.Namespace) -> int:
    """Write the files; nothing is written if one of them exists.

    :raises ConfigurationError: one line, if a file exists or can't be written.
    """
    folder = Path(arguments.folder)
    if arguments.example:
        return _copy_example(arguments.example, folder, as_json=arguments.json)
    for name in FILES:
        if (folder / name).exists():
            raise ConfigurationError(
                f"{folder / name}: exists already; name an empty folder: agentflow init FOLDER"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: can't be written: {error.strerror}; name another folder"
        ) from None
    if arguments.json:
        print_json({"files": [str(folder / name) for name in FILES]})
        return Exit.DONE
    go = "" if folder.samefile(".") else f"cd {shlex.quote(arguments.folder)} && "
    sys.stdout.write(
        f"wrote {' and '.join(str(folder / name) for name in FILES)}\nnext: {go}agentflow check config.yaml\n"
    )
    return Exit.DONE


_LIBRARY = "library"
"""Folder of the parts that examples share."""


def _copy_example(name: str, folder: Path, *, as_json: bool) -> int:
    """Copy an example and fetch its model; nothing is written if the example is there, or its model can't be fetched."""
    package = Path(__file__).parents[1]
    # A wheel has them in the package, a checkout beside it.
    shipped = next(root / "examples" for root in (package, package.parent) if (root / "examples").is_dir())
    names = sorted(path.parent.name for path in shipped.glob("*/run.py"))
    if name not in names:
        raise ConfigurationError(f"--example: {name!r} is unknown; there are {', '.join(names)}")
    target = folder / "examples"
    if (target / name).exists():
        raise ConfigurationError(f"{target / name}: exists already; name another folder, or remove it")
    model = _fetch_model(shipped / name / "settings.yaml")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for part in (name, _LIBRARY):
            if not (target / part).exists():
                shutil.copytree(shipped / part, target / part, ignore=shutil.ignore_patterns("__pycache__"))
        # Without it, another package named `examples` would be imported.
        (target / "__init__.py").touch()
    except OSError as error:
        reason = error.strerror or error
        raise ConfigurationError(f"{target}: can't be written: {reason}; name another folder") from None
    if as_json:
        files = [str(path) for path in sorted((target / name).rglob("*")) if path.is_file()]
        print_json({"files": files, "model": str(model) if model else None})
        return Exit.DONE
    steps = [] if folder.samefile(".") else [f"cd {shlex.quote(str(folder))}"]
    if find_spec("torch") is None:
        steps.append(add_command("train"))
    if not own_environment(".venv-vllm").exists():
        steps.append("agentflow serve-model --install cpu")
    steps.append(f"python examples/{name}/run.py")
    sys.stdout.write(f"wrote {target / name}\nnext: {' && '.join(steps)}\n")
    return Exit.DONE


def _fetch_model(settings: Path) -> Path | None:
    """Fetch the model of an example, if its settings name a known one: `model: smollm2`."""
    import yaml

    from agentflow.serving import KNOWN_MODELS, fetch_model

    content: object = yaml.safe_load(settings.read_text(encoding="utf-8")) if settings.is_file() else None
    name = content.get("model") if is_object(content) else None
    return (
        fetch_model(name, report=print_progress) if isinstance(name, str) and name in KNOWN_MODELS else None
    )
