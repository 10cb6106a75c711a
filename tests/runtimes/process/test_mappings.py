"""Mappings of a process that lead out of it are found through every kernel interface."""

import mmap
import os
from pathlib import Path

import pytest

from runtimes.process.linux._mappings import Mapping, PrivateMappings, own_pages, parse_maps, shared_mappings


def find(mappings: list[Mapping], path: Path) -> list[Mapping]:
    """Return the mappings of one file."""
    return [mapping for mapping in mappings if mapping.path == os.fsencode(path)]


def test_a_shared_mapping_has_every_field_needed_to_restore_it(tmp_path: Path) -> None:
    path = tmp_path / "a file\nof two lines"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE, offset=mmap.PAGESIZE):
        (mapping,) = find(shared_mappings("self"), path)
    info = path.stat().st_dev
    assert (mapping.length, mapping.offset) == (mmap.PAGESIZE, mmap.PAGESIZE)
    assert mapping.protection == mmap.PROT_READ | mmap.PROT_WRITE
    assert mapping.device == (os.major(info), os.minor(info))


def test_the_text_format_of_older_kernels_gives_the_same_mappings(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), mmap.mmap(-1, 4096):
        queried = shared_mappings(os.getpid())
        assert parse_maps(Path("/proc/self/maps").read_bytes()) == queried
        assert find(queried, path)


def test_private_memory_is_not_listed() -> None:
    text = b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
    assert parse_maps(text) == []


def test_a_process_that_has_ended_has_no_mappings() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    with pytest.raises(FileNotFoundError):
        shared_mappings(child)


def test_private_mappings_of_files_are_found_unless_they_were_there_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * mmap.PAGESIZE))
    search = PrivateMappings()
    search.skip_present()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ):
        (mapping,) = find(search.of([str(tmp_path)]), path)
        assert not mapping.shared and mapping.length == 4 * mmap.PAGESIZE
        search.skip_present()
        assert find(search.of([str(tmp_path)]), path) == []


def test_older_kernels_find_the_same_private_mappings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ):
        queried = PrivateMappings().of([str(tmp_path)])
        # A request that the kernel does not know.
        monkeypatch.setattr("runtimes.process.linux._mappings._PROCMAP_QUERY", 0x6601)
        search = PrivateMappings()
        search.skip_present()
        assert find(search.of([str(tmp_path)]), path) == find(queried, path) != []


def test_the_written_pages_of_a_private_mapping_are_known(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8 * mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
        assert memory[5 * mmap.PAGESIZE] == 0
        for page in (1, 2, 6):
            memory[page * mmap.PAGESIZE] = 1
        (mapping,) = find(PrivateMappings().of([str(tmp_path)]), path)
        offsets = [
            ((start - mapping.start) // mmap.PAGESIZE, size // mmap.PAGESIZE)
            for start, size in own_pages(mapping)
        ]
    assert offsets == [(1, 2), (6, 1)]
