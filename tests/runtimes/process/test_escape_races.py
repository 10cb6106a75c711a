"""Replacing files by links during an operation of the runtime never leads it out of the sandbox."""

import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from agentflow.errors import CannotFork, RuntimeFailure
from runtimes import Instance

pytestmark = pytest.mark.timeout(200)

# A line of a file that exists only in the root of the sandbox init process.
_BUILDER_LINE = b"agent:x:1000:"
_SWAP_FULL_FOLDER = (
    "import os, time\n"
    "os.mkdir('d')\n"
    "for name, size in ('long', 1 << 24), ('passwd', 64):\n"
    "    with open(f'd/{name}', 'w') as file: file.write('x' * size)\n"
    "if (swapper := os.fork()) == 0:\n"
    "    while True:\n"
    "        os.rename('d', 'e'); os.symlink('/skeleton/etc', 'd'); time.sleep(0.002)\n"
    "        os.unlink('d'); os.rename('e', 'd'); time.sleep(0.002)"
)
_SWAP_FILE = (
    "import os\n"
    "if (swapper := os.fork()) == 0:\n"
    "    os.mkdir('d')\n"
    "    while True:\n"
    "        with open('d/f', 'w') as file: file.write('x' * 64)\n"
    "        os.unlink('d/f'); os.symlink('/proc/1/cmdline', 'd/f'); os.unlink('d/f')"
)
_SWAP_FOLDER = (
    "import os\n"
    "if (swapper := os.fork()) == 0:\n"
    "    while True:\n"
    "        os.mkdir('d'); os.rename('d', 'old'); os.symlink('/', 'd'); os.rename('d', 'link')\n"
    "        os.rename('link', 'd'); os.unlink('d')\n"
    "        for folder, _, files in os.walk('old', topdown=False):\n"
    "            [os.unlink(f'{folder}/{name}') for name in files]; os.rmdir(folder)"
)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """File of the host in a world-writable folder."""
    tmp_path.chmod(0o777)
    (tmp_path / "marker").write_text("host", encoding="utf-8")
    return tmp_path / "marker"


@contextlib.asynccontextmanager
async def swapping(instance: Instance, code: str) -> AsyncGenerator[None]:
    assert (await instance.run("python", code)).error is None
    try:
        yield
    finally:
        await instance.run("python", "os.kill(swapper, 9); os.waitpid(swapper, 0)")


@pytest.mark.promise("containment:races")
async def test_a_snapshot_follows_no_swapped_in_link(instance: Instance) -> None:
    async with swapping(instance, _SWAP_FULL_FOLDER):
        for _ in range(30):
            with contextlib.suppress(OSError, RuntimeFailure):
                assert _BUILDER_LINE not in (await instance.snapshot()).archive


@pytest.mark.promise("containment:races")
async def test_a_fork_copies_no_swapped_in_file(instance: Instance) -> None:
    async with swapping(instance, _SWAP_FULL_FOLDER):
        for _ in range(15):
            with contextlib.suppress(CannotFork):
                fork = (await instance.fork()).instance
                with contextlib.suppress(OSError):
                    assert _BUILDER_LINE not in await fork.read("d/passwd")
                await fork.stop()


@pytest.mark.promise("containment:churn")
async def test_forks_and_snapshots_succeed_while_files_are_created_and_removed(instance: Instance) -> None:
    churn = (
        "import os\n"
        "if (swapper := os.fork()) == 0:\n"
        "    while True:\n"
        "        for n in range(50): open(f't{n}', 'w').close()\n"
        "        for n in range(50): os.unlink(f't{n}')"
    )
    await instance.write("stays", b"here")
    async with swapping(instance, churn):
        for _ in range(15):
            fork = (await instance.fork()).instance
            assert await fork.read("stays") == b"here"
            await fork.stop()
            assert b"stays" in (await instance.snapshot()).archive


@pytest.mark.promise("containment:races")
async def test_no_file_is_written_or_removed_through_a_swapped_folder(
    instance: Instance, marker: Path
) -> None:
    async with swapping(instance, _SWAP_FOLDER):
        for _ in range(100):
            for operation in (
                instance.write(f"d{marker}", b"inside"),
                instance.remove(f"d{marker}"),
                instance.move("d", f"d{marker.parent}/moved", replace=True),
            ):
                with contextlib.suppress(OSError):
                    await operation
    assert await anyio.Path(marker).read_text(encoding="utf-8") == "host"
    assert os.listdir(marker.parent) == ["marker"]


@pytest.mark.promise("containment:races")
async def test_changing_the_owner_of_system_files_follows_no_swapped_in_link(instance: Instance) -> None:
    swap = _SWAP_FILE.replace("'d", "'/tmp/d").replace("/proc/1/cmdline", "/skeleton/etc/passwd")
    async with swapping(instance, swap):
        done = await instance.exec(["stat", "-c", "%U", "/etc/passwd"], user="root")
    assert done.stdout == b"root\n"
    assert (await instance.exec(["cat", "/skeleton/etc/passwd"], user="root")).exit_code == 1


@pytest.mark.promise("containment:names")
@pytest.mark.parametrize(
    "path", ["x" * 5000, "x" * 300, "\ud800", "nul\0in-it", "../../../..", "/", "/proc/self/mem", "d/" * 2100]
)
async def test_an_invalid_path_is_refused_and_the_runtime_keeps_running(
    instance: Instance, path: str
) -> None:
    with anyio.fail_after(60):
        for operation in (
            instance.read(path),
            instance.write(path, b""),
            instance.remove(path),
            instance.move(path, "elsewhere"),
            instance.move("nothing", path),
        ):
            with pytest.raises(OSError):
                await operation
        assert (await instance.run("bash", "echo on")).stdout == "on\n"


@pytest.mark.promise("containment:names")
async def test_endlessly_deep_folders_are_a_typed_failure_and_the_runtime_keeps_running(
    instance: Instance,
) -> None:
    deep = "import os\nfor _ in range(3000):\n    os.mkdir('deep')\n    os.chdir('deep')\nos.chdir('/home/agent')"
    assert (await instance.run("python", deep)).error is None
    with anyio.fail_after(60):
        with pytest.raises(CannotFork):
            await instance.fork()
        with contextlib.suppress(OSError):
            await instance.remove("deep", recursive=True)
        assert (await instance.run("bash", "rm -rf deep; echo on")).stdout == "on\n"
