"""Imports printed in the documentation of other systems, as other names of this project's packages.

::

    import agentflow.compat
    from synthesis import synthesize

Importing it adds a finder to `sys.meta_path`; nothing is loaded before a printed name is imported. A module of your
own with a printed name takes precedence. Every printed name and ours: docs/migrating-data-synthesis.md,
docs/migrating-flow-grpo.md and docs/migrating-tuner.md.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from agentflow._arguments import CommandParser
from agentflow._secrets import hide_arguments
from agentflow.errors import ConfigurationError

__all__ = [
    "PRINTED_MODULES",
    "ajet",
]

_AGENTJET: Final = "agentflow.tuner.agentjet"
PRINTED_MODULES: Final[Mapping[str, str]] = {
    "agentflow.agentflow": "agentflow",
    "agentflow.agentflow.solver": "agentflow.team",
    "agentflow.solver": "agentflow.team",
    "rollout": "agentflow.rollouts",
    "sandbox": "agentflow.sandbox",
    "synthesis": "agentflow.synthesis",
    "ajet": _AGENTJET,
    "ajet.schema": _AGENTJET,
    "ajet.schema.task": _AGENTJET,
    "ajet.task_judge": _AGENTJET,
    "ajet.task_judge.base_judge": _AGENTJET,
    "ajet.task_judge.env_service_as_judge": _AGENTJET,
    "ajet.task_rollout": _AGENTJET,
    "ajet.task_rollout.dashscope_llm_bridge": _AGENTJET,
    "ajet.tuner": _AGENTJET,
    "ajet.workflow": _AGENTJET,
}
"""Printed module -> module of this project. A submodule of the one is the submodule of the other."""


def install_finder() -> None:
    """Add the finder to `sys.meta_path`, once.

    Example: docs/migrating-data-synthesis.md.
    """
    if not any(isinstance(finder, _PrintedFinder) for finder in sys.meta_path):
        # First: the path finder would load `synthesis.api` a second time, from the folder of the aliased package.
        sys.meta_path.insert(0, _PrintedFinder())


class _PrintedFinder(MetaPathFinder):
    """Finder that resolves a printed name to the module it means."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        own_name = _target(fullname)
        if own_name is None:
            return None
        if "." not in fullname and (users := self._users_spec(fullname)) is not None:
            return users
        spec = find_spec(own_name)
        if spec is None:
            return None
        return ModuleSpec(
            fullname, _AliasLoader(own_name), is_package=spec.submodule_search_locations is not None
        )

    def _users_spec(self, name: str) -> ModuleSpec | None:
        """Return the spec of the user's own module: a file, a package, or a folder with Python files."""
        for finder in sys.meta_path:
            # A finder of an old library may lack the method; Python skips it, too.
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, None)
            if spec is not None and (spec.origin is not None or any(_python_files(spec))):
                return spec
        return None


class _AliasLoader(Loader):
    """Loader that puts the module that is meant under the printed name."""

    def __init__(self, target: str) -> None:
        self._target = target

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns the module that is in `sys.modules` after this.
        sys.modules[module.__name__] = import_module(self._target)


def _target(name: str) -> str | None:
    """Return the module that a name means, unless the name or its package is the user's own."""
    if (target := PRINTED_MODULES.get(name)) is not None:
        return target
    package, _, rest = name.rpartition(".")
    target = _target(package) if package else None
    if target is None or sys.modules.get(package) is not sys.modules.get(target):
        return None
    return f"{target}.{rest}"


def _python_files(spec: ModuleSpec) -> Iterator[Path]:
    """Yield Python files below a folder without `__init__.py`; a folder of results named `rollout` has none."""
    for folder in spec.submodule_search_locations or ():
        for pattern in ("*.py", "*/__init__.py"):
            yield from Path(folder).glob(pattern)


def ajet(arguments: Sequence[str] | None = None) -> int:
    """Run `ajet --conf FILE [--backbone verl|trinity|local|debug]`, and return its exit status.

    A file of AgentJet is run by `agentflow tune`, any other by `agentflow train`; further arguments are theirs.
    See docs/migrating-tuner.md.
    """
    from agentflow.cli import main

    parser = CommandParser(
        prog="ajet",
        description="Train an agent: agentflow tune or train with the options that AgentJet prints.",
        epilog="Further arguments are those of `agentflow tune` for files of AgentJet, else of `agentflow train`.",
        allow_abbrev=False,
    )
    parser.add_argument("--conf", metavar="FILE", help="settings file; same as --config FILE")
    parser.add_argument("--backbone", choices=("verl", "trinity", "local", "debug"), help="training backend")
    if arguments is None:
        hide_arguments(sys.argv)
    parsed, rest = parser.parse_known_args(arguments)
    words = [] if parsed.conf is None else [f"--config={parsed.conf}"]
    words += [] if parsed.backbone is None else [f"--backbone={parsed.backbone}"]
    if parsed.conf is None or not _is_of_agentjet(parsed.conf):
        return main(["train", *words, *rest])
    # In AgentJet's own checkout, too, its files use the names of this project.
    sys.modules["ajet"] = import_module(_AGENTJET)
    return main(["tune", *words, *rest])


def _is_of_agentjet(file: str) -> bool:
    from agentflow.settings import read_environment, read_file

    try:
        return "ajet" in read_file(file, read_environment())
    except ConfigurationError:
        return False  # the command reports it


install_finder()
