"""Checks of this installation: its extras, its bytecode, and the environments of vLLM and verl."""

import shlex
import subprocess
import sys
from functools import partial
from importlib.util import cache_from_source, find_spec
from pathlib import Path

import anyio.to_thread

from agentflow._import_path import own_environment
from agentflow.doctor._diagnosis import Diagnosis, DiagnosisState
from agentflow.errors import ConfigurationError
from agentflow.extras import DISTRIBUTION, add_command, list_extras
from agentflow.serving import ServingSettings

PRELOADED = ("numpy", "pandas")
"""Libraries that sandboxes import at their start, if they are installed."""
_CHECKOUT = Path(__file__).parents[2]

_diagnosis = partial(Diagnosis, area="installation")


async def examine_extras() -> Diagnosis:
    """List the extras that are missing."""
    extras = list_extras()
    if not extras:
        text = f"no metadata of {DISTRIBUTION}: install it with pip or uv"
        return _diagnosis(name="extras", state=DiagnosisState.MISSING, text=text)
    missing = [extra.name for extra in extras if extra.missing and extra.name != "all"]
    installed = ", ".join(extra.name for extra in extras if not extra.missing and extra.name != "all")
    if not missing:
        return _diagnosis(name="extras", state=DiagnosisState.WORKS, text=f"installed: {installed}")
    small = any(extra.name == "all" and extra.missing for extra in extras)
    command = add_command("all") if small else ""
    text = f"installed: {installed or 'none'}; missing: {', '.join(missing)} ({add_command('NAME')})"
    return _diagnosis(name="extras", state=DiagnosisState.PARTLY, text=text, command=command)


async def examine_bytecode() -> Diagnosis:
    """Look for the compiled modules of libraries that every sandbox imports, and can't compile for the next one."""
    folders = await anyio.to_thread.run_sync(_uncompiled)
    if not folders:
        return _diagnosis(name="bytecode", state=DiagnosisState.WORKS, text="modules are compiled")
    names = ", ".join(folder.name for folder in folders)
    return _diagnosis(
        name="bytecode",
        state=DiagnosisState.PARTLY,
        text=f"not compiled: {names}; every sandbox compiles them again, which takes a second",
        command=shlex.join([sys.executable, "-m", "compileall", "-q", "-j", "0", *map(str, folders)]),
    )


async def examine_serving() -> Diagnosis:
    """Look for vLLM in the environment that serves models."""
    try:
        python = ServingSettings(model="any").interpreter()
    except ConfigurationError as error:
        return _diagnosis(name="serving", state=DiagnosisState.MISSING, text=str(error))
    return await anyio.to_thread.run_sync(_environment, "serving", "vllm", python, "agentflow serve-model")


async def examine_verl() -> Diagnosis:
    """Look for verl in its environment."""
    return await anyio.to_thread.run_sync(
        _environment, "verl", "verl", own_environment(".venv-verl"), "backbone: verl"
    )


def _uncompiled() -> list[Path]:
    specs = [spec for name in PRELOADED if (spec := find_spec(name)) is not None]
    sources = [spec.origin for spec in specs if spec.origin is not None]
    return [Path(source).parent for source in sources if not Path(cache_from_source(source)).is_file()]


def _environment(name: str, distribution: str, python: Path, use: str) -> Diagnosis:
    version = ""
    if python.exists():
        probe = f"import importlib.metadata as m; print(m.version({distribution!r}))"
        done = subprocess.run([python, "-c", probe], check=False, capture_output=True, encoding="utf-8")
        version = done.stdout.strip()
    if version:
        return _diagnosis(name=name, state=DiagnosisState.WORKS, text=f"{distribution} {version} in {python}")
    made = (
        f"make .venv-{distribution}/.stamp"
        if (_CHECKOUT / "Makefile").is_file()
        else f"install {distribution} into an environment of its own and set `python`"
    )
    text = f"{use} needs {distribution} in its own environment: {made}"
    return _diagnosis(name=name, state=DiagnosisState.MISSING, text=text)
