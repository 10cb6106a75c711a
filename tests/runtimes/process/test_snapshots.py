"""Snapshots are restored exactly, and invalid archives are refused."""

import io
import tarfile
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from runtimes import Instance, Snapshot
from runtimes.process import ProcessRuntime

MAKE = r"""
mkdir -p deep/er; echo one > deep/er/file; ln -s ../deep/er/file deep/link; ln -s /nowhere dangling
echo two > first; ln first second; chmod 640 first; chmod 1777 deep; mkfifo pipe; touch empty 'a b' $'new\nline' 'ünï 文'
truncate -s 3M sparse; printf end >> sparse; printf '\xff\xfe' > $'\xff'; touch -d '2001-02-03 04:05:06' old
echo t > /tmp/t; echo s > /dev/shm/s; mkdir locked; echo x > locked/x; chmod 500 locked
""".strip()
SHOW = r"""
cd; LINE='%p %y %m %n %s %l %u %T@\n'
# Folders in /tmp may lead to the interpreter, which is mounted there.
(find . /dev/shm ! -name '*.sock' -printf "$LINE"; find /tmp -maxdepth 1 ! -type d -printf "$LINE") | sed 's/\.[0-9]*$//' | sort
find . -type f -exec sha1sum {} + | sort; cat second
""".strip()
FILL = "python3 -c \"import os; [os.setxattr('first', f'user.k{n}', b'v' * n) for n in range(3)]\""


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime(idle=False) as runtime:
        yield runtime


@pytest.fixture
async def instance(runtime: ProcessRuntime) -> AsyncIterator[Instance]:
    with anyio.fail_after(90):
        instance = await runtime.start()
        yield instance
        await instance.stop()


async def bash(instance: Instance, source: str) -> str:
    result = await instance.run("bash", source)
    assert result.exit_code == 0, result
    return result.stdout


@pytest.mark.promise("snapshot:files")
async def test_a_restore_brings_files_back_unchanged(instance: Instance) -> None:
    await bash(instance, MAKE)
    before = await bash(instance, SHOW)
    snapshot = await instance.snapshot()
    await bash(
        instance, "cd; chmod 700 locked; rm -rf -- * /tmp/t; echo new > new; mkdir first; ln -s / deep"
    )
    await instance.restore(snapshot)
    assert await bash(instance, SHOW) == before
    assert await bash(instance, "echo three > first; cat second") == "three\n"
    assert int(await bash(instance, "stat -c %b sparse")) * 512 < 1 << 20


@pytest.mark.promise("snapshot:files")
async def test_a_restore_brings_extended_attributes_back(instance: Instance) -> None:
    await bash(instance, "touch first")
    if (await instance.run("bash", FILL)).exit_code:
        pytest.skip("the kernel's tmpfs has no user attributes: it is older than 6.6")
    snapshot = await instance.snapshot()
    await bash(instance, "rm first")
    await instance.restore(snapshot)
    listed = await bash(instance, "python3 -c \"import os; print(sorted(os.listxattr('first')))\"")
    assert listed == "['user.k0', 'user.k1', 'user.k2']\n"


@pytest.mark.promise("snapshot:other")
async def test_a_snapshot_can_be_restored_in_another_instance(
    runtime: ProcessRuntime, instance: Instance
) -> None:
    await bash(instance, MAKE)
    other = await runtime.start()
    await other.restore(await instance.snapshot())
    shown = [await bash(restored, SHOW + "; touch -c first; cat /tmp/t") for restored in (instance, other)]
    assert shown[0] == shown[1]
    await other.stop()


@pytest.mark.promise("snapshot:sessions")
async def test_a_restore_ends_live_sessions_and_their_processes(instance: Instance) -> None:
    snapshot = await instance.snapshot()
    await bash(instance, "x=1; sleep 1000 & setsid sleep 1000 & disown")
    await instance.run("python", "x = 1")
    await instance.restore(snapshot)
    # They were killed and may take a while to exit.
    assert await bash(instance, "echo ${x:-none}; while pgrep sleep > /dev/null; do :; done") == "none\n"
    assert (await instance.run("python", "x")).error is not None


