"""Modules and functions that settings name: `module:function` or `file.py:function`.

They are found next to the settings file, in the working directory, and wherever Python finds modules.
"""

import importlib
import sys
import traceback
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import blake2b
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

from agentflow.errors import ConfigurationError, error_line
from agentflow.settings._model import nearest

_folders: deque[Path] = deque(maxlen=4)
"""Directories of the settings files that were read last, the newest first: a run may read one of its sandbox, too."""
_PLACES: Final = "next to the settings file or in the working directory"


def find_near(file: Path) -> None:
    """Find modules next to this settings file from now on, before those next to earlier files."""
    folder = file.absolute().parent
    if folder in _folders:
        _folders.remove(folder)
    _folders.appendleft(folder)


def import_object(reference: str) -> object:
    """Return what `module:name` or `file.py:name` names. See docs/settings.md.

    :raises ConfigurationError: if there is none, or its module can't be imported; one line without the setting.
    """
    module_name, colon, name = reference.rpartition(":")
    if not (colon and module_name and name):
        raise ConfigurationError(f"{reference}: write module:function or file.py:function")
    module = import_named(module_name)
    target: object = module
    for step in name.split("."):
        if not hasattr(target, step):
            meant = nearest(step, [member for member in dir(target) if not member.startswith("_")])
            raise ConfigurationError(f"{reference}: {module_name} has no {step}{meant}")
        target = getattr(target, step)
    return target


def import_named(name: str) -> ModuleType:
    """Return the module of a dotted name, or of a file that ends in `.py`.

    Example::

        import_named("tools.py")  # next to the settings file, or in the working directory

    :raises ConfigurationError: if there is none, or it can't be imported; one line without the setting.
    """
    folders = list(dict.fromkeys([*_folders, Path.cwd()]))
    with _searched_first(folders):
        try:
            return _from_file(name, folders) if name.endswith(".py") else _from_name(name, folders)
        except ConfigurationError:
            raise
        except (Exception, SystemExit) as error:  # boundary: the user's code may raise anything
            raise ConfigurationError(_import_problem(name, error)) from None


def _from_file(name: str, folders: list[Path]) -> ModuleType:
    files = [folder / Path(name).expanduser() for folder in folders]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise ConfigurationError(f"{name}: there is no such file {_PLACES}")
    return _load(file.resolve())


def _from_name(name: str, folders: list[Path]) -> ModuleType:
    top = name.partition(".")[0]
    spec = None if top in sys.stdlib_module_names else PathFinder.find_spec(top, [*map(str, folders)])
    if spec is not None and spec.origin is not None and name == top and not spec.submodule_search_locations:
        return _load(Path(spec.origin).resolve())
    return importlib.import_module(name)


def _load(file: Path) -> ModuleType:
    """Return the module of a file; each file is executed once."""
    for module in (sys.modules.get("__main__"), sys.modules.get(file.stem), sys.modules.get(_unique(file))):
        module_file: object = getattr(module, "__file__", None)
        if module is not None and isinstance(module_file, str) and Path(module_file).resolve() == file:
            return module
    taken = file.stem in sys.modules or file.stem in sys.stdlib_module_names
    name = _unique(file) if taken else file.stem
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{file.name}: not a Python file")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _unique(file: Path) -> str:
    """Return a module name for a file whose own name belongs to another module."""
    return f"{file.stem}_{blake2b(str(file).encode(), digest_size=4).hexdigest()}"


@contextmanager
def _searched_first(folders: list[Path]) -> Generator[None]:
    """Let modules in these directories import each other: first in the block, and last afterwards."""
    wanted = [str(folder) for folder in folders]
    before = list(sys.path)
    sys.path[:0] = wanted
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = [*before, *(folder for folder in wanted if folder not in before)]


def _import_problem(name: str, error: Exception | SystemExit) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in (name, name.partition(".")[0]):
        return f"{name}: there is no such module {_PLACES}, and none is installed"
    if isinstance(error, SyntaxError):
        return f"{name}: {Path(error.filename or name).name}:{error.lineno}: {error.msg}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    reason = error_line(error) if isinstance(error, Exception) else f"it ended the program ({error.code!r})"
    return f"{name}: raised when it was imported, in {Path(last.filename).name}:{last.lineno}: {reason}"
