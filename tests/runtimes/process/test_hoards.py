"""Without cgroups, memory outside of the address space of a process is limited as docs/security.md says."""

import os
import re
from pathlib import Path
from typing import cast

import pytest

from tests.attacks._degraded import report_without
from tests.runtimes.process.hoard_run import HOARDS, LIMITS

MODULE = "tests.runtimes.process.hoard_run"
PAGE = Path(__file__).parents[3] / "docs" / "security.md"
ROW = re.compile(r"^\| ([\w ]+) \| .* \| (\d+) MB \|$", re.MULTILINE)


@pytest.mark.promise("limits:uncounted")
def test_without_cgroups_each_kind_of_kernel_memory_is_limited_as_documented() -> None:
    kept = cast("dict[str, int]", report_without(("cgroups", "cpu-cgroup"), MODULE))
    documented = {name: int(most) for name, most in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    assert set(kept) == set(documented) == set(HOARDS)
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 9):
        kept = {name: size for name, size in kept.items() if not name.startswith("System V")}
    assert {name: size for name, size in kept.items() if size > documented[name]} == {}
    assert LIMITS.memory_bytes is not None
    # Together no more than a second limit: a process can have that much in its address space, too.
    assert sum(kept.values()) <= 1.5 * (LIMITS.memory_bytes >> 20)