@pytest.mark.promise("snapshot:system")
async def test_a_deleted_system_file_stays_deleted(instance: Instance) -> None:
    if (await instance.exec(["rm", "/etc/hosts"], user="root")).exit_code:
        pytest.skip("there is no root inside")
    snapshot = await instance.snapshot()
    await instance.restore(snapshot)
    assert (await instance.run("bash", "cat /etc/hosts")).exit_code == 1
    assert (await instance.fork()).instance is not None


Change = Callable[[tarfile.TarFile], None]


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


HOME = "upper/home/agent"
HOSTILE: dict[str, list[tarfile.TarInfo]] = {
    "above": [entry("../outside")],
    "absolute": [entry("/etc/passwd")],
    "dots": [entry(f"{HOME}/../../../../outside")],
    "elsewhere": [entry("work/x")],
    "behind a link": [entry(f"{HOME}/a", tarfile.SYMTYPE, "/"), entry(f"{HOME}/a/outside")],
    "link to above": [entry(f"{HOME}/a", tarfile.LNKTYPE, "../../outside")],
    "link behind a link": [
        entry(f"{HOME}/a", tarfile.SYMTYPE, "/"),
        entry(f"{HOME}/b", tarfile.LNKTYPE, f"{HOME}/a/etc/passwd"),
    ],
    "device": [entry(f"{HOME}/null", tarfile.CHRTYPE)],
    "disk": [entry(f"{HOME}/disk", tarfile.BLKTYPE)],
}


def archive(entries: list[tarfile.TarInfo]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info in entries:
            if info.isdev():
                info.devmajor, info.devminor = 1, 3
            tar.addfile(info)
    return out.getvalue()


@pytest.mark.promise("snapshot:hostile")
@pytest.mark.parametrize("what", sorted(HOSTILE))
async def test_a_hostile_archive_is_refused_and_changes_nothing(instance: Instance, what: str) -> None:
    await bash(instance, MAKE + "; x=1")
    before = await bash(instance, SHOW)
    with pytest.raises(ValueError, match="snapshot"):
        await instance.restore(Snapshot(archive(HOSTILE[what])))
    assert await bash(instance, SHOW + "; echo $x") == before + "1\n"


@pytest.mark.promise("snapshot:hostile")
async def test_data_that_is_not_an_archive_is_refused(instance: Instance) -> None:
    whole = (await instance.snapshot()).archive
    await bash(instance, "x=1; echo y > f")
    for data in (b"", b"not a tar", whole[:700], whole[:512] + b"\xff" * 2048):
        with pytest.raises(ValueError, match="snapshot"):
            await instance.restore(Snapshot(data))
    assert await bash(instance, "echo $x; cat f") == "1\ny\n"


@pytest.mark.promise("snapshot:hostile")
@pytest.mark.parametrize("file", ["passwd", "group"])
async def test_a_link_made_by_root_does_not_lead_a_fork_to_shared_files(
    runtime: ProcessRuntime, instance: Instance, file: str
) -> None:
    link = ["sh", "-c", f"rm /etc/{file} && ln -s /skeleton/etc/hosts /etc/{file}"]
    if (await instance.exec(link, user="root")).exit_code:
        pytest.skip("there is no root inside")
    await (await instance.fork()).instance.stop()
    await instance.restore(await instance.snapshot())
    other = await runtime.start()
    assert "agent" not in await bash(other, "cat /etc/hosts")
    await other.stop()


@pytest.mark.promise("snapshot:hostile")
async def test_an_archive_cannot_create_a_set_user_id_program(instance: Instance) -> None:
    folder = entry(HOME, tarfile.DIRTYPE, mode=0o755)
    snapshot = archive([folder, entry(f"{HOME}/su", mode=0o6755)])
    await instance.restore(Snapshot(snapshot))
    assert await bash(instance, "stat -c %a su") == "755\n"
