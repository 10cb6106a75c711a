"""Caching on disk."""

import os
from pathlib import Path

import pytest

from mcp_servers.core._disk_cache import DiskCache


@pytest.mark.promise("document:once")
def test_the_least_recently_used_entries_are_dropped(tmp_path: Path) -> None:
    store = DiskCache(tmp_path / "kept", 100)
    for stamp, name in enumerate("abcd"):
        store.put(name, bytes(24))
        os.utime(tmp_path / "kept" / name, (stamp, stamp))
    assert store.get("a") == bytes(24)
    store.put("e", bytes(24))
    assert [name for name in "abcde" if store.get(name)] == ["a", "d", "e"]
    store.put("large", bytes(101))
    assert store.get("large") is None
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["a", "d", "e"]


@pytest.mark.promise("document:once")
def test_where_nothing_can_be_written_nothing_is_kept_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = DiskCache(tmp_path / "file", 100)
    store.put("a", b"a")
    assert store.get("a") is None
