"""Small root file system with its own Python, made of the distribution's files on this machine."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

PROGRAMS = ("bash", "cat", "env", "id", "ls", "sh", "sleep", "touch", "true")
_SKIPPED = shutil.ignore_patterns(
    "__pycache__", "test", "idlelib", "ensurepip", "lib2to3", "tkinter", "config-*"
)


def create_root(root: Path) -> None:
    """Create the system in an empty directory: Debian's Python, a shell, a few programs, and their libraries."""
    python = Path(os.path.realpath("/usr/bin/python3"))
    programs = [Path(os.path.realpath(str(shutil.which(name, path="/usr/bin:/bin")))) for name in PROGRAMS]
    modules = Path("/usr/lib") / python.name
    shutil.copytree(modules, root / modules.relative_to("/"), ignore=_SKIPPED, symlinks=False)
    for folder in ("bin", "etc", "home/agent", "proc", "sys", "dev", "tmp", "run", "opt/own"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, program in zip((*PROGRAMS, "python3"), (*programs, python), strict=True):
        shutil.copy(program, root / "bin" / name)
    for library in sorted({path for program in (*programs, python) for path in _libraries(program)}):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    for library in (root / modules.relative_to("/") / "lib-dynload").iterdir():
        for path in _libraries(library):
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy(path, target)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n", encoding="utf-8")
    (root / "opt/own/mark").write_text("its own\n", encoding="utf-8")


def _libraries(program: Path) -> list[str]:
    done = subprocess.run(["ldd", str(program)], capture_output=True, encoding="utf-8", check=False)
    words = [word for line in done.stdout.splitlines() for word in line.split()]
    return [word for word in words if word.startswith("/")]


def pack(root: Path, archive: Path) -> None:
    """Return it as an archive for `docker import`."""
    with tarfile.open(archive, "w") as file:
        file.add(root, ".")
