"""Filter of saved states: what another QEMU writes is refused, and nothing is loaded from it."""

import os

import pytest

from agentflow.errors import RuntimeFailure
from runtimes.qemu import _memory

HEAD = b"QEVM\0\0\0\3\7\0\0\0\3q35\1\0\0\0\2\3ram\0\0\0\0\0\0\0\4"
SIZES = (
    (0x4000 | 4).to_bytes(8, "big") + b"\6memory" + (0x4000).to_bytes(8, "big") + (0x10).to_bytes(8, "big")
)
PART = b"\x7e\0\0\0\2\3\0\0\0\2"


@pytest.mark.promise("qemu:fork:memory")
@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"", "ends early"),
        (b"something else entirely", "unknown format"),
        (HEAD + SIZES[:-8] + bytes(8), "unknown format"),
        (HEAD + SIZES + PART, "ends early"),
        (HEAD + SIZES + PART + (0x1000 | 0x40).to_bytes(8, "big") + b"\6memory", "unknown format"),
    ],
    ids=["empty", "other", "sizes", "truncated", "compressed"],
)
def test_a_state_in_another_format_is_refused_in_one_line(stream: bytes, message: str) -> None:
    reader, writer = os.pipe()
    os.write(writer, stream)
    os.close(writer)
    memory = _memory.create_memory(0x4000)
    target = os.open(os.devnull, os.O_WRONLY)
    with pytest.raises(RuntimeFailure, match=message):
        _memory.write_changes(reader, target, _memory.map_memory(memory))
    os.close(memory)


@pytest.mark.promise("qemu:fork:memory")
def test_equal_pages_are_left_out_and_the_others_are_kept() -> None:
    memory = _memory.create_memory(0x4000)
    os.pwrite(memory, b"b" * 0x1000, 0x1000)
    same_block, zero, full = 0x20, 0x02, 0x08
    pages = [
        (zero, 0x0000, b"\6memory\0"),
        (full | same_block, 0x1000, b"b" * 0x1000),
        (zero | same_block, 0x1000, b"\0"),
        (full | same_block, 0x2000, b"c" * 0x1000),
    ]
    records = [(address | flags).to_bytes(8, "big") + content for flags, address, content in pages]
    end = (0x10).to_bytes(8, "big") + b"\x7e\0\0\0\2\4devices"
    kept = (0x1000 | zero).to_bytes(8, "big") + b"\6memory\0" + records[3]
    reader, writer = os.pipe()
    os.write(writer, HEAD + SIZES + PART + b"".join(records) + end)
    os.close(writer)
    target = os.memfd_create("target")
    _memory.write_changes(reader, os.dup(target), _memory.map_memory(memory))
    assert os.pread(target, 1 << 16, 0) == HEAD + SIZES + PART + kept + end
    os.close(target)
    os.close(memory)
