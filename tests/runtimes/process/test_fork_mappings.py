"""A fork shares no mapped memory with its parent: neither sees later writes of the other, in files or in memory."""

from collections.abc import AsyncIterator

import anyio
import pytest

from agentflow.errors import CannotFork
from runtimes import Instance, InstanceSpec, Limits
from runtimes.process import ProcessRuntime

MIB = 1024 * 1024


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime(idle=False) as runtime:
        yield runtime


@pytest.fixture
async def instance(runtime: ProcessRuntime) -> AsyncIterator[Instance]:
    with anyio.fail_after(90):
        instance = await runtime.start(InstanceSpec(limits=Limits(disk_bytes=64 * MIB, file_bytes=None)))
        yield instance
        await instance.stop()


async def python(instance: Instance, source: str) -> str | None:
    result = await instance.run("python", source)
    assert result.error is None, result
    return result.value


MAPPED = """
import mmap, os, numpy
SIZE = 8 * mmap.PAGESIZE
PAGES = [number * mmap.PAGESIZE for number in range(8)]

def new_file(name):
    with open(name, "wb") as file:
        file.write(b"old!" * (SIZE // 4))
    return open(name, "r+b", buffering=0)

def mapped(name, **how):
    file = files[name] = new_file(name)
    maps[name] = mmap.mmap(file.fileno(), 0, **how)
    return maps[name]

files, maps = {}, {}
mapped("copy", access=mmap.ACCESS_COPY)
mapped("read", access=mmap.ACCESS_READ)
mapped("write", access=mmap.ACCESS_WRITE)
mapped("private read", flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
mapped("private code", flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
mapped("part", offset=2 * mmap.PAGESIZE, access=mmap.ACCESS_COPY)
mapped("a name\\nof two lines", access=mmap.ACCESS_COPY)
mapped("name (deleted)", access=mmap.ACCESS_COPY)
mapped("moved", access=mmap.ACCESS_COPY); os.rename("moved", "moved away")
mapped("unlinked", access=mmap.ACCESS_COPY); os.unlink("unlinked")
mapped("unlinked and shared", access=mmap.ACCESS_WRITE); os.unlink("unlinked and shared")
mapped("replaced", access=mmap.ACCESS_COPY); new_file("other"); os.replace("other", "replaced")
mapped("unreadable", access=mmap.ACCESS_COPY); os.chmod("unreadable", 0)
mapped("/dev/shm/memory", access=mmap.ACCESS_COPY)
mapped("/tmp/temporary", access=mmap.ACCESS_COPY)
array = numpy.memmap("array", dtype="S4", mode="w+", shape=SIZE // 4); array[:] = b"old!"; array.flush()
files["array"] = open("array", "r+b", buffering=0)
maps["array"] = numpy.memmap("array", dtype="u1", mode="c")
try:
    fd = os.memfd_create("memory")
except OSError:  # Without cgroups.
    fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR)
os.write(fd, b"old!" * (SIZE // 4))
files["memory file"] = open(fd, "r+b", buffering=0)
maps["memory file"] = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)
own = [name for name in maps if "read" not in name and "code" not in name or name == "unreadable"]
for name in own:
    maps[name][4096:4100] = numpy.frombuffer(b"mine", "u1") if name == "array" else b"mine"

def seen():
    return {name: [bytes(map[page:page + 4]) for page in PAGES if page < len(map)] for name, map in maps.items()}
before = seen()
"""
OVERWRITE = "for file in files.values(): file.seek(0); file.write(b'new!' * (SIZE // 4))"


@pytest.mark.promise("fork:mapped-files")
async def test_a_fork_sees_no_later_write_of_its_parent_through_any_kind_of_mapping(
    instance: Instance,
) -> None:
    await python(instance, MAPPED)
    fork = await instance.fork()
    assert fork.left_behind == ()
    await python(instance, OVERWRITE)
    changed = await python(instance, "sorted(name for name in maps if seen()[name] != before[name])")
    assert changed == await python(instance, "sorted(maps)")
    different = "{name: (seen()[name], before[name]) for name in maps if seen()[name] != before[name]}"
    assert await python(fork.instance, different) == "{}"
    grandchild = (await fork.instance.fork()).instance
    await python(fork.instance, OVERWRITE)
    assert await python(grandchild, different) == "{}"


