"""What a process shares by memory is found, however the kernel can be asked."""

import mmap
import os
from pathlib import Path

import pytest

from runtimes.process.linux._mappings import Mapping, read_all, shared_mappings


def find(mappings: list[Mapping], path: Path) -> list[Mapping]:
    """Those of one file."""
    return [mapping for mapping in mappings if mapping.path == os.fsencode(path)]


def test_a_shared_mapping_is_told_with_all_that_bringing_it_back_needs(tmp_path: Path) -> None:
    path = tmp_path / "a file\nof two lines"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE, offset=mmap.PAGESIZE):
        (found,) = find(shared_mappings("self"), path)
    info = path.stat().st_dev
    assert (found.length, found.offset) == (mmap.PAGESIZE, mmap.PAGESIZE)
    assert found.protection == mmap.PROT_READ | mmap.PROT_WRITE
    assert found.device == (os.major(info), os.minor(info))


def test_the_text_that_older_kernels_have_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), mmap.mmap(-1, 4096):
        asked = shared_mappings(os.getpid())
        assert read_all(Path("/proc/self/maps").read_bytes()) == asked
        assert find(asked, path)


def test_memory_of_ones_own_is_not_among_them() -> None:
    text = b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
    assert read_all(text) == []


def test_of_a_process_that_is_gone_nothing_can_be_told() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    with pytest.raises(FileNotFoundError):
        shared_mappings(child)
