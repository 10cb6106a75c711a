"""Bootstrap of a desktop: starts the X server and meanwhile loads the driver from standard input.

Its source is passed to the interpreter on the command line, so it imports nothing of this project.
"""

import importlib.abc
import importlib.machinery
import marshal
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

X_FOLDER = "/tmp/.X11-unix"


def start_x(options: Sequence[str]) -> int:
    """Start the X server; return a descriptor that becomes readable when it is ready."""
    os.makedirs(X_FOLDER, exist_ok=True)
    os.chmod(X_FOLDER, 0o1777)
    for stale in (f"{X_FOLDER}/X0", "/tmp/.X0-lock"):
        if os.path.lexists(stale):
            os.unlink(stale)
    ready, report = os.pipe()
    os.set_inheritable(report, True)
    # Only a socket in a directory: other commands of the instance cannot reach abstract ones.
    sockets = ["-nolisten", "tcp", "-nolisten", "local"]
    argv = ["Xvfb", ":0", "-displayfd", str(report), "-noreset", *sockets, *options]
    actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
    os.posix_spawn("/usr/bin/Xvfb", argv, os.environ, file_actions=actions)
    os.close(report)
    return ready


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importer of modules from compiled code; a name without code is an empty package."""

    def __init__(self, modules: dict[str, bytes]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module that it has."""
        if fullname not in self._modules:
            return None
        package = not self._modules[fullname]
        return importlib.machinery.ModuleSpec(fullname, self, is_package=package)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module's code."""
        code = self._modules[module.__name__]
        if code:
            loaded = marshal.loads(code)
            assert isinstance(loaded, CodeType)
            exec(loaded, module.__dict__)  # the server's own code


def main() -> None:
    """Start the X server and run the driver."""
    ready = start_x(sys.argv[1:])
    path, modules, driver = marshal.load(sys.stdin.buffer)
    sys.path += path
    sys.meta_path.insert(0, Loader(modules))
    importlib.import_module(driver).main(ready)


if __name__ == "__main__":
    main()
