"""Distribution of tests over processes: a file's tests, and all files that share a served model, stay together."""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler.loadfile import LoadFileScheduling  # pyright: ignore[reportMissingTypeStubs] - it is typed, and does not say so

_SERVED = re.compile(r"\b(vllm|smollm2): ModelServer\b")


class ByFile(LoadFileScheduling):
    """Scheduler that starts the served model, which takes a minute of two cores, in one process only."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "served" if _is_served(self.config.rootpath / file) else file


@cache
def _is_served(file: Path) -> bool:
    return _SERVED.search(file.read_text(encoding="utf-8")) is not None