@pytest.mark.promise("fork:mapped-files")
async def test_a_fork_maps_its_own_files(instance: Instance) -> None:
    await python(instance, MAPPED)
    fork = (await instance.fork()).instance
    await python(fork, OVERWRITE)
    assert await python(instance, "{name for name in maps if seen()[name] != before[name]}") == "set()"
    # A private mapping shows writes to the file in pages that the program has not changed.
    assert await python(fork, "seen()['copy'][:3]") == "[b'new!', b'mine', b'new!']"
    lines = await python(
        fork, "[line.split(maxsplit=5)[5] for line in open('/proc/self/maps') if '/home/agent' in line]"
    )
    assert lines is not None and "/r/home/agent" not in lines


@pytest.mark.promise("fork:mapped-files")
async def test_a_library_in_the_workspace_keeps_working_after_the_parent_overwrites_it(
    instance: Instance,
) -> None:
    await python(
        instance,
        "import ctypes, os, shutil\n"
        "path = next(line.split()[-1] for line in open('/proc/self/maps') if '/libm.so' in line or '/libm-' in line)\n"
        "shutil.copy(path, 'library.so')\n"
        "library = ctypes.CDLL('/home/agent/library.so')\n"
        "library.pow.restype, library.pow.argtypes = ctypes.c_double, [ctypes.c_double] * 2\n"
        "library.fmod.restype, library.fmod.argtypes = ctypes.c_double, [ctypes.c_double] * 2\n"
        "assert any('/home/agent/library.so' in line for line in open('/proc/self/maps'))",
    )
    fork = (await instance.fork()).instance
    # The parent may crash from this; its fork must not.
    await instance.run("bash", "head -c 3000000 /dev/zero > library.so")
    assert await python(fork, "library.pow(2.0, 10.0), library.fmod(7.0, 4.0)") == "(1024.0, 3.0)"


@pytest.mark.promise("fork:mapped-files")
async def test_a_mapping_larger_than_memory_costs_a_fork_nothing(instance: Instance) -> None:
    await python(
        instance,
        "import mmap, os\nfile = open('large', 'w+b')\nos.truncate('large', 8 << 30)\n"
        "large = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)\nlarge[5 << 30] = 7",
    )
    fork = (await instance.fork()).instance
    assert (
        await python(fork, "len(large) >> 30, large[5 << 30], large[0], os.stat('large').st_blocks < 100")
        == "(8, 7, 0, True)"
    )


@pytest.mark.promise("fork:mapped-files")
async def test_mapped_memory_that_does_not_fit_into_the_fork_is_an_error_and_harms_nobody(
    instance: Instance,
) -> None:
    await python(
        instance,
        "import mmap, os\nfile = open('large', 'w+b')\nos.truncate('large', 8 << 30)\n"
        "large = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)\nos.unlink('large')\nlarge[5 << 30] = 7",
    )
    with pytest.raises(CannotFork):
        await instance.fork()
    assert await python(instance, "large[5 << 30]") == "7"


@pytest.mark.promise("fork:mapped-files")
async def test_a_mapping_of_a_file_that_was_truncated_can_be_forked(instance: Instance) -> None:
    await python(
        instance,
        "import mmap, os\nfile = open('short', 'w+b')\nfile.write(b'x' * 40960); file.flush()\n"
        "maps = [mmap.mmap(file.fileno(), 0, access=how) for how in (mmap.ACCESS_COPY, mmap.ACCESS_WRITE)]\n"
        "os.truncate('short', 5000)\nos.unlink('short')",
    )
    fork = (await instance.fork()).instance
    assert (
        await python(fork, "[map[:2] + map[4998:5002] for map in maps]")
        == "[b'xxxx\\x00\\x00', b'xxxx\\x00\\x00']"
    )
