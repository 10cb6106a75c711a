"""Files of the repository, for tests."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("agentflow", "mcp_servers", "runtimes")


def files(*suffixes: str) -> list[Path]:
    """Return every file that is, or would be, tracked; with suffixes, only files that end in one of them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout
    paths = (ROOT / name for name in listed.split("\0") if name)
    return sorted(path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes))


def source_modules() -> list[Path]:
    """Return the modules of the installed packages."""
    return [path for path in files(".py") if path.relative_to(ROOT).parts[0] in SOURCES]


def name(path: Path) -> str:
    """Return a path relative to the repository."""
    return str(path.relative_to(ROOT))
