"""Programs and modules that are found without the working directory, which may belong to somebody else."""

import os
import sys
from pathlib import Path
from typing import Final

_OWN: Final = Path(__file__).parents[1]
"""Directory of our packages: a checkout, or that of installed packages."""


def module_command(module: str) -> list[str]:
    """Return the command that runs a module of ours in this interpreter; it imports nothing from the working directory.

    >>> module_command("mcp_servers")[-2:]
    ['-m', 'mcp_servers']
    """
    return [sys.executable, *([] if _is_ours(os.getcwd()) else ["-P"]), "-m", module]


def import_path() -> list[str]:
    """Return the directories that this process imports from, without the working directory."""
    here = os.getcwd()
    return [path for path in sys.path if path and (path != here or _is_ours(path))]


def own_environment(name: str) -> Path:
    """Return the Python of an environment such as `.venv-vllm`, in the checkout or beside the environment of this interpreter.

    One in the working directory is not used: it could run anything.
    """
    # A wheel's packages lie in site-packages, where no environment belongs.
    checkout = [_OWN] if (_OWN / "pyproject.toml").is_file() else []
    interpreters = [folder / name / "bin" / "python" for folder in (*checkout, Path(sys.prefix).parent)]
    return next((interpreter for interpreter in interpreters if interpreter.exists()), interpreters[0])


def _is_ours(folder: str) -> bool:
    return Path(folder) == _OWN
