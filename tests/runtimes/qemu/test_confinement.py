"""Confinement of QEMU: its user, its view, its limits, and its end with the owner."""

import os
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import psutil
import pytest

from runtimes.qemu import QemuMachine, QemuRuntime, QemuSettings
from tests._plain_user import PlainUser
from tests.runtimes.qemu._guests import process_of

NAMESPACES = ("ipc", "mnt", "net", "pid", "uts")


def lines(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8").splitlines()


def status(pid: int) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines(pid, "status"))}


def opened(pid: int) -> dict[Path, str]:
    """Return its descriptors and their targets."""
    return {link: os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def namespaces(pid: int) -> dict[str, str]:
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in NAMESPACES}


@pytest.mark.promise("qemu:confined:who")
async def test_qemu_is_unprivileged_in_its_own_namespaces(runtime: QemuRuntime, machine: QemuMachine) -> None:
    pid = process_of(machine).pid
    facts = status(pid)
    assert {int(facts[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")} == {0}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    ours = namespaces(os.getpid())
    assert [kind for kind, name in namespaces(pid).items() if name == ours[kind]] == []
    if os.geteuid() == 0:
        other = await runtime.start()
        users = {status(process_of(started).pid)["Uid"] for started in (machine, other)}
        assert len(users) == 2
        assert all(int(user.split()[0]) >= 0x6F000000 for user in users)
        assert {status(process_of(started).pid)["Groups"] for started in (machine, other)} == {""}
        await other.stop()


@pytest.mark.promise("qemu:confined:sees")
async def test_qemu_sees_only_its_image_and_no_network(machine: QemuMachine, tiny: Path) -> None:
    root = Path(f"/proc/{process_of(machine).pid}/root")
    assert names(root) <= {
        "bin", "dev", "lib", "lib32", "lib64", "libx32", "machine", "proc", "sbin", "usr",
    }  # fmt: skip
    assert names(root / "machine") == {"kernel", "initrd"}
    assert os.path.samefile(root / "machine/kernel", tiny / "kernel")  # noqa: ASYNC240 -- a look at proc
    mounts = lines(process_of(machine).pid, "mounts")
    writable = {line.split()[1] for line in mounts if "rw" in line.split()[3].split(",")}
    assert not {target for target in writable if not target.startswith(("/dev", "/proc"))}
    devices = lines(process_of(machine).pid, "net/dev")
    assert [line.split(":")[0].strip() for line in devices[2:]] == ["lo"]


@pytest.mark.promise("qemu:confined:guest_network")
async def test_a_guest_has_no_network_and_no_share_of_the_hosts_files(machine: QemuMachine) -> None:
    assert (await machine.exec(["ls", "/sys/class/net"])).stdout.split() == [b"lo"]
    kinds = (await machine.exec(["sh", "-c", "cat /proc/filesystems /proc/mounts"])).stdout
    assert b"9p" not in kinds
    assert b"virtiofs" not in kinds


@pytest.mark.promise("qemu:confined:sockets")
async def test_the_sockets_of_a_machine_have_no_name(machine: QemuMachine) -> None:
    targets = opened(process_of(machine).pid).values()
    sockets = {target[8:-1] for target in targets if target.startswith("socket:[")}
    rows = [line.split() for line in lines(os.getpid(), "net/unix")[1:]]
    assert len(sockets) == 2
    assert [row for row in rows if row[6] in sockets and len(row) > 7] == []


@pytest.mark.promise("qemu:confined:memory")
async def test_no_machine_can_change_the_shared_initial_memory(
    machine: QemuMachine,
) -> None:
    everything = opened(process_of(machine).pid).items()
    files = [link for link, target in everything if target.startswith("/memfd:memory")]
    assert files
    for link in files:
        with pytest.raises(PermissionError), link.open("r+b") as file:
            file.write(b"x")
            file.flush()


@pytest.mark.promise("qemu:confined:limits")
async def test_the_resources_of_qemu_are_limited(machine: QemuMachine, settings: QemuSettings) -> None:
    limits = {line[:26].strip(): line[26:].split()[1] for line in lines(process_of(machine).pid, "limits")}
    assert limits["Max address space"] == str((settings.memory_mib << 20) + (1 << 30))
    assert limits["Max file size"] == str(settings.disk_mib << 20)
    assert (limits["Max core file size"], limits["Max open files"]) == ("0", "256")


@pytest.mark.promise("qemu:confined:anybody")
async def test_an_ordinary_user_can_run_machines(settings: QemuSettings, plain_user: PlainUser) -> None:
    script = (
        "import anyio, tempfile\nfrom pathlib import Path\nfrom runtimes.qemu import QemuRuntime, QemuSettings\n"
        "async def main(folder):\n"
        f"    settings = QemuSettings(image=Path({str(settings.image)!r}), memory_mib=96, state_dir=Path(folder))\n"
        "    async with QemuRuntime(settings) as runtime:\n"
        "        fork = await (await runtime.start()).fork()\n"
        "        print((await fork.exec(['echo', 'inside'])).stdout.decode(), end='')\n"
        "with tempfile.TemporaryDirectory() as folder: anyio.run(main, folder)\n"
    )
    done = await anyio.to_thread.run_sync(lambda: plain_user.run_python(script, timeout=110))
    assert (done.stdout, done.returncode) == ("inside\n", 0), done.stderr


def kill_a_server(settings: QemuSettings) -> Path:
    """Kill a server with two machines, wait for their end; return the directory of their files."""
    command = [sys.executable, "-m", "tests.runtimes.qemu._doomed", settings.model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        folder = Path(server.stdout.readline().strip())
        machines = psutil.Process(server.pid).children(recursive=True)
        assert len([process for process in machines if process.name().startswith("qemu-system")]) == 2
        server.kill()
        _, alive = psutil.wait_procs(machines, timeout=30)
        assert alive == []
    return folder


@pytest.mark.promise("qemu:orphans")
async def test_a_killed_server_leaves_no_machine_and_the_next_start_removes_its_files(
    settings: QemuSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A private directory: other servers would remove them too.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = await anyio.to_thread.run_sync(kill_a_server, settings)
    async with QemuRuntime(settings):
        assert folder.name not in names(folder.parent)


@pytest.mark.promise("qemu:orphans")
async def test_a_closed_runtime_leaves_nothing(settings: QemuSettings) -> None:
    before = set(os.listdir("/proc/self/fd"))
    async with QemuRuntime(settings.model_copy(update={"pool": 1})) as runtime:
        await runtime.warmup()
        machine = await runtime.start()
        fork = await machine.fork()
        processes = [process_of(started) for started in (machine, fork)]
        folder = runtime.folder
        assert stat.S_IMODE(os.lstat(folder).st_mode) == 0o700
    assert folder.name not in names(folder.parent)
    assert set(os.listdir("/proc/self/fd")) <= before
    # QEMU releases its resources a moment before its process is gone.
    _, alive = await anyio.to_thread.run_sync(partial(psutil.wait_procs, processes, timeout=60))
    assert alive == []
