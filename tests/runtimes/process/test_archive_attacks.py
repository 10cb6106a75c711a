"""Archives, mount points and special files can neither lead a trusted process out of a sandbox nor stop it."""

import contextlib
import io
import os
import socket
import sys
import tarfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import anyio
import pytest
from pydantic import BaseModel

from agentflow.errors import CannotFork
from runtimes import Instance, InstanceSpec, Snapshot
from runtimes.process import ProcessRuntime
from tests.runtimes.process.conftest import KINDS, Kind, Users

pytestmark = pytest.mark.timeout(200)

HOME = "upper/home/agent"
MIB = 1 << 20
MARK = "echo from another sandbox"


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        yield runtime


@pytest.fixture
async def sandbox(shared: ProcessRuntime) -> AsyncIterator[Instance]:
    with anyio.fail_after(90):
        instance = await shared.start()
        yield instance
        await instance.stop()


async def bash(instance: Instance, source: str) -> str:
    result = await instance.run("bash", source)
    assert result.exit_code == 0, result
    return result.stdout


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def hard_link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.LNKTYPE, target
    return info


def file(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(MARK), 0o755
    return info


def whiteout(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.CHRTYPE
    return info


def sparse(path: str, stored: int, **records: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.size = stored
    info.pax_headers = {f"GNU.sparse.{key}": value for key, value in records.items()}
    return info


def archive(*entries: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info in entries:
            tar.addfile(info, io.BytesIO(MARK.encode().ljust(info.size, b"x")) if info.isreg() else None)
    return out.getvalue()


OUTSIDE = "/skeleton/etc"
ATTACKS: dict[str, tuple[tarfile.TarInfo, ...]] = {
    "a dot in the path": (link("upper/lnk", OUTSIDE), file("upper/./lnk/bash")),
    "an empty name in the path": (link("upper/lnk", OUTSIDE), file("upper//lnk/bash")),
    "a dot at the start": (link("upper/lnk", OUTSIDE), file("./upper/lnk/bash")),
    "a link whose own path has a dot": (link("upper/./lnk", OUTSIDE), file("upper/lnk/bash")),
    "a hard link through a link": (
        link("upper/lnk", OUTSIDE),
        hard_link("upper/x", "upper/./lnk/passwd"),
    ),
    "a hard link to a link": (link("upper/lnk", f"{OUTSIDE}/passwd"), hard_link("upper/x", "upper/lnk")),
    "a folder replaced by a link": (file("upper/d/f"), link("upper/d", OUTSIDE), file("upper/d/bash")),
    "a link in the place of the tree": (link("upper", OUTSIDE), file("upper/bash")),
    "a link in the place of a system folder": (link("upper/proc", "home/agent"),),
    "a link in the place of the devices": (link("upper/dev", "/stage/upper/home"),),
    "a deleted system folder": (whiteout("upper/usr"),),
    "a name with NUL": (sparse(f"{HOME}/x", 4, name=f"{HOME}/x\0y"),),
    "a name that is too long": (file(f"{HOME}/{'x' * 256}"),),
    "holes that overlap": (sparse(f"{HOME}/x", 1024, size="4096", numblocks="2", map="0,1024,512,512"),),
    "holes beyond the archive": (sparse(f"{HOME}/x", 512, size="99999999", numblocks="1", map="0,99999999"),),
    "a map that is not one": (sparse(f"{HOME}/x", 512, size="4096", numblocks="1", map="a,b"),),
    "an old form of holes": (sparse(f"{HOME}/x", 512, major="1", minor="0", realsize="9999999999999"),),
}


@pytest.mark.promise("snapshot:contained")
@pytest.mark.parametrize("what", sorted(ATTACKS))
async def test_no_archive_leads_out_of_its_own_sandbox(
    shared: ProcessRuntime, sandbox: Instance, what: str
) -> None:
    await bash(sandbox, "echo kept > f")
    with pytest.raises(ValueError, match="snapshot"):
        await sandbox.restore(Snapshot(archive(*ATTACKS[what])))
    assert await bash(sandbox, "cat f; cat /proc/self/comm") == "kept\ncat\n"
    other = await shared.start()
    assert "another" not in await bash(other, "cat /etc/passwd /etc/bash; ls /etc | sort")
    await other.stop()


@pytest.mark.promise("snapshot:hostile")
async def test_a_damaged_archive_is_refused_rather_than_restored_in_part(sandbox: Instance) -> None:
    await bash(sandbox, "for n in 1 2 3 4; do echo $n > f$n; done")
    whole = (await sandbox.snapshot()).archive
    position = whole.index(b"upper/home/agent/f3")
    for damaged in (
        whole[:position] + b"\xff" * 512 + whole[position + 512 :],
        whole[: whole.rindex(b"\x00ustar")],
    ):
        with pytest.raises(ValueError, match="snapshot"):
            await sandbox.restore(Snapshot(damaged))
    assert await bash(sandbox, "cat f*") == "1\n2\n3\n4\n"


@pytest.mark.promise("snapshot:bounded")
async def test_an_archive_that_expands_without_end_is_refused(sandbox: Instance) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 260 * MIB
    with pytest.raises(ValueError, match="too large"):
        await sandbox.restore(Snapshot(header.tobuf() + bytes(260 * MIB)))
    assert await bash(sandbox, "echo on") == "on\n"


@pytest.mark.promise("snapshot:bounded")
async def test_holes_take_no_space_in_a_snapshot(sandbox: Instance) -> None:
    make = "for n in 1 2 3 4; do truncate -s 1G f$n; done; printf x | dd of=f2 bs=1 seek=5000 conv=notrunc"
    await bash(sandbox, make + " 2> /dev/null; truncate -s 1000 small; truncate -s 3M g; printf end >> g")
    show = "stat -c '%n %s %b' f* small g; tail -c 5 g | od -c; cmp -n 6000 f1 f2"
    before = (await sandbox.run("bash", show)).stdout
    snapshot = await sandbox.snapshot()
    assert len(snapshot.archive) < MIB
    with tarfile.open(fileobj=io.BytesIO(snapshot.archive)) as tar:
        assert tar.getmember(f"{HOME}/f2").size == 1 << 30
        content = tar.extractfile(f"{HOME}/g")
        assert content is not None
        assert content.read() == bytes(3 * MIB) + b"end"
    await sandbox.restore(snapshot)
    assert (await sandbox.run("bash", show)).stdout == before


@pytest.mark.promise("snapshot:bounded")
async def test_many_pieces_of_data_between_holes_survive(sandbox: Instance) -> None:
    code = "with open('f', 'wb') as f:\n for n in range(2000): f.seek(n * 12345); f.write(b'%d' % n)\n f.truncate(1 << 25)"
    assert (await sandbox.run("python", code)).error is None
    before = await bash(sandbox, "sha1sum f; stat -c %s f")
    await sandbox.restore(await sandbox.snapshot())
    assert await bash(sandbox, "sha1sum f; stat -c %s f") == before


# Names that are a file or a FIFO, half of the time each.
EXCHANGE = (
    "import os\n"
    "os.mkdir('d'); os.mkfifo('fifo'); open('file', 'w').close()\n"
    "if (swapper := os.fork()) == 0:\n"
    "    while True:\n"
    "        for kind in ('file', 'fifo'):\n"
    "            for n in range(4): os.link(kind, 'x'); os.rename('x', f'd/{n}')"
)


@pytest.mark.promise("containment:fifos")
async def test_fifos_in_the_place_of_files_never_stop_a_snapshot_or_a_fork(sandbox: Instance) -> None:
    assert (await sandbox.run("python", EXCHANGE)).error is None
    with anyio.fail_after(60):
        for _ in range(25):
            await sandbox.snapshot()
            with contextlib.suppress(CannotFork):
                await (await sandbox.fork()).instance.stop()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Folder of the host that everybody can read."""
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    (tmp_path / "text").write_text("a text", encoding="utf-8")
    return tmp_path


@pytest.mark.promise("containment:mount-points")
@pytest.mark.parametrize("target", ["/skeleton/etc", "/home/agent/elsewhere", "../../skeleton", "/usr/lib"])
async def test_a_mount_point_behind_a_link_stays_in_the_sandbox(
    shared: ProcessRuntime, corpus: Path, target: str
) -> None:
    spec = InstanceSpec(mounts={"/home/agent/data/corpus": str(corpus)})
    instance = await shared.start(spec)
    await bash(instance, f"mkdir elsewhere; mv data d2; ln -s {target} data")
    try:
        fork = (await instance.fork()).instance
    except CannotFork as error:
        assert "/home/agent/data/corpus" in str(error)
    else:
        assert await bash(fork, "cat data/corpus/text") == "a text"
        await fork.stop()
    snapshot = await instance.snapshot()
    with contextlib.suppress(OSError, ValueError):
        await instance.restore(snapshot)
    await instance.stop()
    other = await shared.start()
    assert await bash(other, "ls -d /etc/corpus /usr/lib/corpus 2>&1 | grep -vc cannot || true") == "0\n"
    await other.stop()


@pytest.fixture
def services(corpus: Path) -> Iterator[Path]:
    """Folder of the host with a listening socket and a FIFO with a reader, both open to everybody."""
    with serving(corpus / "socket"), reading(corpus / "fifo"):
        yield corpus


@contextlib.contextmanager
def serving(path: Path) -> Generator[None]:
    # A path may be too long for a socket.
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_PATH)
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        listener.listen()
        path.chmod(0o777)
        yield


@contextlib.contextmanager
def reading(path: Path) -> Generator[None]:
    os.mkfifo(path)
    path.chmod(0o666)
    fd = os.open(path, os.O_RDWR)
    yield
    os.close(fd)


REACH = (
    "import os, socket\n"
    "def reach(name):\n"
    "    try: socket.socket(socket.AF_UNIX).connect(name)\n"
    "    except OSError as error: print(error.strerror)\n"
    "    else: print('connected')\n"
    "def write(name):\n"
    "    try: os.close(os.open(name, os.O_WRONLY | os.O_NONBLOCK))\n"
    "    except OSError as error: print(error.strerror)\n"
    "    else: print('opened')\n"
)


@pytest.mark.promise("containment:mounted-services")
async def test_sockets_and_fifos_of_a_mounted_folder_lead_nowhere(
    shared: ProcessRuntime, services: Path
) -> None:
    instance = await shared.start(InstanceSpec(mounts={"/data": str(services)}))
    refused = "Connection refused\nNo such device or address\n"
    for member in (instance, (await instance.fork()).instance):
        result = await member.run("python", REACH + "reach('/data/socket'); write('/data/fifo')")
        assert result.stdout == refused
    with serving(services / "late"), reading(services / "lately"):
        result = await instance.run("python", "reach('/data/late'); write('/data/lately')")
        assert result.stdout == refused
    assert (
        await bash(instance, "cat /data/text; touch /data/x 2> /dev/null || echo read-only")
        == "a textread-only\n"
    )
    await instance.stop()


# The server runs in a mount namespace of its own, in which a file system is mounted inside the folder.
NESTED = """
import os
import sys
import anyio
from agentflow.errors import IsolationUnavailable
from runtimes import InstanceSpec
from runtimes.process import ProcessRuntime
from runtimes.process.linux import _syscalls as sc

sc.unshare(sc.CLONE_NEWNS)
sc.mount_private()
folder = sys.argv[1]
sc.attach_mount(sc.new_mount("tmpfs", mode="0755"), folder + "/inner")
with open(folder + "/inner/text", "w") as file:
    file.write("nested")

async def main():
    async with ProcessRuntime(preload=()) as runtime:
        instance = await runtime.start(InstanceSpec(mounts={"/data": folder}))
        print((await instance.exec(["cat", "/data/inner/text"])).stdout)
        os.mkfifo(folder + "/fifo")
        try:
            await runtime.start(InstanceSpec(mounts={"/data": folder}))
        except IsolationUnavailable as error:
            print(error)

anyio.run(main)
"""


@pytest.mark.promise("containment:mounted-services")
async def test_a_folder_with_mounts_inside_is_complete_and_refused_if_it_has_a_fifo(corpus: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can mount something inside the folder")
    (corpus / "inner").mkdir()
    done = await anyio.run_process([sys.executable, "-c", NESTED, str(corpus)])
    content, refusal = done.stdout.decode().splitlines()
    assert content == "b'nested'"
    assert refusal.endswith("it has a socket or FIFO, which would lead to the host: /fifo")


class ArchiveReport(BaseModel):
    """Output of `archive_run`."""

    accepted: list[str]
    bytes: int
    reached: str


@pytest.mark.promise(
    "snapshot:contained", "snapshot:bounded", "containment:mounted-services", "containment:users"
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_holds_for_every_kind_of_user_and_without_cgroups(users: Users, kind: Kind) -> None:
    report = ArchiveReport.model_validate(users.report("tests.runtimes.process.archive_run", kind))
    assert report.accepted == []
    assert report.bytes < 100_000
    assert report.reached.startswith("Connection refused\nNo such device or address\n")
    forks = kind != "a user without a range of ids"
    assert report.reached.endswith("/home/agent/e/corpus/socket") is forks


@pytest.mark.promise("snapshot:bounded")
async def test_an_endless_account_file_takes_no_memory_of_a_trusted_process(sandbox: Instance) -> None:
    grow = ["sh", "-c", "printf x >> /etc/passwd; truncate -s 1000M /etc/passwd"]
    if (await sandbox.exec(grow, user="root")).exit_code:
        pytest.skip("there is no root inside")
    with pytest.raises(CannotFork, match="too much memory"):
        await sandbox.fork()
    assert await bash(sandbox, "echo on") == "on\n"


@pytest.mark.promise("containment:listings")
async def test_a_listing_of_long_names_is_bounded(sandbox: Instance) -> None:
    code = (
        "import os\n"
        "for _ in range(14): os.mkdir('d' * 250); os.chdir('d' * 250)\n"
        "for n in range(20000): os.link('f', f'{n}') if n else open('f', 'w').close()\n"
        "os.chdir('/home/agent')"
    )
    assert (await sandbox.run("python", code)).error is None
    with pytest.raises(OSError, match="large"):
        await sandbox.list(recursive=True)
    assert len(await sandbox.list()) == 1
